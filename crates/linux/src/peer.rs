// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is at the other end of a Unix socket, as the kernel saw it at `connect` (or `socketpair`).

use std::os::fd::{AsFd, OwnedFd};

use crate::block_file::name_of;
use crate::error::{Advise, Context, Errno, Result};
use crate::raw;

/// The credentials of a connected peer; ids are in the caller's namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process; `None` if it is in a pid namespace that the caller cannot see. May have ended,
    /// and its number may have been given to another: see [`pidfd`].
    pub pid: Option<u32>,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Peer {
    /// Asks the kernel (SO_PEERCRED, SO_PEERGROUPS).
    pub fn of(socket: impl AsFd) -> Result<Self> {
        let fd = socket.as_fd();
        let cred = raw::peer_cred(fd)
            .or_call(|| format!("getsockopt({}, SOL_SOCKET, SO_PEERCRED)", name_of(fd)))?;
        let groups = raw::peer_groups(fd)
            .or_call(|| format!("getsockopt({}, SOL_SOCKET, SO_PEERGROUPS)", name_of(fd)))?;
        let pid = u32::try_from(cred.pid).ok().filter(|&pid| pid != 0);
        Ok(Self { pid, uid: cred.uid, gid: cred.gid, groups })
    }

    /// Whether `gid` is its group or one of its supplementary groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// A descriptor of the peer's process that no reuse of its number can redirect; readable in `poll`
/// once it ended. `None` before Linux 6.5, and if it is gone already.
pub fn pidfd(socket: impl AsFd) -> Result<Option<OwnedFd>> {
    let fd = socket.as_fd();
    match raw::peer_pidfd(fd) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(Errno::NOPROTOOPT | Errno::SRCH | Errno::NODATA) => Ok(None),
        Err(errno) => Err(errno)
            .or_call(|| format!("getsockopt({}, SOL_SOCKET, SO_PEERPIDFD)", name_of(fd)))
            .advise(Errno::MFILE, "raise the limit on open files"),
    }
}
