// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asks: at the other end of a Unix socket, as the kernel saw it at `connect` (or
//! `socketpair`), or in a file system that this process serves.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::block_file::name_of;
use crate::error::{Context, Errno, Error, Result};
use crate::files;
use crate::raw;
use crate::roots::Roots;

/// The credentials of a peer; ids are in the caller's namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process; `None` if it is in a pid namespace that the caller cannot see. May have ended,
    /// and its number may have been given to another.
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

/// Whether the process at the other end has ended, or does so within `patience`: who connected, or
/// who listened (listen(2)) where this end has connected to. The end itself may be open yet, in a
/// child that was made a moment before. False of a process that the caller cannot see. Blocks for
/// `patience`.
///
/// # Errors
/// A descriptor that is no Unix socket; no descriptor left.
pub fn has_ended(socket: impl AsFd, patience: Duration) -> Result<bool> {
    let fd = socket.as_fd();
    let Some(pid) = Peer::of(fd)?.pid else { return Ok(false) };
    match process(fd, pid) {
        Ok(process) => ends_within(&process, patience),
        Err(error) if error.errno() == Some(Errno::SRCH) => Ok(true),
        Err(error) => Err(error),
    }
}

/// A descriptor of the peer's process, whose number is `pid`; readable in `poll` once it ended.
///
/// # Errors
/// ESRCH if it is gone.
pub(crate) fn process(socket: BorrowedFd<'_>, pid: u32) -> Result<OwnedFd> {
    match raw::peer_pidfd(socket) {
        // Before Linux 6.5. A number that was given away since it connected is not noticed.
        Err(Errno::NOPROTOOPT) => {
            let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let number = number.ok_or_else(|| Error::invalid("process", pid, "is none"))?;
            pidfd_open(number, PidfdFlags::empty()).or_call(|| format!("pidfd_open({pid}, 0)"))
        }
        Ok(pidfd) => Ok(pidfd),
        // What kernels say of a process that nobody waits for any more.
        Err(Errno::INVAL | Errno::NODATA) => {
            Err(Errno::SRCH).or_call(|| format!("getsockopt(SO_PEERPIDFD) of process {pid}"))
        }
        Err(errno) => Err(errno).or_call(|| format!("getsockopt(SO_PEERPIDFD) of process {pid}")),
    }
}

/// Whether a process ends so soon. Blocks for `patience`.
pub(crate) fn ends_within(process: &OwnedFd, patience: Duration) -> Result<bool> {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let patience = Timespec::try_from(patience)
        .map_err(|_| Error::invalid("patience", format!("{patience:?}"), "is too long"))?;
    let ready = poll(&mut fds, Some(&patience));
    ready.map(|count| count > 0).or_call(|| "poll(pidfd)".to_owned())
}
