// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Debian packages, by cargo-deb from the tables of crates/cli and crates/lab; the module's is
//! in `dkms`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{Tree, built::Built, dkms};
use crate::{apt, cache, command, say};

/// The version that the metadata in crates/cli/Cargo.toml was written for.
const CARGO_DEB: &str = "3.8.0";

/// The packages: prezero itself, the laboratory, and the kernel module's sources.
pub(super) struct Packages {
    pub(super) prezero: PathBuf,
    pub(super) lab: PathBuf,
    pub(super) dkms: PathBuf,
}

/// Packs them under that version into `to`.
pub(super) fn pack(built: &Built, tree: &Tree, version: &str, to: &Path) -> Result<Packages> {
    // What it depends on is read off its libraries by dpkg-shlibdeps.
    apt::need(&["dpkg-dev"])?;
    let tool = cargo_deb()?.display().to_string();
    let arch = built.arch.debian();
    let pack = |package: &str, name: &str| {
        let deb = to.join(format!("{name}_{version}_{arch}.deb"));
        let mut make = command::new(&cache::repo(), &tool, ["--no-build", "--no-strip"]);
        make.args(["--package", package, "--deb-version", version])
            .args(["--target", built.arch.rust(), "--output"])
            .arg(&deb)
            .env("SOURCE_DATE_EPOCH", tree.time.to_string());
        command::run(&mut make)?;
        Ok::<_, anyhow::Error>(deb)
    };
    fs::create_dir_all(to)?;
    for (name, dir) in [("prezero", tree.dir.clone()), ("prezero-lab", tree.dir.join("lab"))] {
        changelog(name, version, tree.time, &dir.join("changelog"))?;
    }
    Ok(Packages {
        prezero: pack("prezero-cli", "prezero")?,
        lab: pack("prezero-lab", "prezero-lab")?,
        dkms: dkms::deb(tree, version, to)?,
    })
}

/// Writes `to.gz`, as Debian has its changelogs. What changed is in CHANGELOG.md beside it.
pub(super) fn changelog(name: &str, version: &str, time: u64, to: &Path) -> Result<()> {
    let words = ["-u", "-R", "-d", &format!("@{time}")];
    let date = command::stdout(&mut command::new(Path::new("/"), "date", words))?;
    let text = format!(
        "{name} ({version}) unstable; urgency=medium\n\n  * /usr/share/doc/prezero/CHANGELOG.md \
         says what changed.\n\n -- The prezero maintainers <prezero@localhost>  {date}"
    );
    fs::write(to, text)?;
    command::run(command::new(Path::new("/"), "gzip", ["-9nf"]).arg(to))
}

/// `cargo-deb` of the version we know, installed for this user's checkouts if it is missing.
fn cargo_deb() -> Result<PathBuf> {
    let tools = cache::shared("tools")?;
    let program = tools.join("bin/cargo-deb");
    let known = |program: &Path| {
        let version = command::stdout(&mut command::new(
            Path::new("/"),
            &program.display().to_string(),
            ["--version"],
        ));
        version.is_ok_and(|version| version.contains(CARGO_DEB))
    };
    if !known(&program) {
        say::step(format_args!("installing cargo-deb {CARGO_DEB}"));
        let words = ["install", "cargo-deb", "--locked", "--version", CARGO_DEB, "--root"];
        command::run(command::new(Path::new("/"), "cargo", words).arg(&tools))?;
    }
    Ok(program)
}
