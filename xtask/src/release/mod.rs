// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask release VERSION`: everything that a release publishes, built twice in checkouts of
//! their own, compared byte by byte, and tagged.
//!
//! `ready` sees that the commit may become that version. `artifacts` builds each kind of file.
//! RELEASE.md says what a person does before and after.

mod artifacts;
mod ready;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest as _, Sha256};

use crate::{cache, command, say};
use artifacts::Kind;

/// The file with the sums of all others, as `sha256sum --check` reads it.
const SUMS: &str = "SHA256SUMS";

/// Build everything that a release publishes, twice, compare both, and tag the commit.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The version, which the workspace must have already.
    version: String,
    /// Only these kinds of files; no tag then.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Kind>,
    /// Build and compare, but leave out the tag.
    #[arg(long)]
    rehearse: bool,
}

/// Build what a release publishes once, in this checkout.
#[derive(Debug, clap::Args)]
pub(crate) struct ArtifactsArgs {
    /// Where to.
    #[arg(long)]
    out: PathBuf,
    /// Only these kinds of files.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Kind>,
}

pub(crate) fn build(args: &ArtifactsArgs) -> Result<ExitCode> {
    let kinds = if args.only.is_empty() { Kind::all() } else { args.only.clone() };
    fs::create_dir_all(&args.out)?;
    let out = fs::canonicalize(&args.out)?;
    for kind in kinds {
        say::step(format_args!("building {kind}"));
        kind.build(&out).with_context(|| format!("cannot build {kind}"))?;
    }
    let sums = sums(&out)?;
    let lines: String = sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
    fs::write(out.join(SUMS), lines)?;
    say::result(out.display());
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let version = args.version.trim_start_matches('v');
    let is_rehearsal = args.rehearse || !args.only.is_empty();
    let notes = ready::check(version, is_rehearsal)?;
    let head = command::stdout(&mut command::new(&cache::repo(), "git", ["rev-parse", "HEAD"]))?;
    let commit = head.trim();
    let base = cache::target("release")?;
    let [first, second] = ["first", "second"].map(|name| base.join(name));
    for dir in [&first, &second] {
        in_a_checkout(commit, &base, dir, &args.only)?;
    }
    let (one, other) = (sums(&first)?, sums(&second)?);
    let differing: Vec<_> = one
        .iter()
        .filter(|(name, sum)| other.get(*name) != Some(sum))
        .map(|(name, _)| name)
        .collect();
    ensure!(
        differing.is_empty() && one.len() == other.len(),
        "two builds of one commit differ in {differing:?}: see {}",
        base.display()
    );
    let to = base.join(version);
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    fs::rename(&first, &to)?;
    fs::remove_dir_all(&second)?;
    fs::write(to.join("NOTES.md"), &notes)?;
    if !is_rehearsal {
        let message = format!("prezero {version}\n\n{notes}");
        let tag = ["tag", "--annotate", "--message", &message, &format!("v{version}"), commit];
        command::run(&mut command::new(&cache::repo(), "git", tag))?;
    }
    for name in one.keys() {
        say::result(to.join(name).display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds into `to` from a checkout of the commit at another place, with nothing built before.
fn in_a_checkout(commit: &str, base: &Path, to: &Path, only: &[Kind]) -> Result<()> {
    let name = to.file_name().context("a name")?.to_string_lossy().into_owned();
    let checkout = base.join(format!("checkout-{name}"));
    let repo = cache::repo();
    let remove = || -> Result<()> {
        if checkout.exists() {
            let words = ["worktree", "remove", "--force"];
            command::run(command::new(&repo, "git", words).arg(&checkout))?;
        }
        Ok(())
    };
    remove()?;
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let add = ["worktree", "add", "--quiet", "--detach"];
    command::run(command::new(&repo, "git", add).arg(&checkout).arg(commit))?;
    let mut make = command::new(&checkout, "cargo", ["xtask", "artifacts", "--out"]);
    make.arg(to).env_remove("CARGO_TARGET_DIR");
    if !only.is_empty() {
        let names: Vec<_> = only.iter().map(ToString::to_string).collect();
        make.args(["--only", &names.join(",")]);
    }
    // A failed build stays for a look.
    command::run(&mut make)?;
    remove()
}

/// The sums of the files in a directory, by name.
fn sums(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|name| anyhow::anyhow!("{name:?}"))?;
        if !entry.file_type()?.is_file() {
            bail!("{} is no file", entry.path().display());
        }
        if name != SUMS {
            let digest = Sha256::digest(fs::read(entry.path())?);
            sums.insert(name, digest.iter().map(|byte| format!("{byte:02x}")).collect());
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds that take seconds; `make release` compares all.
    #[test]
    fn sources_chart_and_book_are_equal_bytes_twice() {
        let built = || {
            let dir = tempfile::tempdir().unwrap();
            for kind in [Kind::Source, Kind::Chart, Kind::Book] {
                kind.build(dir.path()).unwrap();
            }
            sums(dir.path()).unwrap()
        };
        let first = built();
        // Times in the files would differ.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!(first.len(), 3, "{first:?}");
        assert_eq!(first, built());
    }

    #[test]
    fn sums_are_those_of_sha256sum() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.tar"), "prezero\n").unwrap();
        fs::write(dir.path().join(SUMS), "no sum of itself").unwrap();
        let sums = sums(dir.path()).unwrap();
        let words = ["a.tar"];
        let said = command::stdout(&mut command::new(dir.path(), "sha256sum", words)).unwrap();
        assert_eq!(said, format!("{}  a.tar\n", sums["a.tar"]));
        assert_eq!(sums.len(), 1);
    }
}
