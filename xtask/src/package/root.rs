// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Debian with systemd, as the kernel unpacks it: a cpio archive, made once.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail};

use crate::{apt, cache, command, say};

const SUITE: &str = "bookworm";
/// Besides the essential packages: an init, the dependencies of prezero's package, and rpm for its
/// other one.
const PACKAGES: &str = "systemd,systemd-sysv,init-system-helpers,kmod,procps,libgcc-s1,rpm";

/// The archive with `more` packages, from the cache if it is there. Delete `package/` of the cache
/// for a newer Debian.
pub(super) fn archive(more: &[&str]) -> Result<PathBuf> {
    let packages = [&[PACKAGES], more].concat().join(",");
    let mut key = cache::Key::default();
    key.add("suite", SUITE.as_bytes());
    key.add("packages", packages.as_bytes());
    let archive = cache::shared("package")?.join(format!("{SUITE}-{}.cpio", key.name()));
    if archive.exists() {
        return Ok(archive);
    }
    apt::need(&["cpio"])?;
    say::step(format_args!("making a Debian {SUITE} with systemd"));
    let scratch = tempfile::tempdir_in(cache::shared("package")?)?;
    let root = scratch.path().join("root");
    debian(&packages, &root)?;
    pack(&root, &scratch.path().join("archive"))?;
    fs::rename(scratch.path().join("archive"), &archive)?;
    Ok(archive)
}

/// Makes a Debian in `root`: the essential packages, and `packages`, by commas.
pub(crate) fn debian(packages: &str, root: &Path) -> Result<()> {
    apt::need(&["mmdebstrap"])?;
    let words = ["--mode=root", "--variant=minbase", &format!("--include={packages}")];
    let mut make = command::new(Path::new("/"), "mmdebstrap", words);
    // Unread files would only be copied at every boot.
    make.arg("--dpkgopt=path-exclude=/usr/share/locale/*")
        .arg("--dpkgopt=path-exclude=/usr/share/doc/*")
        .arg("--dpkgopt=path-exclude=/usr/share/man/*")
        // Java links its pages there and fails without the directory.
        .arg("--essential-hook=mkdir -p \"$1\"/usr/share/man/man1")
        // Where a kernel was installed: the virtual machine is given another copy of it.
        .arg("--customize-hook=rm -f \"$1\"/boot/initrd.img-* \"$1\"/boot/vmlinuz-*")
        // What came with that kernel would ask each device of the machine again at boot.
        .arg("--customize-hook=d=\"$1\"/etc/systemd/system; mkdir -p \"$d\"; ln -sf /dev/null \"$d\"/systemd-udev-trigger.service")
        // The package under test is installed with its documents.
        .arg("--customize-hook=rm -f \"$1\"/etc/dpkg/dpkg.cfg.d/99mmdebstrap")
        .args([SUITE, &root.display().to_string()]);
    command::run(make.stdout(Stdio::null()).stderr(Stdio::null()))
        .context("cannot make a Debian; does apt reach a mirror, and are we root?")
}

/// Unpacks it into a directory that is made.
pub(super) fn unpack(archive: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut unpack = command::new(to, "cpio", ["--quiet", "-idm"]);
    let from = File::open(archive).context("the Debian is gone from the cache")?;
    command::run(unpack.stdin(from))
}

pub(super) fn pack(root: &Path, to: &Path) -> Result<()> {
    let out = File::create(to)?;
    let mut pack = command::new(root, "sh", ["-c"]);
    pack.arg("find . -xdev -not -path './dev/*' -print0 | cpio --null --quiet -o -H newc");
    let status = pack.stdout(out).status().context("cannot start cpio")?;
    if !status.success() {
        bail!("cpio ended with {status}");
    }
    Ok(())
}
