// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection's socket: bounds what its peer can make the daemon remember, and for how long.
//!
//! - No method takes descriptors, and none ever reaches the daemon: what is read without room for
//!   control messages has its descriptors closed by the kernel (`read(2)` on a unix socket).
//! - A message longer than [`LONGEST_MESSAGE`] ends the connection.
//! - One message is read and handed on at a time, when it is its user's turn ([`Place::turn`]).
//! - Where calls on its user's sockets take long, they are made by a thread of that user's
//!   ([`Place::aside`]): what wakes whoever watches the peer's end holds up nobody else.
//! - A reply that is not taken within [`DEAF`] ends the connection, and no more than
//!   [`SEND_BUFFER`] of replies wait in the kernel.

use std::future::pending;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use wire::MESSAGE_FDS;
use zlink::connection::PassedCredentials;
use zlink::connection::socket::{self, ReadResult};

use super::answer::Answer;
use crate::peers::users::{Aside, Place};

/// The longest message a peer may send. The longest that the interface has, all numbers at their
/// largest and each character of the owner's name escaped, is below 1 KiB.
pub(super) const LONGEST_MESSAGE: usize = 4 << 10;
/// How long a peer may leave a reply half taken.
const DEAF: Duration = Duration::from_secs(10);
/// What waits in the kernel for a peer that does not read; the kernel doubles it.
const SEND_BUFFER: usize = 32 << 10;
/// Bytes of one read: several calls that were sent ahead, or all of any one.
const PIECE: usize = 1 << 10;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Rc<UnixStream>,
    place: Rc<Place>,
    broken: Rc<Notify>,
    answer: Answer,
}

#[derive(Debug)]
pub(super) struct ReadHalf {
    stream: Rc<UnixStream>,
    place: Rc<Place>,
    answer: Answer,
    /// Read and not handed on yet.
    ahead: Vec<u8>,
    unfinished: usize,
    /// What is being read beside the daemon's thread.
    aside: Option<Aside<io::Result<Vec<u8>>>>,
}

#[derive(Debug)]
pub(super) struct WriteHalf {
    stream: Rc<UnixStream>,
    place: Rc<Place>,
    /// Says that nothing can be written any more. zlink would say so in the log at each reply that
    /// a peer did not wait for, so it never hears of it.
    broken: Rc<Notify>,
    answer: Answer,
}

impl Socket {
    /// `answer` has what zlink does not write itself; `broken` is told when the peer takes no reply
    /// any more: the connection is to end then.
    pub(super) fn new(
        stream: Rc<UnixStream>,
        place: Rc<Place>,
        broken: Rc<Notify>,
        answer: Answer,
    ) -> Self {
        if let Err(error) = set_socket_send_buffer_size(&*stream, SEND_BUFFER) {
            tracing::debug!(%error, "the system's default bounds what waits for a peer");
        }
        answer.goes_to(&stream);
        Self { stream, place, broken, answer }
    }
}

impl socket::Socket for Socket {
    type ReadHalf = ReadHalf;
    type WriteHalf = WriteHalf;
    const CAN_TRANSFER_FDS: bool = true;

    fn split(self) -> (ReadHalf, WriteHalf) {
        let Self { stream, place, broken, answer } = self;
        let write = WriteHalf {
            stream: Rc::clone(&stream),
            place: Rc::clone(&place),
            broken,
            answer: answer.clone(),
        };
        let (ahead, unfinished, aside) = (Vec::new(), 0, None);
        (ReadHalf { stream, place, answer, ahead, unfinished, aside }, write)
    }
}

