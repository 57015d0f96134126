// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an attacker sees: the daemon's socket, files that it is lent, and a time to end.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use client::{Client, LendRequest, Loan};
use linux::BlockFile;
use prezero_tests::{Daemon, Page};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use testkit::child::Ready;

use crate::victim::SECRET;

/// What an attacker got: the error that it was meant to get, or the harm that it did.
pub(crate) type Got = Result<String, String>;

/// One attacker's view.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    /// Whom it is about.
    pub daemon: &'a Daemon,
    ready: &'a Ready,
    begun: Instant,
    lasts: Duration,
}

impl<'a> Scene<'a> {
    pub(crate) fn new(daemon: &'a Daemon, ready: &'a Ready, lasts: Duration) -> Self {
        Self { daemon, ready, begun: Instant::now(), lasts }
    }

    /// From here on it is seen what a victim notices.
    pub(crate) fn set_up(&mut self) {
        self.begun = Instant::now();
        self.ready.signal();
    }

    /// Whether the attack is to end.
    pub(crate) fn over(&self) -> bool {
        self.begun.elapsed() >= self.lasts
    }

    /// Sleeps until it is to end.
    pub(crate) fn wait(&self) {
        std::thread::sleep(self.lasts.saturating_sub(self.begun.elapsed()));
    }

    /// A client of the daemon's.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.daemon.socket()).expect("everybody may connect")
    }

    /// Borrows one block of this number of 2 MiB pages, again until the daemon has some.
    ///
    /// # Panics
    /// If that takes longer than 5 s.
    pub(crate) fn borrow(&self, change: impl Fn(&mut LendRequest)) -> Loan {
        let begun = Instant::now();
        loop {
            let mut request = LendRequest::new(Page::Mib2.times(1));
            request.single = true;
            change(&mut request);
            match self.client().lend(&request) {
                Ok(loan) => return loan,
                Err(error) if begun.elapsed() > Duration::from_secs(5) => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// The same, down to its descriptors: the lease and the block.
    pub(crate) fn borrow_file(&self, change: impl Fn(&mut LendRequest)) -> (OwnedFd, BlockFile) {
        let (lease, mut blocks) = self.borrow(change).into_fds();
        let lease = lease.expect("a loan that is held by its lease");
        (lease, BlockFile::from(blocks.pop().expect("one block")))
    }

    /// A connection without any client's manners.
    pub(crate) fn socket(&self) -> std::io::Result<UnixStream> {
        let stream = UnixStream::connect(self.daemon.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.set_write_timeout(Some(Duration::from_millis(200)))?;
        Ok(stream)
    }
}

/// The bytes of a call.
pub(crate) fn message(method: &str, parameters: &Value) -> Vec<u8> {
    let call = json!({ "method": format!("io.prezero.{method}"), "parameters": parameters });
    let mut message = call.to_string().into_bytes();
    message.push(0);
    message
}

/// Calls and returns the answer, or an error's text.
pub(crate) fn call(
    stream: &mut UnixStream,
    method: &str,
    parameters: &Value,
) -> Result<Value, String> {
    stream.write_all(&message(method, parameters)).map_err(|e| e.to_string())?;
    let (mut reply, mut byte) = (Vec::new(), [0]);
    loop {
        match stream.read(&mut byte) {
            Ok(0) => return Err("hung up".to_owned()),
            Ok(_) if byte[0] == 0 => break,
            Ok(_) => reply.push(byte[0]),
            Err(error) => return Err(error.to_string()),
        }
    }
    serde_json::from_slice(&reply).map_err(|e| e.to_string())
}

/// An answer's error, the interface cut off, or its parameters as they are.
pub(crate) fn error_of(reply: &Result<Value, String>) -> String {
    match reply {
        Ok(reply) => match reply["error"].as_str() {
            Some(error) => error.rsplit('.').next().unwrap_or_default().to_owned(),
            None => format!("granted {}", reply["parameters"]),
        },
        Err(error) => error.clone(),
    }
}

/// The path by which a process opens its own descriptor anew.
pub(crate) fn path_of(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Reopens a descriptor by name only.
pub(crate) fn path_only(fd: &impl AsRawFd) -> OwnedFd {
    rustix::fs::open(path_of(fd), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .expect("a path to one's own descriptor")
}

/// What a file looks like that was opened anew after its return: harm if it has memory, a name, and
/// not what its former holder left there.
pub(crate) fn spy(fd: OwnedFd, whose: &str, own: u8) -> Result<(), String> {
    let file = BlockFile::from(fd);
    let mut found = [0_u8; 4096];
    let read = rustix::io::pread(&file, &mut found, 0).unwrap_or(0);
    let pages = file.allocated_bytes().unwrap_or(0) >> 21;
    let named = rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_nlink > 0);
    if found[..read].contains(&SECRET) {
        let written = rustix::io::pwrite(&file, b"EVIL", 0).is_ok();
        return Err(format!("READ a victim's memory through {whose} (and wrote: {written})"));
    }
    if read > 0 && pages > 0 && named && found[0] != own {
        return Err(format!("OPENED a block that is not its own through {whose}"));
    }
    Ok(())
}

/// The error's name in errno(3), `ok` for success.
pub(crate) fn outcome<T>(result: std::io::Result<T>) -> String {
    match result.map_err(|error| error.raw_os_error().ok_or(error)) {
        Ok(_) => "ok".to_owned(),
        Err(Ok(code)) => format!("{:?}", nix::errno::Errno::from_raw(code)),
        Err(Err(error)) => error.to_string(),
    }
}

/// The same of a call of this repository's.
pub(crate) fn errno<T>(result: linux::Result<T>) -> String {
    let code = |error: linux::Error| error.errno().map(std::io::Error::from);
    outcome(result.map_err(|error| code(error).unwrap_or_else(|| std::io::Error::other("?"))))
}
