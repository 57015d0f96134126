// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another architecture's libraries that are linked in, from Debian's packages.
//!
//! They are unpacked in our cache and not installed: dpkg would have to know the architecture, and
//! every later `apt-get update` on this machine would read its lists. The C library is the cross
//! compiler's own.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{apt::Suite, cache, command, kernel::Arch};

/// What crates/pins links statically.
const PACKAGES: [&str; 2] = ["libelf-dev", "zlib1g-dev"];

/// The root below which the libraries and their headers are.
pub(super) fn of(arch: Arch) -> Result<PathBuf> {
    let all = cache::shared("sysroot")?;
    let root = all.join(arch.debian());
    if root.exists() {
        return Ok(root);
    }
    let suite = Suite::from_system(arch.debian())?;
    suite.update()?;
    let scratch = tempfile::tempdir_in(&all)?;
    let made = scratch.path().join("root");
    for package in PACKAGES {
        let deb = suite.download(package, scratch.path())?;
        command::run(command::new(scratch.path(), "dpkg-deb", ["-x"]).arg(deb).arg(&made))?;
    }
    fs::rename(&made, &root).with_context(|| format!("cannot make {}", root.display()))?;
    Ok(root)
}

/// Has cargo link them into what it builds for `arch`, if that is not the host's.
pub(crate) fn link(build: &mut Command, arch: Arch) -> Result<()> {
    if arch != Arch::default() {
        let libraries = of(arch)?.join("usr/lib").join(arch.libraries());
        // Of this target alone: the build scripts link the same library for the host.
        let target = arch.rust().replace('-', "_");
        build.env(format!("LIBBPF_SYS_LIBRARY_PATH_{target}"), libraries);
    }
    Ok(())
}
