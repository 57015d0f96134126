// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asks: at the other end of a Unix socket, as the kernel saw it at `connect` (or
//! `socketpair`), or in a file system that this process serves.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::block_file::name_of;
use crate::error::{Errno, Error, ErrorContext, Result};
use crate::files;
use crate::raw;
use crate::roots::Roots;

/// The most supplementary groups that are looked at. A process may have 65,536. The kernel
/// translates and copies each in the time of the caller: 2 to 4 ms a socket, 50 ms a request.
pub const MAX_GROUPS: usize = 256;
/// A procfs line with this number of groups, of ten digits each, fits.
const MAX_LINE_BYTES: u64 = 16 + 11 * MAX_GROUPS as u64;

/// The credentials of a peer; ids are in the caller's namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process; `None` if it is in a pid namespace that the caller cannot see. May have ended,
    /// and its number may have been given to another.
    pub pid: Option<u32>,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

impl Peer {
    /// Asks the kernel (SO_PEERCRED), which answers at once, whatever the peer is.
    pub fn from_socket(socket: impl AsFd) -> Result<Self> {
        let fd = socket.as_fd();
        let cred = raw::peer_cred(fd)
            .or_call(|| format!("getsockopt({}, SOL_SOCKET, SO_PEERCRED)", name_of(fd)))?;
        let pid = u32::try_from(cred.pid).ok().filter(|&pid| pid != 0);
        Ok(Self { pid, uid: cred.uid, gid: cred.gid })
    }
}

/// The supplementary groups of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerGroups {
    /// All of them.
    Known(Vec<u32>),
    /// More than [`MAX_GROUPS`]: the list was left unread.
    TooMany,
}

impl PeerGroups {
    /// Asks the kernel (SO_PEERGROUPS), with room for [`MAX_GROUPS`]: for a peer with more it
    /// copies none.
    pub fn from_socket(socket: impl AsFd) -> Result<Self> {
        let fd = socket.as_fd();
        let mut room = [0; MAX_GROUPS];
        match raw::peer_groups(fd, &mut room) {
            Ok(count) => Ok(Self::Known(room[..count].to_vec())),
            Err(Errno::RANGE) => Ok(Self::TooMany),
            Err(errno) => Err(errno)
                .or_call(|| format!("getsockopt({}, SOL_SOCKET, SO_PEERGROUPS)", name_of(fd))),
        }
    }

    /// Those of a thread that waits in a request to a file system of ours, which procfs says; a
    /// thread that is not visible there has none. Takes no memory for more than [`MAX_GROUPS`],
    /// but the kernel writes them all down first: up to 50 ms of the calling thread.
    ///
    /// # Errors
    /// A malformed `Groups:` line.
    pub fn from_request(roots: &Roots, thread: u32) -> Result<Self> {
        let path = roots.proc.join(format!("{thread}/status"));
        let mut status = match File::open(&path).or_call(|| format!("open({path:?})")) {
            Ok(file) => BufReader::new(file),
            Err(error) if error.is_not_found() => return Ok(Self::Known(Vec::new())),
            Err(error) => return Err(error),
        };
        let mut line = Vec::new();
        while {
            line.clear();
            let read = (&mut status).take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
            read.or_call(|| format!("read({path:?})"))? > 0
        } {
            // At the begin of a line: a process may have this text as its name.
            let Some(groups) = line.strip_prefix(b"Groups:") else { continue };
            if !groups.ends_with(b"\n") {
                return Ok(Self::TooMany);
            }
            let groups = String::from_utf8_lossy(groups);
            let number = |gid| files::parse(&path, "a group's number", gid);
            let groups: Vec<_> = groups.split_whitespace().map(number).collect::<Result<_>>()?;
            return Ok(if groups.len() > MAX_GROUPS { Self::TooMany } else { Self::Known(groups) });
        }
        Ok(Self::Known(Vec::new()))
    }

    /// Whether `gid` is known to be one of them.
    pub fn contains(&self, gid: u32) -> bool {
        match self {
            Self::Known(groups) => groups.contains(&gid),
            Self::TooMany => false,
        }
    }
}

/// Whether the process at the other end has ended, or does so within `timeout`: who connected, or
/// who listened (listen(2)) where this end has connected to. The end itself may be open yet, in a
/// child that was made a moment before. False of a process that the caller cannot see. Blocks for
/// `timeout`.
///
/// # Errors
/// A descriptor that is no Unix socket; no descriptor left.
pub fn has_ended(socket: impl AsFd, timeout: Duration) -> Result<bool> {
    let fd = socket.as_fd();
    let Some(pid) = Peer::from_socket(fd)?.pid else { return Ok(false) };
    match process(fd, pid) {
        Ok(process) => ends_within(&process, timeout),
        Err(error) if error.errno() == Some(Errno::SRCH) => Ok(true),
        Err(error) => Err(error),
    }
}

/// A descriptor of the peer's process with the number `pid`; readable in `poll` once it ended.
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
        // The kernels' texts for a process that was already reaped.
        Err(Errno::INVAL | Errno::NODATA) => {
            Err(Errno::SRCH).or_call(|| format!("getsockopt(SO_PEERPIDFD) of process {pid}"))
        }
        Err(errno) => Err(errno).or_call(|| format!("getsockopt(SO_PEERPIDFD) of process {pid}")),
    }
}

/// Whether a process ends so soon. Blocks for `timeout`.
pub(crate) fn ends_within(process: &OwnedFd, timeout: Duration) -> Result<bool> {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let begin = Instant::now();
    loop {
        let left = timeout.saturating_sub(begin.elapsed());
        let timeout = Timespec::try_from(left)
            .map_err(|_| Error::invalid("timeout", format!("{timeout:?}"), "is too long"))?;
        match poll(&mut fds, Some(&timeout)) {
            // A signal to this process says nothing of the other.
            Err(Errno::INTR) => {}
            ready => return ready.map(|count| count > 0).or_call(|| "poll(pidfd)".to_owned()),
        }
    }
}
