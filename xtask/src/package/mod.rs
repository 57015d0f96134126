// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask package`: the packages for Debian and for rpm, and tests of them on a machine of
//! their own.
//!
//! `built` makes the content, `deb`, `dkms` and `rpm` pack it. `root` makes a Debian with systemd,
//! and `boot` runs it under QEMU with packages in it and reads the test's report. `chroot` runs
//! compilers in the same root on this machine, and `headers` are of the kernel that DKMS builds for
//! there besides the booted one.

mod book;
mod boot;
mod built;
mod chroot;
mod deb;
mod dkms;
mod headers;
mod root;
mod rpm;
mod sysroot;

pub(crate) use book::build as book;
pub(crate) use built::as_shipped;
pub(crate) use root::debian;
pub(crate) use sysroot::link as link_libraries;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};
use clap::{Subcommand, ValueEnum};

use crate::{cache, capi, command, kernel::Arch, say};
use built::Built;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Build the Debian packages, in release, and print their paths.
    Build(Made),
    /// Build the RPM packages, in release, and print their paths.
    Rpm(Made),
    /// Install, upgrade, remove and purge them on a Debian with systemd in a virtual machine.
    Test {
        /// Which packages; all by default.
        #[arg(value_enum)]
        format: Option<Format>,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Made {
    /// What it is to run on; another machine's is linked with its libraries from Debian.
    #[arg(long, value_enum, default_value_t)]
    arch: Arch,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Format {
    Deb,
    Rpm,
    Dkms,
}

pub(crate) fn run(verb: &Verb) -> Result<ExitCode> {
    let packages = match verb {
        Verb::Test { format } => return test(*format),
        Verb::Build(Made { arch }) => debs(*arch)?,
        Verb::Rpm(Made { arch }) => rpms(*arch)?,
    };
    packages.iter().for_each(|package| say::result(package.display()));
    Ok(ExitCode::SUCCESS)
}

/// Builds the Debian packages for an architecture, and the module's.
pub(crate) fn debs(arch: Arch) -> Result<[PathBuf; 3]> {
    let (built, tree) = make(arch)?;
    let made = deb::pack(&built, &tree, env!("CARGO_PKG_VERSION"), &tree.dir)?;
    Ok([made.prezero, made.lab, made.dkms])
}

/// The same for rpm.
pub(crate) fn rpms(arch: Arch) -> Result<[PathBuf; 3]> {
    let (built, tree) = make(arch)?;
    rpm::pack(&built, &tree, env!("CARGO_PKG_VERSION"), &tree.dir)
}

/// What packages bring besides the programs, below `target/package`.
struct Tree {
    dir: PathBuf,
    /// When the commit was made, in seconds since 1970: all files are of that time.
    time: u64,
}

impl Tree {
    /// Where the C library is.
    fn libraries(&self, arch: Arch) -> PathBuf {
        self.dir.join("lib").join(arch.libraries())
    }
}

/// Builds all of what a package for `arch` brings, and sees that it names no place of this machine.
fn make(arch: Arch) -> Result<(Built, Tree)> {
    let built = Built::make(arch)?;
    let tree = Tree { dir: documents_of(&built)?, time: time()? };
    book::build()?;
    let lib = tree.dir.join("lib");
    if lib.exists() {
        fs::remove_dir_all(&lib)?;
    }
    let libraries = tree.libraries(arch);
    capi::link(&libraries, arch)?;
    fs::create_dir_all(libraries.join("pkgconfig"))?;
    fs::rename(libraries.join("prezero.pc"), libraries.join("pkgconfig/prezero.pc"))?;
    fs::rename(libraries.join("prezero.h"), tree.dir.join("prezero.h"))?;
    for program in ["prezero", "prezero-lab", "libprezero_preload.so"] {
        built::names_no_build_path(&built.path(program))?;
    }
    built::names_no_build_path(&libraries.join("libprezero.so.0"))?;
    Ok((built, tree))
}

/// `SOURCE_DATE_EPOCH`, or the commit's time.
pub(crate) fn time() -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            let words = ["log", "-1", "--format=%ct"];
            command::stdout(&mut command::new(&cache::repo(), "git", words))?
        }
    };
    text.trim().parse().with_context(|| format!("no time: {text}"))
}

/// Writes the manual pages of the verbs and the completions below `target/package`.
pub(crate) fn documents() -> Result<PathBuf> {
    documents_of(&Built::make(Arch::default())?)
}

fn documents_of(built: &Built) -> Result<PathBuf> {
    let to = cache::repo().join("target/package");
    command::run(built.command("prezero-lab")?.arg("man").arg(to.join("lab/man")))?;
    write_documents(&to, || built.command("prezero"))?;
    Ok(to)
}

