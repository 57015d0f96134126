// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A blocking socket under zlink's codec.
//!
//! zlink is asynchronous; programs that borrow memory are not, and must not get a runtime and
//! its threads with the library. Every operation here blocks until it is done or the timeout of
//! the socket is over, so no future ever waits, and [`now`] needs to poll it once.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with,
};
use wire::MESSAGE_FDS;
use zlink::connection::PassedCredentials;
use zlink::connection::socket::{ReadHalf, ReadResult, Socket, WriteHalf};

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Blocking(pub(crate) UnixStream);

/// One direction of it.
#[derive(Debug)]
pub(crate) struct Half(Arc<UnixStream>);

impl Socket for Blocking {
    type ReadHalf = Half;
    type WriteHalf = Half;
    const CAN_TRANSFER_FDS: bool = true;

    fn split(self) -> (Half, Half) {
        let stream = Arc::new(self.0);
        (Half(Arc::clone(&stream)), Half(stream))
    }
}

impl ReadHalf for Half {
    async fn read(&mut self, buf: &mut [u8]) -> zlink::Result<ReadResult> {
        uninterrupted(|| wait(&self.0))?;
        Ok(uninterrupted(|| receive(&self.0, buf))?)
    }
}

impl WriteHalf for Half {
    async fn write(
        &mut self,
        buf: &[u8],
        fds: &[impl AsFd],
        _: Option<&PassedCredentials>,
    ) -> zlink::Result<()> {
        // The daemon asks the kernel who its peer is; nobody sets credentials here.
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let mut sent = 0;
        while sent < buf.len() {
            // Descriptors belong to the first byte and are sent once.
            let fds = if sent == 0 { borrowed.as_slice() } else { &[] };
            sent += match uninterrupted(|| send(&self.0, &buf[sent..], fds)) {
                // A daemon that hangs up says why before: what is there to read tells.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                result => result?,
            };
        }
        Ok(())
    }
}

/// Connects, waiting at most `timeout`, which then is each answer's, too.
///
/// By system calls, not by the C library's `connect`: that one is a point of cancellation, and no
/// thread that borrows memory may end in the midst of it.
pub(crate) fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A listener with a full queue makes `connect` wait as long as a send would.
    for which in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, which, Some(timeout))?;
    }
    let address = SocketAddrUnix::new(path)?;
    uninterrupted(|| Ok(rustix::net::connect(&socket, &address)?))?;
    Ok(socket.into())
}

/// Waits for something to receive, at most the socket's timeout.
///
/// A sleep in `recvmsg` is ended by the peer's *reading*, too: the kernel wakes everybody on the
/// socket because there is room to write again (`unix_write_space`). `poll` is woken for what it
/// asked for alone. 64 clients on two CPUs get 5 to 10 % more loans in a second.
fn wait(stream: &UnixStream) -> io::Result<()> {
    let timeout = stream.read_timeout()?.and_then(|t| Timespec::try_from(t).ok());
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref())? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}

/// Sends bytes and descriptors.
///
/// Unlike zlink's own helper without SIGPIPE where the daemon has hung up: that signal ends
/// programs in C, and whatever runs under the preload shim.
fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and descriptors, the latter closed on exec from the start.
///
/// zlink's own helper leaves them open: a program that starts another right then would hand its
/// loan on, and the lease would end with the wrong process.
fn receive(stream: &UnixStream, buf: &mut [u8]) -> io::Result<ReadResult> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(buf)];
    let received = recvmsg(stream, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    let fds: Vec<_> = control.drain().flat_map(rights).collect();
    Ok(ReadResult::new(received.bytes).set_fds(fds))
}

/// Repeats a call that a signal interrupted before it did anything.
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The result of a future over a [`Blocking`] socket.
///
/// # Panics
/// If the future waits for anything else, which none of this crate does.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a blocking socket is never pending"),
    }
}

impl Half {
    /// How long a read may block; `None` is for ever.
    pub(crate) fn set_timeout(&self, timeout: Option<std::time::Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn pair() -> (Half, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        (Half(Arc::new(ours)), theirs)
    }

    fn write(to: &mut Half, bytes: &[u8], fds: &[&UnixStream]) -> zlink::Result<()> {
        now(to.write(bytes, fds, None))
    }

    #[test]
    fn bytes_and_descriptors_arrive_once_and_are_closed_on_exec() {
        let (mut ours, theirs) = pair();
        let (handed, kept) = UnixStream::pair().expect("two sockets");
        write(&mut ours, b"with", &[&handed]).expect("room");
        drop(handed);
        let mut theirs = Half(Arc::new(theirs));
        let mut buffer = [0; 16];
        let received = now(theirs.read(&mut buffer)).expect("what was sent");
        assert_eq!((&buffer[..received.bytes_read()], received.fds().len()), (&b"with"[..], 1));
        let flags = rustix::io::fcntl_getfd(&received.fds()[0]).expect("a descriptor");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        (&kept).write_all(b"x").expect("its other end was handed on");

        write(&mut ours, b"without", &[]).expect("room");
        let received = now(theirs.read(&mut buffer)).expect("what was sent");
        assert_eq!((&buffer[..received.bytes_read()], received.fds().len()), (&b"without"[..], 0));
    }

    #[test]
    fn more_descriptors_than_a_message_takes_are_refused() {
        let (mut ours, theirs) = pair();
        assert!(write(&mut ours, b"x", &vec![&theirs; MESSAGE_FDS + 1]).is_err());
    }

    #[test]
    fn what_a_daemon_said_before_it_hung_up_is_read() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(b"why").expect("room");
        drop(theirs);
        write(&mut ours, b"a call", &[]).expect("no error yet");
        let mut buffer = [0; 16];
        assert_eq!(now(ours.read(&mut buffer)).expect("its last words").bytes_read(), 3);
    }

    #[test]
    fn a_daemon_that_neither_reads_nor_answers_is_an_error_in_time() {
        let (mut ours, theirs) = pair();
        let soon = Some(Duration::from_millis(10));
        ours.0.set_write_timeout(soon).expect("a timeout");
        write(&mut ours, &vec![0; 8 << 20], &[]).expect_err("nobody reads");
        ours.set_timeout(soon).expect("a timeout");
        // The kernel counts in ticks of its own.
        assert!(ours.0.read_timeout().expect("a timeout") >= soon);
        now(ours.read(&mut [0; 16])).expect_err("nobody answers");
        ours.set_timeout(None).expect("for ever");
        assert_eq!(ours.0.read_timeout().expect("a timeout"), None);
        drop(theirs);
    }

    #[test]
    fn only_what_a_signal_interrupted_is_tried_again() {
        let mut left = vec![Ok(7), Err(io::ErrorKind::Interrupted.into())];
        assert_eq!(uninterrupted(|| left.pop().expect("no more calls")).expect("a result"), 7);
        let mut left = vec![Err(io::ErrorKind::BrokenPipe.into())];
        let failed: io::Result<()> = uninterrupted(|| left.pop().expect("no more calls"));
        assert_eq!(failed.expect_err("as it is").kind(), io::ErrorKind::BrokenPipe);
    }
}
