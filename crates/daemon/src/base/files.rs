// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Directories and sockets of the daemon's.
//!
//! Every path that an operator gives is resolved once ([`OwnDir`]): from then on no other user can
//! change where it leads. Later changes go through descriptors.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use linux::OwnDir;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen as wait_for,
    socket_with,
};

use crate::base::error::{Error, Result};

/// Clients that may wait to be accepted: as many as the system allows.
pub(crate) const BACKLOG: i32 = -1;
/// The mode of a socket to which root and its owner connect.
pub(crate) const OWNER_ONLY: u32 = 0o600;
/// ... and of one that every user can reach: the peer's credentials decide about rights, so that a
/// refusal can say why.
pub(crate) const ALL_USERS_MODE: u32 = 0o666;
const RUN_DIR: &str = "run directory";
const NO_SOCKET: &str = "a file that is no socket is there";

/// Makes a directory that only the daemon's user can enter, if it is missing.
///
/// # Errors
/// Also where another user can put files into it, or change where its path leads: a link of theirs
/// would have the daemon write elsewhere, and their file would be believed to be the last daemon's.
pub(crate) fn make_dir(path: &Path) -> Result<()> {
    own(path, 0o700, RUN_DIR, "--run-dir").map(drop)
}

/// The same of the run directory. Other users list nothing there; by its name they reach what lies
/// there for them: the socket, the tree, and the files of loans by name.
pub(crate) fn make_run_dir(path: &Path) -> Result<()> {
    own(path, 0o711, RUN_DIR, "--run-dir").map(drop)
}

/// The same of the control tree's directory, which every user may enter.
pub(crate) fn make_tree_dir(path: &Path) -> Result<()> {
    own(path, 0o755, "directory of the control tree", "tree.path").map(drop)
}

fn own(path: &Path, mode: u32, what: &'static str, choose: &'static str) -> Result<OwnDir> {
    OwnDir::make(path, mode).map_err(|source| match source {
        linux::Error::Foreign { .. } => Error::NotOurs { what, source, choose },
        source => Error::Kernel(source),
    })
}

/// Writes a file of the daemon's own: a reader finds either its whole former text or all of
/// `content`.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    // Left by a daemon that was killed right here.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().create_new(true).write(true).mode(0o600).open(&new)?.write_all(content)?;
    std::fs::rename(new, path)
}

/// Makes a run directory the caller's alone, until the file is closed; `None` if it is another's.
pub(crate) fn lock(run_dir: &Path) -> Result<Option<File>> {
    let failed = |source| Error::Runtime { what: "cannot lock the run directory", source };
    let path = run_dir.join("lock");
    // The lock is free of other users: the file is the daemon's user's.
    let open = File::options().create(true).append(true).mode(0o600).open(path);
    let file = open.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Where a socket has its name.
#[derive(Debug)]
struct Place {
    dir: OwnDir,
    name: OsString,
}

impl Place {
    /// The place of that path; missing directories are made.
    fn new(path: &Path) -> Result<Self> {
        let bad = |source| Error::Listen { path: path.to_owned(), source };
        let absolute = std::path::absolute(path).map_err(bad)?;
        let Some((dir, name)) = absolute.parent().zip(absolute.file_name()) else {
            return Err(bad(io::Error::new(ErrorKind::InvalidInput, "the path has no file name")));
        };
        let dir = own(dir, 0o755, "directory of the socket", "--socket or metrics.listen")?;
        Ok(Self { dir, name: name.to_owned() })
    }

    /// The file there; the link itself, if it is one.
    fn open(&self) -> rustix::io::Result<(OwnedFd, FileType)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty())?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        Ok((file, kind))
    }

    fn remove(&self) -> rustix::io::Result<()> {
        rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty())
    }

    /// Changes who may connect to the socket that is there.
    fn give(&self, mode: u32, group: Option<u32>) -> io::Result<()> {
        let (socket, kind) = self.open()?;
        if kind != FileType::Socket {
            return Err(io::Error::new(ErrorKind::AlreadyExists, NO_SOCKET));
        }
        let group = group.map(Gid::from_raw);
        match rustix::fs::chownat(&socket, "", None, group, AtFlags::EMPTY_PATH) {
            // Without root the group stays the daemon's own: credentials decide all the same.
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
        // `fchmod` takes no descriptor of this kind; this path leads to what it is of.
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
    }
}

