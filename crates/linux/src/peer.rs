// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asks: at the other end of a Unix socket, as the kernel saw it at `connect` (or
//! `socketpair`), or in a file system that this process serves.

use std::os::fd::{AsFd, OwnedFd};

use crate::block_file::name_of;
use crate::error::{Advise, Context, Errno, Result};
use crate::files;
use crate::raw;
use crate::roots::Roots;

/// The credentials of a peer; ids are in the caller's namespaces.
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

    /// A thread that waits in a request to a file system of ours, by what the request says of it.
    /// Its supplementary groups, which requests lack, are read from procfs; a thread that is not
    /// visible there has none.
    ///
    /// # Errors
    /// A `Groups:` line that is none.
    pub fn of_request(roots: &Roots, thread: u32, uid: u32, gid: u32) -> Result<Self> {
        let file = roots.proc.join(format!("{thread}/status"));
        let status = files::read_if_there(&file)?.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        let groups = line.unwrap_or_default().split_whitespace();
        let groups = groups.map(|gid| files::parse(&file, "a group's number", gid));
        let pid = Some(thread).filter(|pid| *pid != 0);
        Ok(Self { pid, uid, gid, groups: groups.collect::<Result<_>>()? })
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
