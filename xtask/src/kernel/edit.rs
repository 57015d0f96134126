// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Working on the series: out into a git tree, and back.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, bail};

use super::{
    linux::Linux,
    made::Made,
    overlay::Overlay,
    series::{self, Entry, Index, Series, join_mail},
    source::Source,
};
use crate::{command, say};

/// The tag on the unchanged source.
const PRISTINE: &str = "pristine";

fn git(dir: &Path, arguments: &[&str]) -> Result<String> {
    command::stdout(command::new(dir, "git", ["-c", "gc.auto=0"]).args(arguments))
}

/// Makes `dir` a git tree: the source, tagged `pristine`, and one commit per
/// patch on top.
pub(crate) fn make_tree(linux: Linux, dir: &Path) -> Result<()> {
    if dir.exists() {
        bail!("{} exists: `git -C {0} rebase` in it, or name a new directory", dir.display());
    }
    let source = Source::get(linux)?;
    let series = Series::read(linux)?;
    series::make_parent(dir)?;
    say::step(format_args!("copying {} and adding it to git", source.version));
    let parent = std::env::current_dir()?;
    command::run(command::new(&parent, "cp", ["-a"]).arg(&source.dir).arg(dir))?;
    git(dir, &["init", "-q"])?;
    git(dir, &["add", "-A", "-f", "."])?;
    let subject = format!("Debian linux-source {}", source.version);
    git(dir, &["commit", "-q", "-m", &subject])?;
    git(dir, &["tag", PRISTINE])?;
    let replay = tempfile::tempdir()?;
    series.replay(&source, replay.path(), |commit| {
        let Some(commit) = commit else { return Ok(()) };
        for file in series::files_below(replay.path())? {
            let to = dir.join(&file);
            series::make_parent(&to)?;
            fs::write(&to, fs::read(replay.path().join(&file))?)?;
        }
        git(dir, &["add", "-A", "-f", "."])?;
        git(dir, &["commit", "-q", "-m", &commit.message])?;
        Ok(())
    })?;
    Made::load(linux)?.write(dir)?;
    say::result(dir.display());
    Ok(())
}

/// One commit of the tree, taken apart.
struct Taken {
    message: String,
    diff: String,
    added: Vec<String>,
}

/// Replaces `patches/`, the overlay's files and `series.toml` by the commits of `dir`, unless that
/// would undo what came to them since `dir` was made.
pub(crate) fn import(linux: Linux, dir: &Path) -> Result<()> {
    Made::load(linux)?.check_current(dir)?;
    let range = format!("{PRISTINE}..HEAD");
    let commits = git(dir, &["log", "--reverse", "--format=%H", &range])?;
    if commits.is_empty() {
        bail!("{} has no commits after the tag {PRISTINE}", dir.display());
    }
    let mut new_files = BTreeSet::new();
    let mut taken = Vec::new();
    for commit in commits.lines() {
        taken.push(take(dir, commit, &mut new_files)?);
    }

    let home = linux.home();
    let numbers = numbers(&home)?;
    let sent = sent_as(linux)?;
    Overlay::new(linux).replace(dir, &new_files)?;
    let patches = home.join("patches");
    let _ = fs::remove_dir_all(&patches);
    fs::create_dir_all(&patches)?;
    let mut index = Index::default();
    let mut last = 0;
    for commit in taken {
        let slug = slug(&commit.message);
        last = numbers.get(&slug).copied().filter(|&number| number > last).unwrap_or(last + 1);
        let patch = format!("{last:04}-{slug}.patch");
        fs::write(patches.join(&patch), join_mail(&commit.message, &commit.diff))?;
        index.commits.push(Entry {
            patch,
            series: sent.get(&slug).cloned(),
            overlay: commit.added,
        });
    }
    let head = "# The commits, in order: a patch with the message and the edits to existing files, the\n\
                # files of overlay/ that the commit adds, and the series in which it is sent.\n\n";
    fs::write(home.join("series.toml"), head.to_owned() + &toml::to_string_pretty(&index)?)?;
    Made::load(linux)?.write(dir)?;
    say::result(format_args!("{} commits in {}", index.commits.len(), home.display()));
    Ok(())
}

fn take(dir: &Path, commit: &str, new_files: &mut BTreeSet<String>) -> Result<Taken> {
    let message = git(dir, &["log", "-1", "--format=%B", commit])?;
    // `export` signs off with the name of its caller.
    let message: Vec<&str> =
        message.trim_end().lines().filter(|line| !line.starts_with("Signed-off-by: ")).collect();
    let subject = message.first().copied().unwrap_or_default();
    let listing =
        git(dir, &["diff-tree", "-r", "--no-renames", "--no-commit-id", "--name-status", commit])?;
    let mut added = Vec::new();
    let mut changed = Vec::new();
    for line in listing.lines() {
        let (status, file) = line.split_once('\t').context("git diff-tree: no tab in a line")?;
        match status {
            "A" => added.push(file.to_owned()),
            "M" if new_files.contains(file) => bail!(
                "`{subject}` changes {file}, which an earlier commit adds: squash them, \
                 a file of overlay/ belongs to one commit"
            ),
            "M" => changed.push(file),
            _ => bail!("`{subject}`: cannot express `{line}` by overlay and patch"),
        }
    }
    new_files.extend(added.iter().cloned());
    let mut diff = String::new();
    if !changed.is_empty() {
        let mut arguments = vec!["diff-tree", "-p", "--no-commit-id", "--abbrev=12", commit, "--"];
        arguments.extend(changed);
        diff = git(dir, &arguments)?;
    }
    Ok(Taken { message: message.join("\n"), diff, added })
}

/// A patch keeps its number for as long as it keeps its subject.
fn numbers(home: &Path) -> Result<BTreeMap<String, u32>> {
    let mut numbers = BTreeMap::new();
    for file in series::files_below(&home.join("patches"))? {
        let stem = file.strip_suffix(".patch").unwrap_or(&file);
        if let Some((number, slug)) = stem.split_once('-') {
            let number = number.parse().with_context(|| format!("patches/{file}: no number"))?;
            numbers.insert(slug.to_owned(), number);
        }
    }
    Ok(numbers)
}

/// The series in which each patch is sent, by the slug of its subject.
fn sent_as(linux: Linux) -> Result<BTreeMap<String, String>> {
    let named = Index::read(linux)?.commits.into_iter().filter_map(|entry| {
        let stem = entry.patch.strip_suffix(".patch")?;
        Some((stem.split_once('-')?.1.to_owned(), entry.series?))
    });
    Ok(named.collect())
}

/// The subject as a file name.
fn slug(message: &str) -> String {
    let subject = message.lines().next().unwrap_or_default();
    let words: Vec<&str> = subject
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    words.join("-").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::slug;

    #[test]
    fn a_slug_keeps_words_and_underscores() {
        assert_eq!(
            slug("mm: folio_zero_user: clear ranges\n\nx"),
            "mm-folio_zero_user-clear-ranges"
        );
    }
}
