// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mounts that this process sees: `/proc/self/mountinfo`, proc(5).

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;

use crate::error::{Advise, Errno, Error, ErrorContext, Result};
use crate::files;
use crate::roots::Roots;

/// One mount.
#[derive(Debug)]
pub(crate) struct MountEntry {
    /// Its device's major and minor number.
    pub(crate) device: (u32, u32),
    /// What of its file system is mounted: `/` for all of it.
    pub(crate) root: PathBuf,
    /// Where it is mounted.
    pub(crate) dir: PathBuf,
    /// The kind of its file system, `hugetlbfs` or `fuse.prezero`.
    pub(crate) kind: String,
    /// The options of the file system itself, separated by commas.
    pub(crate) options: String,
    line: String,
}

impl MountEntry {
    /// That its line lacks what every mount of that kind has.
    pub(crate) fn malformed(&self, roots: &Roots) -> Error {
        malformed(roots, &self.line)
    }
}

/// All mounts, in the order they were mounted.
pub(crate) fn read(roots: &Roots) -> Result<Vec<MountEntry>> {
    let text = files::read(&path(roots))?;
    text.lines().map(|line| parse(line).ok_or_else(|| malformed(roots, line))).collect()
}

/// Takes a mount out of the tree at once. Open and mapped files on it stay usable.
pub(crate) fn detach(dir: &Path) -> Result<()> {
    rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
        .or_call(|| format!("umount2({dir:?}, UMOUNT_NOFOLLOW|MNT_DETACH)"))
        .advise(Errno::PERM, "needs CAP_SYS_ADMIN: run as root")
}

fn path(roots: &Roots) -> PathBuf {
    roots.proc.join("self/mountinfo")
}

fn malformed(roots: &Roots, line: &str) -> Error {
    Error::malformed(path(roots), "a mountinfo line", line)
}

/// `36 35 98:0 /root /mount/point options [tags...] - kind source super,options`
fn parse(line: &str) -> Option<MountEntry> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let (major, minor) = before.split(' ').nth(2)?.split_once(':')?;
    Some(MountEntry {
        device: (major.parse().ok()?, minor.parse().ok()?),
        root: unescape(before.split(' ').nth(3)?),
        dir: unescape(before.split(' ').nth(4)?),
        kind: after.next()?.to_owned(),
        options: after.nth(1).unwrap_or_default().to_owned(),
        line: line.to_owned(),
    })
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = text.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        if let Some(byte) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            out.push(byte);
            at += 4;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    std::ffi::OsString::from_vec(out).into()
}
