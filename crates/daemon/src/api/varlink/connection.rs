// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection: bounds what its peer can make the daemon remember, and for how long.
//!
//! - No method takes descriptors, and none ever reaches the daemon: the kernel closes descriptors
//!   of bytes that are read without room for control messages (`read(2)` on a unix socket).
//! - A message longer than [`MAX_MESSAGE`] ends the connection.
//! - One message is read and handed on at a time, when it is its user's turn ([`Place::turn`]).
//! - Where calls on its user's sockets take long, they are made by a thread of that user's
//!   ([`Place::aside`]): waking the watchers of the peer's end then holds up no other user.
//! - A reply that is not taken within [`REPLY_TIMEOUT`] ends the connection, and no more than
//!   [`SEND_BUFFER`] of replies wait in the kernel.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use wire::MESSAGE_FDS;

use crate::peers::users::{Aside, Place};

/// The longest message a peer may send. The longest call of the interfaces, all numbers at their
/// largest and each character of its texts escaped, has 1.5 KiB.
pub(super) const MAX_MESSAGE: usize = 4 << 10;
/// How long a peer may leave a reply half taken.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The most replies, in bytes, that wait in the kernel for a peer that does not read; the kernel
/// doubles it.
const SEND_BUFFER: usize = 32 << 10;
/// Bytes of one read: several calls that were sent ahead, or all of any one.
const READ_BYTES: usize = 1 << 10;
/// How often a peer that sends nothing more is checked for still reading: it has no event.
const HALF_CLOSED_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct PeerConnection {
    stream: Rc<UnixStream>,
    place: Rc<Place>,
    /// Read and still here.
    ahead: Vec<u8>,
    /// A read beside the daemon's thread.
    aside: Option<Aside<io::Result<Vec<u8>>>>,
}

impl PeerConnection {
    pub(super) fn new(stream: Rc<UnixStream>, place: Rc<Place>) -> Self {
        if let Err(error) = set_socket_send_buffer_size(&*stream, SEND_BUFFER) {
            tracing::debug!(%error, "the system's default bounds what waits for a peer");
        }
        Self { stream, place, ahead: Vec::new(), aside: None }
    }

    /// Receives the next message, without its end. `None` means that the peer has hung up. Can be
    /// cancelled anywhere: read bytes are in `self` before the next wait.
    ///
    /// # Errors
    /// The message is too long, or the connection is broken.
    pub(super) async fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let end = self.end();
            if end.is_none() && self.aside.is_none() {
                self.stream.readable().await?;
            }
            // Also to read: that wakes every waiter for room at the other end.
            self.place.turn().await;
            if end.is_none() {
                match self.fill().await {
                    Ok(true) => return Ok(None),
                    Ok(false) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(error),
                }
            }
            let end = self.end();
            if end.unwrap_or(self.ahead.len()) > MAX_MESSAGE {
                return Err(io::Error::new(ErrorKind::InvalidData, "the message is too long"));
            }
            if let Some(end) = end {
                return Ok(Some(self.hand_on(end)));
            }
        }
    }

    /// Where the first message ends.
    fn end(&self) -> Option<usize> {
        self.ahead.iter().position(|byte| *byte == wire::END)
    }

    /// Takes the first message.
    fn hand_on(&mut self, end: usize) -> Vec<u8> {
        // Most connections are idle most of the time: they keep no memory for it.
        let rest = self.ahead[end + 1..].to_vec();
        let mut message = std::mem::replace(&mut self.ahead, rest);
        message.truncate(end);
        message
    }

    /// Reads once, if there is anything. Returns whether the peer has hung up.
    async fn fill(&mut self) -> io::Result<bool> {
        let aside = match &mut self.aside {
            Some(aside) => aside,
            None if !self.place.wakes_many() => {
                let mut piece = [0_u8; READ_BYTES];
                let read = self.place.here(|| self.stream.try_read(&mut piece))?;
                self.ahead.extend_from_slice(&piece[..read]);
                return Ok(read == 0);
            }
            None => {
                // Only this connection reads it: the bytes are still there then.
                self.stream.try_io(Interest::READABLE, || is_ready(&self.stream, PollFlags::IN))?;
                let stream = self.stream.as_fd().try_clone_to_owned()?;
                self.aside.insert(self.place.aside(move || read(stream)))
            }
        };
        let done = aside.done().await;
        self.aside = None;
        let piece = done??;
        self.ahead.extend_from_slice(&piece);
        Ok(piece.is_empty())
    }

    /// Sends once, if there is room.
    async fn send_some(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if !self.place.wakes_many() {
            let send = || send(&*self.stream, bytes, fds);
            return self.place.here(|| self.stream.try_io(Interest::WRITABLE, send));
        }
        // Only this connection writes to it: the room is still there then.
        self.stream.try_io(Interest::WRITABLE, || is_ready(&self.stream, PollFlags::OUT))?;
        let stream = self.stream.as_fd().try_clone_to_owned()?;
        let fds: io::Result<Vec<OwnedFd>> =
            fds.iter().map(BorrowedFd::try_clone_to_owned).collect();
        let (bytes, fds) = (bytes.to_vec(), fds?);
        let send = move || {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            send(stream, &bytes, &fds)
        };
        self.place.aside(send).done().await?
    }

    /// Sends a message and the descriptors beside it.
    ///
    /// # Errors
    /// The peer does not take it in time, or the connection is broken.
    pub(super) async fn send(&self, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
        let all: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let (mut sent, mut fds) = (0, &all[..]);
        while sent < bytes.len() {
            // Descriptors belong to the first byte they are sent with. Where they do not fit into
            // one message, each but the last has one byte: the reader adds them up.
            let (now, later) = fds.split_at(fds.len().min(MESSAGE_FDS));
            let end = if later.is_empty() { bytes.len() } else { sent + 1 };
            match self.send_some(&bytes[sent..end], now).await {
                Ok(bytes) => {
                    sent += bytes;
                    fds = later;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    timeout(REPLY_TIMEOUT, self.stream.writable()).await??;
                    self.place.turn().await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Waits until the peer can get no reply any more.
pub(super) async fn hung_up(peer: &Weak<UnixStream>) {
    let Some(peer) = peer.upgrade() else { return };
    // Ready once the peer has closed its end, or shut down what it sends; not when it has sent
    // calls ahead. An error is a connection's end.
    while peer.ready(Interest::PRIORITY).await.is_ok() {
        let mut fds = [PollFd::new(&*peer, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP) {
            return;
        }
        sleep(HALF_CLOSED_POLL_INTERVAL).await;
    }
}

/// Whether the call would transfer anything. Looking wakes no waiter.
fn is_ready(stream: &UnixStream, flags: PollFlags) -> io::Result<()> {
    let mut fds = [PollFd::new(stream, flags)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A signal that is pending fails even a look.
    let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&now)))?;
    if ready == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
}

/// Reads once, without room for descriptors.
fn read(stream: OwnedFd) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; READ_BYTES];
    let (read, _) = recv(stream, &mut piece[..], RecvFlags::DONTWAIT)?;
    piece.truncate(read);
    Ok(piece)
}

/// Sends bytes and descriptors, as much as there is room for.
pub(super) fn send(stream: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags)?)
}

