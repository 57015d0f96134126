// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mounting a FUSE file system by mount(2) itself, without fusermount: what serves it is root.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use crate::error::{Advise, Errno, Error, ErrorContext, Result};
use crate::mountinfo;
use crate::roots::Roots;

/// The kernel's end of every FUSE file system.
const DEVICE: &str = "/dev/fuse";

/// A mounted FUSE file system. Dropping this leaves it mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseMount {
    /// Where it is mounted.
    pub dir: PathBuf,
}

/// Opens the device for a new file system: non-blocking, close-on-exec. Where the kernel has FUSE
/// as an unloaded module, the open loads it.
///
/// # Errors
/// ENOENT or ENODEV without FUSE in the kernel; [`Error::is_denied`] without the right to open it.
pub fn open_device() -> Result<OwnedFd> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        .or_call(|| format!("open({DEVICE:?}, O_RDWR|O_NONBLOCK|O_CLOEXEC)"))
        .advise(Errno::NOENT, "this kernel has no FUSE: load its module, fuse")
        .advise(Errno::NODEV, "this kernel has no FUSE: load its module, fuse")
        .advise(Errno::NXIO, "this kernel has no FUSE: load its module, fuse")
        .advise(Errno::ACCESS, "run as root")
        .advise(Errno::PERM, "the device is not allowed in this container")
}

/// Mounts the file system served through `device` on `dir`, which must exist, as `fuse.KIND`, with
/// `nosuid,nodev,noexec`. The kernel checks the files' modes (`default_permissions`) and admits
/// every user that they allow (`allow_other`).
///
/// Returns before the server has answered anything: the kernel's first request waits in `device`.
///
/// # Errors
/// [`Error::is_denied`] without `CAP_SYS_ADMIN`; ENODEV without FUSE in the kernel.
pub fn mount(dir: &Path, device: &OwnedFd, kind: &str) -> Result<FuseMount> {
    let options = format!(
        "fd={},rootmode=40755,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let data = CString::new(options.as_str())
        .map_err(|_| Error::invalid("mount options", &options, "contain a zero byte"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let name = format!("fuse.{kind}");
    rustix::mount::mount(kind, dir, name.as_str(), flags, data.as_c_str())
        .or_call(|| format!("mount({kind:?}, {dir:?}, {name:?}, nosuid|nodev|noexec, {options:?})"))
        .advise(Errno::PERM, "needs CAP_SYS_ADMIN: run as root")
        .advise(Errno::NODEV, "this kernel has no FUSE: load its module, fuse")?;
    Ok(FuseMount { dir: dir.to_owned() })
}

impl FuseMount {
    /// Takes it out of the tree at once. Open files on it stay open, and are answered while the
    /// server has the device open; ENOTCONN afterwards.
    pub fn detach(&self) -> Result<()> {
        mountinfo::detach(&self.dir)
    }
}

/// The `fuse.KIND` mounts on `dir` itself: a server that was killed leaves one, and its path
/// answers ENOTCONN to everything but this.
pub fn find(roots: &Roots, dir: &Path, kind: &str) -> Result<Vec<FuseMount>> {
    let kind = format!("fuse.{kind}");
    let mounts = mountinfo::read(roots)?.into_iter();
    let found = mounts.filter(|entry| entry.kind == kind && entry.dir == dir);
    Ok(found.map(|entry| FuseMount { dir: entry.dir }).collect())
}
