// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel that a VM boots: ours from the build, Debian's from apt.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::requirements::Kernel;
use crate::{
    command,
    kernel::{Arch, Flavour, Linux, build},
    stock::{Module, Stock},
};

/// A bootable image, and the modules that belong to it.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    /// `lib/modules/RELEASE/kernel`; absent when everything is built in.
    pub(crate) modules: Option<PathBuf>,
    /// prezero's own, for a kernel that it can be compiled for.
    pub(crate) prezero: Option<Module>,
}

/// The module that is compiled and not found.
pub(super) const PREZERO: &str = "prezero";

/// Builds or downloads it, unless the cache has it.
pub(crate) fn of(kernel: &Kernel, linux: Linux, arch: Arch) -> Result<Image> {
    let (config, patched) = match kernel {
        Kernel::Stock if arch == Arch::Arm64 => return debians(Stock::V6_12Arm64, linux, arch),
        Kernel::Stock => return debians(Stock::V6_12, linux, arch),
        Kernel::StockRt => return debians(Stock::V6_12Rt, linux, arch),
        Kernel::Stock61 => return debians(Stock::V6_1, linux, arch),
        Kernel::Stock73 => return debians(Stock::V7_3, linux, arch),
        Kernel::Patched => ("default", true),
        Kernel::PatchedDebug => ("debug", true),
        Kernel::PatchedRt => ("rt", true),
        Kernel::PatchedKcsan => ("kcsan", true),
        Kernel::Patched64k => ("64k", true),
        Kernel::Pristine => ("default", false),
        Kernel::ModuleDebug => ("debug+module", false),
    };
    let flavour = Flavour { linux, arch, config: config.to_owned(), patched };
    let kernel = build(&flavour)?;
    Ok(Image { kernel, modules: None, prezero: Some(Module::Built(flavour)) })
}

/// Debian's own. They are no tree's: their names say the version.
fn debians(stock: Stock, linux: Linux, arch: Arch) -> Result<Image> {
    if (linux, arch) != (Linux::default(), stock.arch()) {
        bail!(
            "Debian's own {} is not booted for the tree {linux} on {arch}: stock is its kernel \
             for x86_64 and arm64, stock-rt, stock-6.1 and stock-7.3 are for x86_64",
            stock.version()
        );
    }
    let (kernel, modules) = stock.image()?;
    Ok(Image { kernel, modules: Some(modules), prezero: Some(Module::Stock(stock)) })
}

impl Image {
    /// The module and everything it depends on, in loading order.
    pub(crate) fn module(&self, name: &str) -> Result<Vec<PathBuf>> {
        if let (PREZERO, Some(prezero)) = (name, &self.prezero) {
            return Ok(vec![prezero.build()?]);
        }
        let Some(modules) = &self.modules else { return Ok(Vec::new()) };
        let path = find_module(modules, name)?
            .with_context(|| format!("no module {name} in {}", modules.display()))?;
        let depends =
            command::stdout(command::new(modules, "modinfo", ["-F", "depends"]).arg(&path))?;
        let mut all = Vec::new();
        for dependency in depends.trim().split(',').filter(|name| !name.is_empty()) {
            for path in self.module(dependency)? {
                if !all.contains(&path) {
                    all.push(path);
                }
            }
        }
        all.push(path);
        Ok(all)
    }
}

/// `NAME.ko` or `NAME.ko.xz` below `dir`; `-` and `_` are the same in names.
fn find_module(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    let wanted = name.replace('-', "_");
    let mut pending = vec![dir.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                pending.push(entry.path());
                continue;
            }
            let file = entry.file_name().to_string_lossy().replace('-', "_");
            let stem = file.split_once(".ko").map(|(stem, _)| stem);
            if stem == Some(wanted.as_str()) {
                return Ok(Some(entry.path()));
            }
        }
    }
    Ok(None)
}