#[cfg(test)]
mod tests {
    use super::super::{AGENTS, BORROWERS};
    use super::*;
    use book::journal::MAX_OWNED_CHARACTERS;
    use serde_json::{Value, json};

    /// The longest value of a parameter, with `O` for each character that can be escaped.
    fn longest(definition: &str, name: &str, varlink_type: &str) -> Value {
        // A name has a longest length, and so has a name together with its owner's.
        let name_length = units::LoanName::MAX_CHARACTERS;
        match (varlink_type.trim_start_matches('?'), name) {
            ("int", _) => json!(u64::MAX),
            ("bool", _) => json!(false),
            ("string", "name" | "prefix" | "after") => json!("O".repeat(name_length)),
            ("string", "owner") => json!("O".repeat(MAX_OWNED_CHARACTERS - name_length)),
            ("string", _) => json!("O".repeat(64)),
            (other, _) => fields(definition, &format!("\ntype {other} (")),
        }
    }

    /// The parameters of a method, or the fields of a type, each as long as it can be.
    fn fields(definition: &str, begin: &str) -> Value {
        let (_, rest) = definition.split_once(begin).expect("a definition");
        let lines = rest.lines().map(str::trim).take_while(|line| !line.starts_with(')'));
        let fields = lines.filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, varlink_type) = line.trim_end_matches(',').split_once(": ")?;
            Some((name.to_owned(), longest(definition, name, varlink_type)))
        });
        Value::Object(fields.collect())
    }

    // Promise P92.
    #[test]
    fn every_call_fits_twice_into_the_longest_message() {
        for (interface, definition) in [BORROWERS, AGENTS] {
            let methods = definition.split("\nmethod ").skip(1);
            for method in methods.filter_map(|text| Some(text.split_once('(')?.0)) {
                let call = json!({
                    "method": format!("{interface}.{method}"),
                    "parameters": fields(definition, &format!("\nmethod {method}(")),
                    "more": false, "oneway": false, "upgrade": false,
                });
                let escaped = call.to_string().replace('O', "\\u004f");
                assert!(escaped.len() * 2 <= MAX_MESSAGE, "{method}: {} bytes", escaped.len());
            }
        }
    }
}
