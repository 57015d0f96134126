// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's end of `/dev/fuse`: where requests come from, and replies and wake-ups go.
//!
//! # Safety
//!
//! The one unsafe call registers the descriptor with the event loop, which demands that it stays
//! the same open file for as long as it is registered. [`Device`] owns it and gives it to nobody.
#![expect(unsafe_code, reason = "the event loop cannot see who owns a descriptor")]

use std::io;
use std::os::fd::OwnedFd;

use linux::Errno;
use polyfuse_kernel as abi;
use tokio::io::unix::AsyncFd;
use zerocopy::IntoBytes;

use super::wire::Reply;

/// The longest request: headers, and the 16383 bytes that an ioctl's number can announce.
const LONGEST_REQUEST: usize = 32 << 10;

/// The kernel's end.
#[derive(Debug)]
pub(super) struct Device(AsyncFd<OwnedFd>);

impl Device {
    /// `fd` must be non-blocking.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` is a valid descriptor until it is dropped, which `AsyncFd` does
        // after it has deregistered it; nothing here gets at it to replace it.
        let registered = unsafe { AsyncFd::register(fd) };
        Ok(Self(registered?))
    }

    /// Room for any request.
    pub(super) fn buffer() -> Vec<u8> {
        vec![0; LONGEST_REQUEST]
    }

    /// Waits for a request. `None` when the file system has been unmounted.
    pub(super) async fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut *buffer)?));
            match read.map(|result| result.map_err(|e| Errno::from_io_error(&e))) {
                Ok(Ok(length)) => return Ok(Some(&buffer[..length])),
                Ok(Err(Some(Errno::NODEV))) => return Ok(None),
                // A request that was withdrawn while it was read, a signal, nothing there after
                // all.
                Ok(Err(Some(Errno::NOENT | Errno::INTR | Errno::AGAIN))) | Err(_) => {}
                Ok(Err(Some(errno))) => return Err(errno.into()),
                Ok(Err(None)) => return Err(io::ErrorKind::Other.into()),
            }
        }
    }

    /// Answers a request. Never waits.
    pub(super) fn reply(&self, unique: u64, result: Result<Reply, Errno>) {
        let (error, body) = match result {
            Ok(reply) => (0, reply.0),
            Err(errno) => (-errno.raw_os_error(), Vec::new()),
        };
        self.send(error, unique, &body);
    }

    /// Wakes whoever polls the open file that the kernel calls `waiter`. Never waits.
    pub(super) fn wake(&self, waiter: u64) {
        // A message that answers nothing has its code in the place of the error.
        let code = i32::try_from(abi::FUSE_NOTIFY_POLL).unwrap_or_default();
        self.send(code, 0, abi::fuse_notify_poll_wakeup_out { kh: waiter }.as_bytes());
    }

    fn send(&self, error: i32, unique: u64, body: &[u8]) {
        let length = size_of::<abi::fuse_out_header>() + body.len();
        let len = u32::try_from(length).unwrap_or(u32::MAX);
        let mut message = Vec::with_capacity(length);
        message.extend_from_slice(abi::fuse_out_header { len, error, unique }.as_bytes());
        message.extend_from_slice(body);
        match rustix::io::write(self.0.get_ref(), &message) {
            // Whoever asked was killed before it was read, or everything is being unmounted.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM) => {}
            Err(error) => tracing::warn!(%error, unique, "the kernel takes no answer"),
        }
    }
}
