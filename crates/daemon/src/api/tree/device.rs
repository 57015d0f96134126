// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's end of `/dev/fuse`: where requests come from, and replies and wake-ups go.
//!
//! # Safety
//!
//! The one unsafe call registers the descriptor with the event loop, which demands that it stays
//! the same open file while it is registered. [`TreeDevice`] owns it and keeps it.
#![expect(unsafe_code, reason = "the event loop cannot see who owns a descriptor")]

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use linux::Errno;
use polyfuse_kernel as abi;
use tokio::io::unix::AsyncFd;
use zerocopy::IntoBytes;

use super::wire::TreeReply;

/// The longest request: headers, and the 16383 bytes that an ioctl's number can announce.
const MAX_REQUEST_BYTES: usize = 32 << 10;

/// The kernel's end.
#[derive(Debug)]
pub(super) struct TreeDevice {
    fd: AsyncFd<OwnedFd>,
    wakeups: Arc<Wakeups>,
}

/// The pollers to wake. By a thread of its own: the kernel wakes all watchers of an open file in
/// the time of the caller, and one user can have a hundred thousand epoll sets watch one.
#[derive(Debug, Default)]
struct Wakeups {
    to_wake: Mutex<ToWake>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct ToWake {
    /// Each once, so that the queue is at most as long as the number of open files.
    waiters: BTreeSet<u64>,
    is_over: bool,
}

impl Wakeups {
    fn lock(&self) -> MutexGuard<'_, ToWake> {
        // Every change is one assignment or call of the set: a panic elsewhere leaves it whole.
        self.to_wake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    fn send(&self, fd: &OwnedFd) {
        loop {
            let idle = |to_wake: &mut ToWake| to_wake.waiters.is_empty() && !to_wake.is_over;
            let waited = self.news.wait_while(self.lock(), idle);
            let mut to_wake = waited.unwrap_or_else(PoisonError::into_inner);
            if to_wake.is_over {
                return;
            }
            let waiters = std::mem::take(&mut to_wake.waiters);
            drop(to_wake);
            // A message without a request has its code in the place of the error.
            let code = i32::try_from(abi::FUSE_NOTIFY_POLL).unwrap_or_default();
            for waiter in waiters {
                send(fd, code, 0, abi::fuse_notify_poll_wakeup_out { kh: waiter }.as_bytes());
            }
        }
    }
}

impl Drop for TreeDevice {
    fn drop(&mut self) {
        self.wakeups.lock().is_over = true;
        self.wakeups.news.notify_one();
    }
}

impl TreeDevice {
    /// `fd` must be non-blocking.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let wakeups = Arc::<Wakeups>::default();
        let (sender, copy) = (Arc::clone(&wakeups), fd.try_clone()?);
        let thread = std::thread::Builder::new().name("wakeups".to_owned());
        thread.spawn(move || sender.send(&copy))?;
        // SAFETY: an `OwnedFd` is a valid descriptor until it is dropped, which `AsyncFd` does
        // after it has deregistered it; nothing here gets at it to replace it.
        let registered = unsafe { AsyncFd::register(fd) };
        Ok(Self { fd: registered?, wakeups })
    }

    /// Room for any request.
    pub(super) fn buffer() -> Vec<u8> {
        vec![0; MAX_REQUEST_BYTES]
    }

    /// Waits for a request. `None` when the file system has been unmounted.
    pub(super) async fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            let mut ready = self.fd.readable().await?;
            let read = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut *buffer)?));
            match read.map(|result| result.map_err(|e| Errno::from_io_error(&e))) {
                Ok(Ok(length)) => return Ok(Some(&buffer[..length])),
                Ok(Err(Some(Errno::NODEV))) => return Ok(None),
                // A request that was withdrawn while it was read, a signal, or an empty queue.
                Ok(Err(Some(Errno::NOENT | Errno::INTR | Errno::AGAIN))) | Err(_) => {}
                Ok(Err(Some(errno))) => return Err(errno.into()),
                Ok(Err(None)) => return Err(io::ErrorKind::Other.into()),
            }
        }
    }

    /// The next request, if there is one already.
    pub(super) fn receive_now<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        // What goes wrong, goes wrong again when the next is waited for.
        let length = rustix::io::read(self.fd.get_ref(), &mut *buffer).ok()?;
        Some(&buffer[..length])
    }

    /// Answers a request. Never waits.
    pub(super) fn reply(&self, unique: u64, result: Result<TreeReply, Errno>) {
        let (error, body) = match result {
            Ok(reply) => (0, reply.0),
            Err(errno) => (-errno.raw_os_error(), Vec::new()),
        };
        send(self.fd.get_ref(), error, unique, &body);
    }

    /// Wakes the pollers of the open file that the kernel calls `waiter`. Returns at once.
    pub(super) fn wake(&self, waiter: u64) {
        self.wakeups.lock().waiters.insert(waiter);
        self.wakeups.news.notify_one();
    }
}

fn send(fd: impl AsFd, error: i32, unique: u64, body: &[u8]) {
    let length = size_of::<abi::fuse_out_header>() + body.len();
    let len = u32::try_from(length).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(length);
    message.extend_from_slice(abi::fuse_out_header { len, error, unique }.as_bytes());
    message.extend_from_slice(body);
    match rustix::io::write(fd, &message) {
        // The caller was killed before it was read, or everything is being unmounted.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM) => {}
        Err(error) => tracing::warn!(%error, unique, "the kernel takes no answer"),
    }
}