/// Writes the manual pages of a program's verbs and its completions into a directory.
pub(crate) fn write_documents(to: &Path, prezero: impl Fn() -> Result<Command>) -> Result<()> {
    command::run(prezero()?.arg("man").arg(to.join("man")))?;
    let completions = to.join("completions");
    fs::create_dir_all(&completions)?;
    for (shell, file) in [("bash", "prezero"), ("zsh", "_prezero"), ("fish", "prezero.fish")] {
        let text = command::stdout(prezero()?.args(["completions", shell]))?;
        fs::write(completions.join(file), text)?;
    }
    Ok(())
}

/// Boots `kernel` on that Debian with its own package `image` and prezero's: tests/package/kernel.
pub(crate) fn boot_kernel(kernel: &Path, image: &Path) -> Result<ExitCode> {
    let (built, tree) = make(Arch::default())?;
    let prezero = deb::pack(&built, &tree, env!("CARGO_PKG_VERSION"), &tree.dir)?;
    let root = root::archive(&[]).context("no Debian to install the package on")?;
    let debs = [("kernel.deb", image), ("prezero.deb", prezero.prezero.as_path())];
    boot::test("kernel-package", kernel, &root, "kernel", &debs)
}

fn test(format: Option<Format>) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        // Files of a root file system belong to root.
        say::result("skipped the package's test: it needs root");
        say::result("0 passed, 0 failed, 1 skipped");
        return Ok(ExitCode::SUCCESS);
    }
    let (built, tree) = make(Arch::default())?;
    // Apart from the package that the test installs.
    let to = tree.dir.join("test");
    let old = env!("CARGO_PKG_VERSION");
    let is_wanted = |one| format.is_none_or(|format| format == one);
    let mut code = ExitCode::SUCCESS;
    if is_wanted(Format::Deb) || is_wanted(Format::Dkms) {
        let old = deb::pack(&built, &tree, old, &to)?;
        let new = deb::pack(&built, &tree, NEW, &to)?;
        if is_wanted(Format::Deb) {
            code = worse(code, test_debs(&old, &new)?);
        }
        if is_wanted(Format::Dkms) {
            code = worse(code, test_dkms(&old, &new)?);
        }
    }
    if is_wanted(Format::Rpm) {
        let old = rpm::pack(&built, &tree, old, &to)?;
        let new = rpm::pack(&built, &tree, NEW, &to)?;
        code = worse(code, test_rpms(&old, &new)?);
    }
    Ok(code)
}

/// What an upgrade leads to.
const NEW: &str = "999.0";

fn worse(one: ExitCode, other: ExitCode) -> ExitCode {
    if one == ExitCode::SUCCESS { other } else { one }
}

fn test_debs(old: &deb::Packages, new: &deb::Packages) -> Result<ExitCode> {
    let root = root::archive(&[]).context("no Debian to install the package on")?;
    let debs = [
        ("old.deb", old.prezero.as_path()),
        ("old-lab.deb", old.lab.as_path()),
        ("new.deb", new.prezero.as_path()),
        ("new-lab.deb", new.lab.as_path()),
    ];
    boot::test("package", &built::kernel()?, &root, "run", &debs)
}

fn test_rpms(
    [old, old_lab, _]: &[PathBuf; 3],
    [new, new_lab, _]: &[PathBuf; 3],
) -> Result<ExitCode> {
    let root = root::archive(&[]).context("no Debian to install the package on")?;
    let rpms = [
        ("old.rpm", old.as_path()),
        ("old-lab.rpm", old_lab.as_path()),
        ("new.rpm", new.as_path()),
        ("new-lab.rpm", new_lab.as_path()),
    ];
    boot::test("package-rpm", &built::kernel()?, &root, "rpm", &rpms)
}

fn test_dkms(old: &deb::Packages, new: &deb::Packages) -> Result<ExitCode> {
    let kernel = built::kernel()?;
    let headers = format!("linux-headers-{}", built::release(&kernel)?);
    let debian = root::archive(&["dkms", &headers]);
    let debian = debian.context("no Debian to build the module on")?;
    let mut debs = headers::of_another_kernel()?;
    debs.push(("old-dkms.deb".to_owned(), old.dkms.clone()));
    debs.push(("new-dkms.deb".to_owned(), new.dkms.clone()));
    let scratch = tempfile::tempdir_in(cache::shared("package")?)?;
    let root = scratch.path().join("built.cpio");
    let built = chroot::test(&debian, "dkms-build", &debs, &root)?;
    if built.failed > 0 {
        return Ok(ExitCode::FAILURE);
    }
    boot::test("package-dkms", &kernel, &root, "dkms", &[("prezero.deb", old.prezero.as_path())])
}
