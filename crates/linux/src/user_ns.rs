// SPDX-License-Identifier: Apache-2.0 OR MIT
//! User namespaces: the maker of a process that runs as one of the many users of a namespace.
//!
//! Where users have subordinate numbers (subuid(5)), each of them is 65,536 users in a namespace
//! that it makes. The kernel knows who made a namespace, and inside which other one.
//!
//! Needs CAP_SYS_PTRACE for processes of other users, as everything in `/proc/PID/ns` does.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::error::{Errno, ErrorContext, Result};
use crate::peer::{self, Peer};
use crate::raw;
use crate::roots::Roots;

/// The user who made the outermost user namespace of a socket's peer, below the caller's own and
/// those that root made. `None` if there is none: then the peer's user
/// number is its own. A kernel without `CONFIG_USER_NS` has no user namespaces.
///
/// Namespaces that root made are containers, and their users as different as any.
///
/// # Errors
/// ESRCH if the process that connected has ended; EACCES or EPERM without the right to look.
pub fn maker(roots: &Roots, socket: impl AsFd, peer: &Peer) -> Result<Option<u32>> {
    let Some(pid) = peer.pid else { return Ok(None) };
    let own = match open(&roots.proc.join("self/ns/user")) {
        // Not of the peer's: that one is missing as well once the peer has ended.
        Err(error) if error.is_not_found() => return Ok(None),
        own => identity(&own?)?,
    };
    let process = peer::process(socket.as_fd(), pid)?;
    let mut namespace = open(&roots.proc.join(format!("{pid}/ns/user")))?;
    // It lived when the file had been opened, so that the number was still its own.
    if peer::ends_within(&process, Duration::ZERO)? {
        return Err(Errno::SRCH).or_call(|| format!("pidfd_open({pid}, 0)"));
    }
    let mut outermost = None;
    while identity(&namespace)? != own {
        let maker = raw::owner_of_namespace(namespace.as_fd())
            .or_call(|| format!("ioctl(/proc/{pid}/ns/user, NS_GET_OWNER_UID)"))?;
        outermost = Some(maker).filter(|uid| *uid != 0).or(outermost);
        namespace = match raw::parent_of_namespace(namespace.as_fd()) {
            Ok(parent) => parent,
            // Beside or above the caller's: then its number was translated already.
            Err(Errno::PERM) => return Ok(None),
            Err(errno) => {
                return Err(errno).or_call(|| format!("ioctl(/proc/{pid}/ns/user, NS_GET_PARENT)"));
            }
        };
    }
    Ok(outermost)
}

fn open(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).or_call(|| format!("open({path:?}, O_RDONLY)"))
}

fn identity(namespace: &OwnedFd) -> Result<(u64, u64)> {
    let stat = rustix::fs::fstat(namespace).or_call(|| "fstat(/proc/PID/ns/user)".to_owned())?;
    Ok((stat.st_dev, stat.st_ino))
}
