// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel that a VM boots: ours from the build, Debian's from apt.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::requirements::Kernel;
use crate::{
    apt, cache, command,
    kernel::{Arch, Flavour, Linux, build},
    say,
};

/// A bootable image, and the modules that belong to it.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    /// `lib/modules/RELEASE/kernel`; absent when everything is built in.
    pub(crate) modules: Option<PathBuf>,
}

/// Builds or downloads it, unless the cache has it.
pub(crate) fn of(kernel: &Kernel, linux: Linux, arch: Arch) -> Result<Image> {
    let (config, patched) = match kernel {
        Kernel::Stock => return stock(STOCK, linux, arch),
        Kernel::Stock61 => return stock(STOCK_6_1, linux, arch),
        Kernel::Patched => ("default", true),
        Kernel::PatchedDebug => ("debug", true),
        Kernel::PatchedRt => ("rt", true),
        Kernel::PatchedKcsan => ("kcsan", true),
        Kernel::Patched64k => ("64k", true),
        Kernel::Pristine => ("default", false),
    };
    let kernel = build(&Flavour { linux, arch, config: config.to_owned(), patched })?;
    Ok(Image { kernel, modules: None })
}

/// A package that depends on the newest kernel of a version, and what the name of that begins with.
type Newest = (&'static str, &'static str);

/// What runs in clouds.
const STOCK: Newest = ("linux-image-6.12-cloud-amd64", "linux-image-6.12");
/// The one that Debian 12 came with.
const STOCK_6_1: Newest = ("linux-image-cloud-amd64", "linux-image-6.1.");

/// Downloads Debian's image and unpacks it; it is never installed.
fn stock((newest, prefix): Newest, linux: Linux, arch: Arch) -> Result<Image> {
    if (linux, arch) != (Linux::V6_12, Arch::X86_64) {
        bail!("Debian's own kernels are booted for 6.12 on x86_64 only, not for {linux} on {arch}");
    }
    let package = apt::dependency(newest, prefix)?;
    let dir = cache::shared("kernel/stock")?.join(&package);
    if !dir.join("boot").exists() {
        say::step(format_args!("downloading {package}"));
        let staging = tempfile::tempdir_in(cache::shared("kernel/stock")?)?;
        let deb = apt::download(&package, &staging.path().join("deb"))?;
        let mut unpack = command::new(staging.path(), "dpkg-deb", ["-x"]);
        command::run(unpack.arg(&deb).arg("root"))?;
        match fs::rename(staging.path().join("root"), &dir) {
            Err(_) if dir.join("boot").exists() => {}
            renamed => renamed.with_context(|| format!("cannot create {}", dir.display()))?,
        }
    }
    let kernel = only_entry(&dir.join("boot"), "vmlinuz-")?;
    let modules = only_entry(&dir.join("lib/modules"), "")?.join("kernel");
    Ok(Image { kernel, modules: Some(modules) })
}

fn only_entry(dir: &Path, prefix: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            return Ok(entry.path());
        }
    }
    bail!("there is no {prefix}* in {}", dir.display())
}

impl Image {
    /// The module and everything it depends on, in loading order.
    pub(crate) fn module(&self, name: &str) -> Result<Vec<PathBuf>> {
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
