// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask package`: the Debian packages, and a test of them on a machine of its own.
//!
//! `root` makes a Debian with systemd, `boot` runs it under QEMU with packages in it and reads what
//! the test reports.

mod boot;
mod root;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use clap::Subcommand;

use crate::{
    apt, cache, capi, command,
    kernel::{Arch, Linux},
    say,
    vm::{Kernel, image_of},
};

/// The version that the metadata in crates/cli/Cargo.toml was written for.
const CARGO_DEB: &str = "3.8.0";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Build the packages, in release, and print their paths.
    Build,
    /// Install, upgrade, remove and purge them on a Debian with systemd in a virtual machine.
    Test,
}

pub(crate) fn run(verb: &Verb) -> Result<ExitCode> {
    match verb {
        Verb::Build => {
            let made = build(env!("CARGO_PKG_VERSION"))?;
            say::result(made.prezero.display());
            say::result(made.lab.display());
            Ok(ExitCode::SUCCESS)
        }
        Verb::Test => test(),
    }
}

/// Writes the manual pages of the verbs and the completions below `target/package`.
pub(crate) fn documents() -> Result<PathBuf> {
    let repo = cache::repo();
    let mut make = command::new(&repo, "cargo", ["build", "--release"]);
    for package in ["prezero-cli", "prezero-lab", "prezero-preload"] {
        make.args(["--package", package]);
    }
    command::run(&mut make)?;
    let to = repo.join("target/package");
    let binary = built("prezero");
    for (program, man) in [(&binary, "man"), (&built("prezero-lab"), "lab/man")] {
        command::run(command::new(&repo, program, ["man"]).arg(to.join(man)))?;
    }
    let completions = to.join("completions");
    fs::create_dir_all(&completions)?;
    for (shell, file) in [("bash", "prezero"), ("zsh", "_prezero"), ("fish", "prezero.fish")] {
        let text = command::stdout(&mut command::new(&repo, &binary, ["completions", shell]))?;
        fs::write(completions.join(file), text)?;
    }
    Ok(to)
}

fn built(program: &str) -> String {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    cache::repo().join(target).join("release").join(program).display().to_string()
}

/// What is built: prezero itself, and the laboratory.
struct Packages {
    prezero: PathBuf,
    lab: PathBuf,
}

/// Builds both packages under that version.
fn build(version: &str) -> Result<Packages> {
    // What it depends on is read off its libraries by dpkg-shlibdeps.
    apt::need(&["dpkg-dev"])?;
    let to = documents()?;
    capi::link(&to.join("capi"))?;
    let tool = cargo_deb()?.display().to_string();
    let pack = |package: &str, name: &str| {
        let deb = to.join(format!("{name}_{version}.deb"));
        let mut make = command::new(&cache::repo(), &tool, ["--no-build", "--strip"]);
        make.args(["--package", package, "--deb-version", version, "--output"]).arg(&deb);
        command::run(&mut make)?;
        Ok::<_, anyhow::Error>(deb)
    };
    Ok(Packages {
        prezero: pack("prezero-cli", "prezero")?,
        lab: pack("prezero-lab", "prezero-lab")?,
    })
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

/// Boots `kernel` on that Debian with its own package `image` and prezero's: tests/package/kernel.
pub(crate) fn boot_kernel(kernel: &Path, image: &Path) -> Result<ExitCode> {
    let prezero = build(env!("CARGO_PKG_VERSION"))?;
    let root = root::archive().context("no Debian to install the package on")?;
    let debs = [("kernel.deb", image), ("prezero.deb", prezero.prezero.as_path())];
    boot::test("kernel-package", kernel, &root, "kernel", &debs)
}

fn test() -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        // Files of a root file system belong to root.
        say::result("skipped the package's test: it needs root");
        say::result("0 passed, 0 failed, 1 skipped");
        return Ok(ExitCode::SUCCESS);
    }
    let (old, new) = (env!("CARGO_PKG_VERSION").to_owned(), "999.0".to_owned());
    let old = build(&old)?;
    let new = build(&new)?;
    let root = root::archive().context("no Debian to install the package on")?;
    let stock = image_of(&Kernel::Stock, Linux::default(), Arch::default())?;
    let debs = [
        ("old.deb", old.prezero.as_path()),
        ("old-lab.deb", old.lab.as_path()),
        ("new.deb", new.prezero.as_path()),
        ("new-lab.deb", new.lab.as_path()),
    ];
    boot::test("package", &stock.kernel, &root, "run", &debs)
}
