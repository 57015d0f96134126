// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Single files with a second path: bound there, for one user to reach, and taken from there again.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::error::{Advise, ErrorContext, Result};
use crate::mountinfo;
use crate::roots::Roots;

/// A file, by its file system's device and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileNumber {
    /// The device's number, as stat(2) has it.
    pub device: u64,
    /// The inode's number.
    pub inode: u64,
}

impl FileNumber {
    /// The number of the file at a path, of the link itself if it is one.
    ///
    /// # Errors
    /// Those of `lstat`.
    pub fn of(path: &Path) -> Result<Self> {
        let file = path.symlink_metadata().or_call(|| format!("lstat({path:?})"))?;
        Ok(Self { device: file.dev(), inode: file.ino() })
    }
}

/// Binds a file at an existing file, which it hides. Both paths are followed; `/proc/self/fd/N`
/// is exactly the file of that descriptor.
///
/// # Errors
/// [`Error::is_denied`](crate::Error::is_denied) without `CAP_SYS_ADMIN`.
pub fn bind(file: &Path, at: &Path) -> Result<()> {
    rustix::mount::mount_bind(file, at)
        .or_call(|| format!("mount({file:?}, {at:?}, MS_BIND)"))
        .advise(Errno::PERM, "needs CAP_SYS_ADMIN: run as root")
}

/// Unbinds a file wherever this process sees it bound by itself. Open and mapped files stay usable.
/// Each place is opened, compared with the file and unbound by its descriptor. So a path that
/// another user changes meanwhile never unmounts another file. Returns the number of places.
///
/// # Errors
/// Those of reading mountinfo. Places that refuse are left.
pub fn unbind(roots: &Roots, file: FileNumber) -> Result<usize> {
    let device = (rustix::fs::major(file.device), rustix::fs::minor(file.device));
    let mounts = mountinfo::read(roots)?.into_iter().filter(|mount| mount.device == device);
    Ok(mounts.filter(|mount| is_unbound(&mount.dir, file)).count())
}

fn is_unbound(place: &Path, file: FileNumber) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(found) = rustix::fs::open(place, flags, Mode::empty()) else { return false };
    let is_it = rustix::fs::fstat(&found)
        .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (file.device, file.inode));
    let by_descriptor = format!("/proc/self/fd/{}", found.as_raw_fd());
    is_it && rustix::mount::unmount(by_descriptor, UnmountFlags::DETACH).is_ok()
}

/// Lets one user reach what lies in a directory of the caller's, mode 0700, and no other user. The
/// user cannot list or change it. Where the file system has no access control lists, every user
/// can reach what is there by its name.
///
/// # Errors
/// Those of `setxattr` and `chmod`.
pub fn let_enter(dir: &Path, user: u32) -> Result<()> {
    let list = access_list(user);
    match rustix::fs::setxattr(dir, "system.posix_acl_access", &list, XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => {
            rustix::fs::chmod(dir, Mode::from_raw_mode(0o711)).or_call(|| format!("chmod({dir:?})"))
        }
        result => result.or_call(|| format!("setxattr({dir:?}, \"system.posix_acl_access\")")),
    }
}

/// The list of acl(5) for a directory of mode 0700 that `user` may search, as the kernel takes it.
fn access_list(user: u32) -> Vec<u8> {
    const ALL: u32 = u32::MAX;
    // Tag, permission, number: owner, user, group, mask, others.
    let entries = [(0x01, 7, ALL), (0x02, 1, user), (0x04, 0, ALL), (0x10, 1, ALL), (0x20, 0, ALL)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permission, number) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(permission));
        list.extend(u32::to_le_bytes(number));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn directory_is_entered_by_its_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let_enter(dir.path(), 65534).unwrap();
        if !rustix::process::geteuid().is_root() {
            testkit::skip("becoming another user needs root");
            return;
        }
        let mode = dir.path().metadata().unwrap().permissions().mode() & 0o777;
        if mode == 0o711 {
            testkit::skip("the file system has no access control lists");
            return;
        }
        let sees = |user: u32| {
            std::thread::scope(|scope| {
                let look = || {
                    let (uid, gid) = (
                        rustix::process::Uid::from_raw(user),
                        rustix::process::Gid::from_raw(user),
                    );
                    rustix::thread::set_thread_groups(&[]).unwrap();
                    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                    let dir = dir.path();
                    (dir.join("file").exists(), dir.read_dir().is_ok(), dir.join("new").exists())
                };
                scope.spawn(look).join().unwrap()
            })
        };
        assert_eq!((sees(65534), sees(65533)), ((true, false, false), (false, false, false)));
    }

    #[test]
    fn unbind_of_another_file_leaves_a_mount() {
        let dir = tempfile::tempdir().unwrap();
        let [file, other, at] = ["file", "other", "at"].map(|name| dir.path().join(name));
        for path in [&file, &other, &at] {
            std::fs::write(path, path.as_os_str().as_encoded_bytes()).unwrap();
        }
        if bind(&file, &at).is_err() {
            testkit::skip("binding needs root");
            return;
        }
        let number = |path: &Path| FileNumber::of(path).unwrap();
        assert_eq!(number(&at), number(&file));
        assert_eq!(unbind(&Roots::default(), number(&other)).unwrap(), 0);
        assert_eq!(number(&at), number(&file));
        assert_eq!(unbind(&Roots::default(), number(&file)).unwrap(), 1);
        assert_ne!(number(&at), number(&file));
    }
}
