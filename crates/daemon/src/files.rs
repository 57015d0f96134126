// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Directories and the socket's place.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::error::{Error, Result};

/// Makes a directory that only the daemon's user can enter, if it is missing.
///
/// # Errors
/// Also where it is there and somebody else can put files into it: a link of theirs would have the
/// daemon write elsewhere, and their file would be believed to be the last daemon's.
pub(crate) fn make_dir(path: &Path) -> Result<()> {
    let failed = |source| Error::Runtime { what: "cannot make the run directory", source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let meta = fs::metadata(path).map_err(failed)?;
    let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
    let user = rustix::process::geteuid().as_raw();
    if owner != user || mode & 0o022 != 0 {
        return Err(Error::NotOurs { path: path.to_owned(), owner, mode, user });
    }
    Ok(())
}

/// Writes a file of the daemon's own: a reader finds all of what was in it or all of `content`.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    // Left by a daemon that was killed right here.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().create_new(true).write(true).mode(0o600).open(&new)?.write_all(content)?;
    fs::rename(new, path)
}

/// Makes a run directory the caller's alone, until the file is closed; `None` if it is another's.
pub(crate) fn lock(run_dir: &Path) -> Result<Option<File>> {
    let failed = |source| Error::Runtime { what: "cannot lock the run directory", source };
    let path = run_dir.join("lock");
    // Nobody else's lock can be waited for or taken: the file is the daemon's user's.
    let open = File::options().create(true).append(true).mode(0o600).open(path);
    let file = open.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Leaves a socket to root and the members of a group: who is none cannot even knock.
pub(crate) fn restrict(path: &Path, group: Option<u32>) -> Result<()> {
    let failed = |source: io::Error| Error::Listen { path: path.to_owned(), source };
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    // The mode first, so that nobody gets in between.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
    match std::os::unix::fs::chown(path, None, group) {
        // Without root the group stays the daemon's own: credentials decide all the same.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        result => result.map_err(failed),
    }
}

/// Binds the socket, replacing one that nobody listens at any more. Blocks for `patience` where
/// somebody does.
///
/// Everybody may connect: who may do what is decided by the peer's credentials, so that a refusal
/// can say why.
pub(crate) fn listen(path: &Path, patience: Duration) -> Result<UnixListener> {
    let failed = |source: io::Error| Error::Listen { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
    }
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {
            if is_served(path, patience)? {
                return Err(Error::Running(path.to_owned()));
            }
            fs::remove_file(path).map_err(failed)?;
        }
        Ok(_) => {
            let taken =
                io::Error::new(ErrorKind::AlreadyExists, "a file that is no socket is there");
            return Err(failed(taken));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Whether a socket is that of a process that lives on. A daemon that was killed while it started a
/// worker leaves its socket to that one, until that has become another program: on a busy machine
/// longer than a restart takes.
fn is_served(path: &Path, patience: Duration) -> Result<bool> {
    let failed = |error: Errno| Error::Listen { path: path.to_owned(), source: error.into() };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let end = Instant::now() + patience;
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(failed)?;
        match connect(&socket, &address) {
            Ok(()) => {
                let patience = end.saturating_duration_since(Instant::now());
                return Ok(!linux::peer::has_ended(&socket, patience)?);
            }
            // So many have knocked already that nobody knows whose it is.
            Err(Errno::AGAIN) if Instant::now() < end => sleep(Duration::from_millis(20)),
            Err(Errno::AGAIN) => return Ok(true),
            Err(_) => return Ok(false),
        }
    }
}
