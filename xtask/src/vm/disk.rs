// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk with a Debian on it, for programs that are more than a file and its libraries.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use serde::Deserialize;

use crate::{apt, cache, command, package, say};

/// Which disk a machine has. It is read only.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Disk {
    /// The programs of `tests/vm/programs`.
    Programs,
}

/// Their places, besides the essential packages.
const PROGRAMS: &str = "dpdk-dev,libmimalloc2.0,mariadb-server,openjdk-17-jdk-headless,php8.2-cli,\
                        php8.2-opcache,postgresql,procps,qemu-system-x86,util-linux";
/// As large as it can grow: its empty parts take no space.
const BYTES: u64 = 4 << 30;

impl Disk {
    /// The image, made unless the cache has it. Delete `disk/` of the cache for newer programs.
    pub(super) fn image(self) -> Result<PathBuf> {
        let packages = match self {
            Self::Programs => PROGRAMS,
        };
        let mut key = cache::Key::default();
        key.add("packages", packages.as_bytes());
        let all = cache::shared("disk")?;
        let image = all.join(format!("{}.ext4", key.name()));
        if image.exists() {
            return Ok(image);
        }
        apt::need(&["e2fsprogs"])?;
        say::step(format_args!("making a disk with {packages}"));
        let scratch = tempfile::tempdir_in(&all)?;
        let root = scratch.path().join("root");
        package::debian(packages, &root)?;
        pack(&root, &scratch.path().join("image"))?;
        fs::rename(scratch.path().join("image"), &image)?;
        Ok(image)
    }

    /// Plugs it in, as `/dev/vda`.
    pub(super) fn plug(image: &Path, qemu: &mut Command) {
        let drive = format!("file={},format=raw,if=none,id=disk,readonly=on", image.display());
        qemu.args(["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"]);
    }
}

/// Writes a file system with the content of `root` to `to`.
fn pack(root: &Path, to: &Path) -> Result<()> {
    File::create(to)?.set_len(BYTES)?;
    // It is read only: no journal, and no room for root alone.
    let words = ["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d"];
    command::run(command::new(root, "/sbin/mke2fs", words).arg(root).arg(to))
}
