// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A blocking connection that sends and receives messages, and the descriptors beside them.
//!
//! Programs that borrow memory get no runtime and no threads with the library. Every operation here
//! blocks until it is done or the socket's timeout is over.

use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, recvmsg, send, socket_with,
};
use wire::MESSAGE_FDS;

/// The longest message that is read: the report of 100,000 loans has 40 MB.
const MAX_MESSAGE: usize = 256 << 20;
/// Bytes of one read.
const PIECE: usize = 8 << 10;

/// A connected socket, and what was received of the messages to come.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, received: Vec::new(), fds: Vec::new() }
    }

    /// Sends a message with its end. The daemon takes no descriptors.
    pub(crate) fn send(&self, message: &[u8]) -> io::Result<()> {
        let mut rest = message;
        while !rest.is_empty() {
            // Without SIGPIPE where the daemon has hung up: that signal ends programs in C, and
            // every program under the preload shim.
            match uninterrupted(|| Ok(send(&self.stream, rest, SendFlags::NOSIGNAL)?)) {
                Ok(sent) => rest = &rest[sent..],
                // A daemon that hangs up says why before: the next message tells.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives one message, without its end, and the descriptors that came with it.
    pub(crate) fn receive(&mut self) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut seen = 0;
        loop {
            let end = self.received[seen..].iter().position(|byte| *byte == wire::END);
            if let Some(end) = end.map(|end| seen + end) {
                let rest = self.received.split_off(end + 1);
                let mut message = std::mem::replace(&mut self.received, rest);
                message.truncate(end);
                return Ok((message, std::mem::take(&mut self.fds)));
            }
            seen = self.received.len();
            if seen > MAX_MESSAGE {
                return Err(io::Error::new(ErrorKind::InvalidData, "a message without end"));
            }
            uninterrupted(|| wait(&self.stream))?;
            if uninterrupted(|| self.receive_piece())? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Receives bytes and descriptors, the latter closed on exec from the start: a program that
    /// starts another one meanwhile would hand its loan on.
    fn receive_piece(&mut self) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut piece = [0; PIECE];
        let mut pieces = [IoSliceMut::new(&mut piece)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.stream, &mut pieces, &mut control, flags)?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        self.received.extend_from_slice(&piece[..received]);
        Ok(received)
    }

    /// Sets how long a message may take to come. `None` is for ever.
    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(timeout)
    }
}

/// Connects, waiting at most `timeout`, which then is each answer's, too.
///
/// By system calls instead of the C library's `connect`: that one is a point of cancellation, and
/// no thread that borrows memory may end inside it.
pub(crate) fn connect(path: &Path, timeout: Duration) -> io::Result<Connection> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A listener with a full queue makes `connect` wait as long as a send would.
    for which in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, which, Some(timeout))?;
    }
    let address = SocketAddrUnix::new(path)?;
    uninterrupted(|| Ok(rustix::net::connect(&socket, &address)?))?;
    Ok(Connection::new(socket.into()))
}

/// Waits for something to receive, at most the socket's timeout.
///
/// A sleep in `recvmsg` is ended by the peer's *reading*, too: the kernel wakes every waiter of the
/// socket because there is room to write again (`unix_write_space`). `poll` is woken for the events
/// that it asked for. With it 64 clients on two CPUs get 5 to 10 % more loans in a second.
fn wait(stream: &UnixStream) -> io::Result<()> {
    let timeout = stream.read_timeout()?.and_then(|t| Timespec::try_from(t).ok());
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref())? {
        0 => Err(ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}

/// Repeats a call that a signal interrupted before it did anything.
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IoSlice, Write as _};
    use std::os::fd::AsFd;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};

    fn pair() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        (Connection::new(ours), theirs)
    }

    fn send_with(to: &UnixStream, bytes: &[u8], fds: &[&UnixStream]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let sent = sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::empty());
        assert_eq!(sent.expect("room"), bytes.len());
    }

    #[test]
    fn descriptors_arrive_once_and_closed_on_exec() {
        let (mut ours, mut theirs) = pair();
        let (handed, kept) = UnixStream::pair().expect("two sockets");
        // As many descriptors as need two messages of the kernel come with one of ours.
        let many = vec![&handed; MESSAGE_FDS];
        send_with(&theirs, b"w", &many);
        send_with(&theirs, b"ith\0without", &[&handed]);
        drop(handed);
        let (message, fds) = ours.receive().expect("what was sent");
        assert_eq!((&message[..], fds.len()), (&b"with"[..], MESSAGE_FDS + 1));
        let flags = rustix::io::fcntl_getfd(&fds[MESSAGE_FDS]).expect("a descriptor");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        (&kept).write_all(b"x").expect("its other end was handed on");

        theirs.write_all(b"\0").expect("room");
        let (message, fds) = ours.receive().expect("what was sent");
        assert_eq!((&message[..], fds.len()), (&b"without"[..], 0));
    }

    #[test]
    fn several_messages_of_one_read_come_one_by_one() {
        let (mut ours, mut theirs) = pair();
        let long = vec![b'x'; 3 * PIECE];
        theirs.write_all(b"a\0\0").expect("room");
        theirs.write_all(&long).expect("room");
        theirs.write_all(b"\0c").expect("room");
        drop(theirs);
        for expected in [&b"a"[..], b"", &long] {
            assert_eq!(ours.receive().expect("a message").0, expected);
        }
        let error = ours.receive().expect_err("it has no end");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn last_words_of_a_daemon_that_hangs_up_are_read() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(b"why\0").expect("room");
        drop(theirs);
        ours.send(b"a call\0").expect("no error yet");
        assert_eq!(ours.receive().expect("its last words").0, b"why");
    }

    #[test]
    fn silent_daemon_is_an_error_in_time() {
        let (mut ours, theirs) = pair();
        let soon = Some(Duration::from_millis(10));
        ours.stream.set_write_timeout(soon).expect("a timeout");
        ours.send(&vec![0; 8 << 20]).expect_err("the other end reads nothing");
        ours.set_timeout(soon).expect("a timeout");
        // The kernel counts in ticks of its own.
        assert!(ours.stream.read_timeout().expect("a timeout") >= soon);
        let error = ours.receive().expect_err("the other end sends nothing");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        ours.set_timeout(None).expect("for ever");
        assert_eq!(ours.stream.read_timeout().expect("a timeout"), None);
        drop(theirs);
    }

    #[test]
    fn call_is_repeated_only_after_a_signal() {
        let mut left = vec![Ok(7), Err(ErrorKind::Interrupted.into())];
        assert_eq!(uninterrupted(|| left.pop().expect("no more calls")).expect("a result"), 7);
        let mut left = vec![Err(ErrorKind::BrokenPipe.into())];
        let failed: io::Result<()> = uninterrupted(|| left.pop().expect("no more calls"));
        assert_eq!(failed.expect_err("as it is").kind(), ErrorKind::BrokenPipe);
    }
}