impl ReadHalf {
    /// Reads once, if there is anything. Returns whether the peer has hung up.
    async fn fill(&mut self) -> io::Result<bool> {
        let aside = match &mut self.aside {
            Some(aside) => aside,
            None if !self.place.wakes_many() => {
                let mut piece = [0_u8; PIECE];
                let read = self.place.here(|| self.stream.try_read(&mut piece))?;
                self.ahead.extend_from_slice(&piece[..read]);
                return Ok(read == 0);
            }
            None => {
                // Nobody else reads it: what is there now is there then.
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

    /// Hands on what was read, up to the end of the first message in it.
    fn hand_on(&mut self, buf: &mut [u8]) -> usize {
        self.answer.forget();
        // Messages end with a zero byte.
        let end = self.ahead.iter().position(|byte| *byte == 0).map(|at| at + 1);
        let bytes = end.unwrap_or(self.ahead.len()).min(buf.len());
        buf[..bytes].copy_from_slice(&self.ahead[..bytes]);
        self.unfinished = if end == Some(bytes) { 0 } else { self.unfinished + bytes };
        if bytes == self.ahead.len() {
            // Most connections are idle most of the time: they keep no memory for it.
            self.ahead = Vec::new();
        } else {
            self.ahead.drain(..bytes);
        }
        bytes
    }
}

impl socket::ReadHalf for ReadHalf {
    // Can be cancelled anywhere: what was read is in `self` before anything is waited for.
    async fn read(&mut self, buf: &mut [u8]) -> zlink::Result<ReadResult> {
        loop {
            if self.ahead.is_empty() && self.aside.is_none() {
                self.stream.readable().await?;
            }
            // Also to read: that wakes whoever waits for room at the other end.
            self.place.turn().await;
            if !self.ahead.is_empty() {
                break;
            }
            match self.fill().await {
                Ok(true) => return Ok(ReadResult::new(0)),
                Ok(false) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        let bytes = self.hand_on(buf);
        if self.unfinished > LONGEST_MESSAGE {
            return Err(zlink::Error::BufferOverflow);
        }
        Ok(ReadResult::new(bytes))
    }
}

impl WriteHalf {
    /// Sends once, if there is room.
    async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if !self.place.wakes_many() {
            let send = || send(&*self.stream, bytes, fds);
            return self.place.here(|| self.stream.try_io(Interest::WRITABLE, send));
        }
        // Nobody else writes to it: the room there is now is there then.
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

    async fn send_all(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let (mut sent, mut fds) = (0, fds);
        while sent < bytes.len() {
            // Descriptors belong to the first byte they are sent with. Where they do not fit into
            // one message, each but the last has one byte: who reads it adds them up.
            let (now, later) = fds.split_at(fds.len().min(MESSAGE_FDS));
            let end = if later.is_empty() { bytes.len() } else { sent + 1 };
            match self.send(&bytes[sent..end], now).await {
                Ok(bytes) => {
                    sent += bytes;
                    fds = later;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    timeout(DEAF, self.stream.writable()).await??;
                    self.place.turn().await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl socket::WriteHalf for WriteHalf {
    async fn write(
        &mut self,
        buf: &[u8],
        fds: &[impl AsFd],
        _: Option<&PassedCredentials>,
    ) -> zlink::Result<()> {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let long = self.answer.long.take();
        let bytes = long.as_deref().unwrap_or(buf);
        let done = self.answer.sends();
        let sent = self.send_all(bytes, &borrowed).await;
        done(sent.is_ok());
        if let Err(error) = sent {
            tracing::debug!(%error, "a reply was not taken");
            self.broken.notify_one();
            // Dropped here, with the connection.
            pending::<()>().await;
        }
        Ok(())
    }
}

/// Whether a call that does so would do something: looking wakes nobody.
fn is_ready(stream: &UnixStream, flags: PollFlags) -> io::Result<()> {
    let mut fds = [PollFd::new(stream, flags)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A signal that is pending fails even a look.
    let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&now)))?;
    if ready == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
}

/// Reads once, without room for descriptors.
fn read(stream: OwnedFd) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; PIECE];
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
    use super::*;
    use serde_json::{Value, json};

    /// Every method with each value as long as it can be.
    fn longest() -> Vec<(&'static str, Value)> {
        let (n32, n64) = (u32::MAX, u64::MAX);
        // An owner's name is 64 characters at most; all of them escaped.
        let owner = "O".repeat(64);
        vec![
            ("GetStatus", json!({})),
            (
                "Lend",
                json!({ "bytes": n64, "page_bytes": n64, "node": n32, "owner": owner,
                        "keep_seconds": n64, "single": false, "held_by_memory": false,
                        "most_blocks": n32 }),
            ),
            ("TakeZeroing", json!({ "node": n32, "page_bytes": n64, "background": false })),
            ("FinishZeroing", json!({ "job": n64, "pages_done": n64 })),
            ("Drain", json!({ "on": false })),
            ("FindHolders", json!({ "lease": n64 })),
            ("Revoke", json!({ "lease": n64 })),
            ("GiveBack", json!({ "node": n32, "page_bytes": n64, "pages": n64 })),
            (
                "Configure",
                json!({ "change": {
                    "node": n32, "page_bytes": n64, "pages_per_block": n64, "ready_low": n64,
                    "ready_high": n64, "max_pages": n64, "leave_free": n64, "recycle": "in-place",
                } }),
            ),
            ("Watch", json!({ "node": n32, "page_bytes": n64, "below": n64, "interval_ms": n64 })),
        ]
    }

    /// The same of the agents' interface: a name has a longest length, and so has a name together
    /// with its owner's.
    fn longest_of_agents() -> Vec<(&'static str, Value)> {
        let (n32, n64) = (u32::MAX, u64::MAX);
        let name = "O".repeat(units::LoanName::LONGEST);
        let owner = "O".repeat(book::journal::MOST_OWNED - name.len());
        vec![
            (
                "Lend",
                json!({ "name": name, "bytes": n64, "page_bytes": n64, "node": n32, "whole": false,
                        "uid": n32, "gid": n32, "owner": owner, "keep_seconds": n64 }),
            ),
            ("GiveBack", json!({ "name": name, "discard": false })),
            ("ListLoans", json!({ "prefix": name, "after": "a" })),
            ("GetSupply", json!({})),
        ]
    }

    /// The methods of the service and their parameters, as its source has them.
    fn methods(source: &str) -> Vec<(String, Vec<String>)> {
        let (_, service) = source.split_once("#[zlink::service(").expect("a service");
        let (service, _) = service.split_once("\n}\n").expect("its end");
        let camel = |name: &str| {
            let part = |part: &str| part[..1].to_uppercase() + &part[1..];
            name.split('_').map(part).collect::<String>()
        };
        let method = |text: &str| {
            let (name, rest) = text.split_once('(').expect("parameters");
            let (parameters, _) = rest.split_once(") ->").expect("their end");
            let names = parameters.split(',').filter_map(|p| p.split_once(':'));
            let names = names.map(|(name, _)| name.trim().to_owned());
            // What every method has, and the flag of the call itself.
            (camel(name), names.filter(|name| name != "more").collect())
        };
        service.split("async fn ").skip(1).map(method).collect()
    }

    #[test]
    fn every_call_of_the_interface_fits_four_times_into_the_longest_message() {
        fits("io.prezero", &methods(include_str!("mod.rs")), longest());
        fits("io.prezero.agent", &methods(include_str!("agent.rs")), longest_of_agents());
    }

    fn fits(interface: &str, methods: &[(String, Vec<String>)], longest: Vec<(&str, Value)>) {
        assert_eq!(methods.len(), longest.len(), "{methods:?}");
        for (method, parameters) in longest {
            let (_, names) = methods.iter().find(|(name, _)| name == method).expect(method);
            let given: Vec<_> = parameters.as_object().expect("an object").keys().collect();
            assert_eq!(given.len(), names.len(), "{method}: {names:?}");
            assert!(names.iter().all(|name| given.contains(&name)), "{method}: {names:?}");
            let call = json!({
                "method": format!("{interface}.{method}"), "parameters": parameters,
                "more": false, "oneway": false, "upgrade": false,
            });
            let escaped = call.to_string().replace('O', "\\u004f");
            assert!(escaped.len() * 4 <= LONGEST_MESSAGE, "{method}: {} bytes", escaped.len());
        }
    }
}