/// A socket's name, removed when this is dropped: the next start would take one that is left behind
/// for a crash's.
#[derive(Debug)]
pub(crate) struct SocketName(Place);

impl Drop for SocketName {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove() {
            tracing::debug!(%error, name = %self.0.name.display(), "the socket was gone already");
        }
    }
}

/// Leaves a socket to root and the members of a group: others cannot even connect.
pub(crate) fn restrict(path: &Path, group: Option<u32>) -> Result<()> {
    let mode = if group.is_some() { 0o660 } else { OWNER_ONLY };
    let given = Place::new(path)?.give(mode, group);
    given.map_err(|source| Error::Listen { path: path.to_owned(), source })
}

/// Binds the socket, to which those may connect whom `mode` lets, replacing one that no process
/// listens at any more. Blocks for `timeout` where one does.
///
/// It is bound with a mode that lets in root and its owner. Then a descriptor of the socket gives
/// it its own mode: a file that has taken the name by then keeps its mode.
pub(crate) fn listen(
    path: &Path,
    mode: u32,
    timeout: Duration,
) -> Result<(UnixListener, SocketName)> {
    let failed = |source: io::Error| Error::Listen { path: path.to_owned(), source };
    let place = Place::new(path)?;
    match place.open() {
        Ok((_, FileType::Socket)) => {
            if is_served(path, timeout)? {
                return Err(Error::Running(path.to_owned()));
            }
            place.remove().map_err(|errno| failed(errno.into()))?;
        }
        Ok(_) => return Err(failed(io::Error::new(ErrorKind::AlreadyExists, NO_SOCKET))),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed(errno.into())),
    }
    let bound = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The kernel gives the name the mode of the socket.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(OWNER_ONLY))?;
        // By its path, which tools show; it leads nowhere else, as `place` is.
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        wait_for(&socket, BACKLOG)?;
        Ok::<_, Errno>(socket)
    };
    let socket = bound().map_err(|errno| failed(errno.into()))?;
    let name = SocketName(place);
    if mode != OWNER_ONLY {
        name.0.give(mode, None).map_err(failed)?;
    }
    Ok((socket.into(), name))
}

/// Whether a socket is that of a process that lives on. A daemon that was killed while it started a
/// worker leaves its socket to that one, until that has become another program: on a busy machine
/// longer than a restart takes.
fn is_served(path: &Path, timeout: Duration) -> Result<bool> {
    let failed = |error: Errno| Error::Listen { path: path.to_owned(), source: error.into() };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let end = Instant::now() + timeout;
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(failed)?;
        match connect(&socket, &address) {
            Ok(()) => {
                let timeout = end.saturating_duration_since(Instant::now());
                return Ok(!linux::peer::has_ended(&socket, timeout)?);
            }
            // Its queue is full, and the users of the connections are unknown.
            Err(Errno::AGAIN) if Instant::now() < end => sleep(Duration::from_millis(20)),
            Err(Errno::AGAIN) => return Ok(true),
            Err(_) => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    // Promise P261.
    #[test]
    fn a_socket_has_its_mode_and_its_name_is_removed_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/socket");
        for wanted in [ALL_USERS_MODE, OWNER_ONLY] {
            let (listener, name) = listen(&path, wanted, Duration::ZERO).unwrap();
            assert_eq!(mode(&path), wanted);
            std::os::unix::net::UnixStream::connect(&path).unwrap();
            assert!(matches!(listen(&path, wanted, Duration::ZERO), Err(Error::Running(_))));
            restrict(&path, Some(rustix::process::getegid().as_raw())).unwrap();
            assert_eq!(mode(&path), 0o660);
            restrict(&path, None).unwrap();
            assert_eq!(mode(&path), 0o600);
            drop((listener, name));
            assert!(!path.exists());
        }
    }

    // Promise P261.
    #[test]
    fn link_in_place_of_a_socket_keeps_its_targets_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (path, secret) = (dir.path().join("socket"), dir.path().join("secret"));
        std::fs::write(&secret, "").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        assert!(matches!(restrict(&path, Some(0)), Err(Error::Listen { .. })));
        assert!(matches!(listen(&path, ALL_USERS_MODE, Duration::ZERO), Err(Error::Listen { .. })));
        assert_eq!((mode(&secret), path.is_symlink()), (0o600, true));
    }
}
