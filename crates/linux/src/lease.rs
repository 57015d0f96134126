// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Named leases: a FIFO with the read end at the client, so the close of its last copy is the end.
//!
//! Each has a directory of its own. To unlink a name the kernel locks its directory and then waits,
//! with that lock held, for the FIFO's lock. A process with an `O_PATH` descriptor of the FIFO can
//! hold that one for any time (chmod(2) in threads that get no CPU time: 28 ms and more). No
//! descriptor of the FIFO leads to its directory, so only the call that ends this lease waits for
//! it.
//!
//! The client and every process that inherits or receives a copy hold the only read end. The daemon
//! holds a write end and never writes. The promises of a FIFO (fifo(7), pipe(7)), tested in
//! `tests/real/lease.rs`:
//! - While no read end is open, the write end polls as `POLLERR`: the lease ended. `exit`, a crash
//!   and SIGKILL close as `close` does.
//! - Opening the write end with `O_NONBLOCK` fails with ENXIO if no read end is open. So a
//!   restarted daemon learns which leases outlived it, by name, with no help from the client.
//! - The client sees only an end-of-file of the daemon's restart, if it reads meanwhile.
//!
//! Creating a lease, finding it again and removing it cost 20 us together (`examples/costs.rs`).
//!
//! In an epoll set (tokio: `AsyncFd` with `Interest::ERROR`) the error event comes unasked; the
//! write end counts as writable all the time, so do not ask for that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use crate::block_dir::check_name;
use crate::error::{Errno, Error, ErrorContext, Result};

/// The name of the FIFO in a lease's directory.
const FIFO: &str = "lease";

/// A directory of leases, one directory with a FIFO each; any file system that has FIFOs.
#[derive(Debug)]
pub struct LeaseDir {
    path: PathBuf,
    fd: OwnedFd,
}

/// The daemon's end of one lease. Dropping it leaves the lease alive.
#[derive(Debug)]
pub struct DaemonEnd(OwnedFd);

impl LeaseDir {
    /// Opens `path`, which must exist. Mode 0700 keeps other users from opening an end by path.
    pub fn open(path: &Path) -> Result<Self> {
        let fd = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .or_call(|| format!("open({path:?}, O_DIRECTORY)"))?;
        Ok(Self { path: path.to_owned(), fd })
    }

    /// Opens the directory `name` of the open directory `parent`, which `path` only names, and
    /// makes it if it is missing, mode 0700.
    pub fn open_in(parent: BorrowedFd<'_>, path: &Path, name: &str) -> Result<Self> {
        check_name(name)?;
        match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno).or_call(|| format!("mkdir({path:?}, {name:?}, 0700)")),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(parent, name, flags, Mode::empty())
            .or_call(|| format!("openat({path:?}, {name:?}, O_DIRECTORY|O_NOFOLLOW)"))?;
        Ok(Self { path: path.join(name), fd })
    }

    /// Begins a lease: the client's end to send away, and the daemon's to watch.
    ///
    /// The lease lasts while any copy of the client's end is open, so drop yours once it is sent.
    ///
    /// # Errors
    /// EEXIST if the id is taken.
    pub fn create(&self, id: &str) -> Result<(OwnedFd, DaemonEnd)> {
        check_name(id)?;
        rustix::fs::mkdirat(&self.fd, id, Mode::RWXU)
            .or_call(|| format!("mkdirat({:?}, {id:?}, 0700)", self.path))?;
        let fifo = in_lease(id);
        let ends = || {
            rustix::fs::mknodat(&self.fd, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                .or_call(|| format!("mknodat({:?}, {fifo:?}, S_IFIFO|0600)", self.path))?;
            let client = open_end(&self.fd, &self.path, &fifo, OFlags::RDONLY)?;
            Ok((client, DaemonEnd(open_end(&self.fd, &self.path, &fifo, OFlags::WRONLY)?)))
        };
        ends().inspect_err(|_| {
            // The error that counts is the first; a name left behind reads as an ended lease.
            drop(self.remove(id));
        })
    }

    /// Finds a lease again, after a restart: `None` if its client is gone, or that id is unused.
    pub fn reopen(&self, id: &str) -> Result<Option<DaemonEnd>> {
        check_name(id)?;
        match open_end(&self.fd, &self.path, &in_lease(id), OFlags::WRONLY) {
            Ok(fd) => Ok(Some(DaemonEnd(fd))),
            Err(error) if matches!(error.errno(), Some(Errno::NXIO | Errno::NOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Forgets a lease. Both ends live on, but it cannot be found again. Waits for processes that
    /// change the FIFO by a descriptor of it.
    pub fn remove(&self, id: &str) -> Result<()> {
        check_name(id)?;
        let call = || format!("unlinkat({:?}, {id:?})", self.path);
        match rustix::fs::unlinkat(&self.fd, in_lease(id), AtFlags::empty()) {
            // A crash may have come between the two.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).or_call(call),
        }
        rustix::fs::unlinkat(&self.fd, id, AtFlags::REMOVEDIR).or_call(call)
    }

    /// All ids, ended leases included, sorted.
    pub fn list(&self) -> Result<Vec<String>> {
        let mut ids = names(&self.fd, &self.path)?;
        ids.sort();
        Ok(ids)
    }
}

/// The path of a lease's FIFO from the directory of all leases.
fn in_lease(id: &str) -> String {
    format!("{id}/{FIFO}")
}

fn open_end(dir: &OwnedFd, path: &Path, name: &str, end: OFlags) -> Result<OwnedFd> {
    let flags = end | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
        .or_call(|| format!("openat({path:?}, {name:?}, {end:?}|O_NONBLOCK)"))
}

/// The names of the directories in a directory.
fn names(dir: &OwnedFd, path: &Path) -> Result<Vec<String>> {
    let call = || format!("getdents64({path:?})");
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).or_call(call)? {
        let entry = entry.or_call(call)?;
        let name = entry.file_name();
        if entry.file_type() != FileType::Directory || name == c"." || name == c".." {
            continue;
        }
        let name = name.to_str().map_err(|_| {
            Error::invalid("lease", format!("{name:?}"), "is not prezero's: remove the file")
        })?;
        names.push(name.to_owned());
    }
    Ok(names)
}

impl DaemonEnd {
    /// Whether the client's last copy is closed. Does not block.
    pub fn has_ended(&self) -> Result<bool> {
        // A signal that is pending fails even a look.
        let look = || self.poll(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        loop {
            match look() {
                Err(error) if error.errno() == Some(Errno::INTR) => {}
                looked => return looked,
            }
        }
    }

    /// Waits until the lease ends (true) or `timeout` is over (false). A signal ends it with EINTR.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        // A timeout out of range is 292 billion years: for ever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        self.poll(timeout.as_ref())
    }

    fn poll(&self, timeout: Option<&Timespec>) -> Result<bool> {
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        rustix::event::poll(&mut fds, timeout).or_call(|| "ppoll(lease)".into())?;
        Ok(fds[0].revents().contains(PollFlags::ERR))
    }
}

impl AsFd for DaemonEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// For an event loop to watch: POLLERR is the lease's end.
impl From<DaemonEnd> for OwnedFd {
    fn from(end: DaemonEnd) -> Self {
        end.0
    }
}
