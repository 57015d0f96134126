// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernels that Debian ships, and prezero's module for them.
//!
//! `packages` fetches what a release consists of, `headers` what modules are compiled against, with
//! the compiler that the release was made with, `module` compiles kernel/module. Everything is
//! unpacked in the cache, and nothing is installed but what compiles.

mod headers;
mod module;
mod packages;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

pub(crate) use module::Module;

use self::{headers::Headers, packages::Packages};
use crate::{cache, kernel::Arch, say};

/// A kernel of Debian's, for cloud machines, in the newest version that there is of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stock {
    /// The one that Debian 12 came with.
    V6_1,
    /// Long-term support, of Debian 12 and 13.
    V6_12,
    /// The same with locks that sleep, for every machine.
    V6_12Rt,
    /// The same for arm64.
    V6_12Arm64,
    /// Today's, of Debian 13's backports.
    V7_3,
}

/// What `cargo xtask module` is told.
#[derive(Debug, Args)]
pub(crate) struct ModuleArgs {
    /// For which of Debian's kernels.
    #[arg(value_name = "LINUX", default_value = "6.12", value_parser = Stock::named)]
    stock: Stock,
}

/// Builds the module for a kernel of Debian's and prints its path.
pub(crate) fn run(ModuleArgs { stock }: &ModuleArgs) -> Result<ExitCode> {
    say::result(Module::Stock(*stock).build()?.display());
    Ok(ExitCode::SUCCESS)
}

impl Stock {
    const ALL: [Self; 5] = [Self::V6_1, Self::V6_12, Self::V6_12Rt, Self::V6_12Arm64, Self::V7_3];

    /// `6.12`
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V6_12Rt => "6.12-rt",
            Self::V6_12Arm64 => "6.12-arm64",
            Self::V7_3 => "7.3",
        }
    }

    fn named(version: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|stock| stock.version() == version).with_context(|| {
            let versions: Vec<&str> = Self::ALL.iter().map(|stock| stock.version()).collect();
            format!("Debian's kernels here are {}, not {version}", versions.join(", "))
        })
    }

    /// What it runs on.
    pub(crate) fn arch(self) -> Arch {
        match self {
            Self::V6_12Arm64 => Arch::Arm64,
            _ => Arch::X86_64,
        }
    }

    /// The system's package that depends on the newest image, where the system has one.
    fn meta_package(self) -> Option<&'static str> {
        match self {
            Self::V6_1 => Some("linux-image-cloud-amd64"),
            // Those of other architectures have the same versions.
            Self::V6_12 | Self::V6_12Arm64 => Some("linux-image-6.12-cloud-amd64"),
            Self::V6_12Rt => Some("linux-image-6.12-rt-amd64"),
            Self::V7_3 => None,
        }
    }

    /// The bootable image and the directory of its modules, downloaded unless the cache has them.
    pub(crate) fn image(self) -> Result<(PathBuf, PathBuf)> {
        let packages = Packages::find(self)?;
        let dir = packages.unpacked("stock", |packages, root| packages.image(root))?;
        let modules = [dir.join("lib/modules"), dir.join("usr/lib/modules")]
            .into_iter()
            .find(|dir| dir.exists())
            .with_context(|| format!("no modules in {}", dir.display()))?;
        let modules = only_entry(&modules, "")?;
        // Since 7.3 the image lies beside the modules.
        let kernel = match modules.join("vmlinuz") {
            beside if beside.exists() => beside,
            _ => only_entry(&dir.join("boot"), "vmlinuz-")?,
        };
        Ok((kernel, modules.join("kernel")))
    }

    /// What its modules are compiled against, downloaded unless the cache has it.
    fn headers(self) -> Result<Headers> {
        Headers::find(&Packages::find(self)?)
    }
}

/// The first entry of `dir` with a name that begins with `prefix`.
fn only_entry(dir: &Path, prefix: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            return Ok(entry.path());
        }
    }
    bail!("there is no {prefix}* in {}", dir.display())
}

/// `cache/kernel/KIND/RELEASE`, made by `make` beside it and renamed: an interruption leaves
/// nothing.
fn made_once(kind: &str, release: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let all = cache::shared(&format!("kernel/{kind}"))?;
    let dir = all.join(release);
    if dir.exists() {
        return Ok(dir);
    }
    let staging = tempfile::tempdir_in(&all)?;
    let root = staging.path().join("root");
    fs::create_dir(&root)?;
    make(&root)?;
    match fs::rename(&root, &dir) {
        // Another run was faster: its copy is the same.
        Err(_) if dir.exists() => {}
        renamed => renamed.with_context(|| format!("cannot create {}", dir.display()))?,
    }
    Ok(dir)
}
