// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket: one task per connection.
//!
//! zlink's server serves many connections from one loop that awaits each reply's delivery, so
//! that one client that does not read would stall all. Here each connection has a server of its
//! own, over a socket that bounds what a peer can make the daemon remember.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use linux::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;
use zlink::connection::PassedCredentials;
use zlink::connection::socket::{self, ReadResult, Socket};
use zlink::tokio::unix::Stream;
use zlink::{ReadyListener, Server};

use crate::account::Accounts;
use crate::rights::{Rights, SharedGroups};
use crate::service::{Service, Shared};

/// The longest message a peer may send. The longest that means anything is under 1 KiB.
const LONGEST_MESSAGE: usize = 64 << 10;
/// The most connections at a time; further ones are closed at once.
const MOST_CONNECTIONS: usize = 4096;
/// How long a connection may outlive its silent peer.
const HANGUP_POLL: Duration = Duration::from_secs(5);

/// Accepts connections for ever.
pub(crate) async fn accept(listener: UnixListener, shell: Shared, groups: SharedGroups) {
    let open = Rc::new(Cell::new(0_usize));
    let accounts = Accounts::new(shell.borrow().roots().clone());
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: wait for some to come back.
                tracing::warn!(%error, "cannot accept");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if open.get() >= MOST_CONNECTIONS {
            tracing::warn!(connections = open.get(), "too many connections: refused one");
            continue;
        }
        let peer = match Peer::of(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "a peer without credentials is refused");
                continue;
            }
        };
        let account = match accounts.of(&stream, &peer) {
            Ok(account) => account,
            Err(error) => {
                tracing::debug!(%error, uid = peer.uid, "whose a peer is cannot be known any more");
                continue;
            }
        };
        let rights = Rights::new(peer, account, Rc::clone(&groups));
        let service = Service::new(Rc::clone(&shell), rights);
        open.set(open.get() + 1);
        let open = Rc::clone(&open);
        tokio::task::spawn_local(async move {
            if let Err(error) = serve(stream, service).await {
                tracing::debug!(%error, "a connection ended");
            }
            open.set(open.get() - 1);
        });
    }
}

async fn serve(stream: UnixStream, service: Service) -> zlink::Result<()> {
    // A second descriptor of the same socket, to see the peer go while a watch has the first.
    let hangup: OwnedFd = stream.as_fd().try_clone_to_owned()?;
    let server = Server::new(ReadyListener::new(Bounded(Stream::try_from(stream)?)), service);
    tokio::select! {
        result = server.run() => result,
        () = gone(hangup) => Ok(()),
    }
}

/// Waits until the peer is gone.
///
/// The server sees that itself, except while it streams a watch, when it only writes: a silent
/// watch would outlive its client for ever. A look each [`HANGUP_POLL`] is enough for that.
async fn gone(socket: OwnedFd) {
    loop {
        sleep(HANGUP_POLL).await;
        let mut fds = [PollFd::new(&socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut fds, Some(&now));
        if polled.is_ok() && fds[0].revents().contains(PollFlags::HUP) {
            return;
        }
    }
}

/// A socket that gives up on a peer whose message has no end.
#[derive(Debug)]
struct Bounded(Stream);

#[derive(Debug)]
struct BoundedRead {
    half: <Stream as Socket>::ReadHalf,
    unfinished: usize,
}

#[derive(Debug)]
struct Write(<Stream as Socket>::WriteHalf);

impl Socket for Bounded {
    type ReadHalf = BoundedRead;
    type WriteHalf = Write;
    const CAN_TRANSFER_FDS: bool = true;

    fn split(self) -> (BoundedRead, Write) {
        let (read, write) = self.0.split();
        (BoundedRead { half: read, unfinished: 0 }, Write(write))
    }
}

impl socket::ReadHalf for BoundedRead {
    async fn read(&mut self, buf: &mut [u8]) -> zlink::Result<ReadResult> {
        let result = self.half.read(buf).await?;
        let new = &buf[..result.bytes_read()];
        // Messages end with a zero byte.
        self.unfinished = match new.iter().rposition(|byte| *byte == 0) {
            Some(end) => new.len() - end - 1,
            None => self.unfinished + new.len(),
        };
        if self.unfinished > LONGEST_MESSAGE {
            return Err(zlink::Error::BufferOverflow);
        }
        Ok(result)
    }
}

impl socket::WriteHalf for Write {
    async fn write(
        &mut self,
        buf: &[u8],
        fds: &[impl AsFd],
        credentials: Option<&PassedCredentials>,
    ) -> zlink::Result<()> {
        self.0.write(buf, fds, credentials).await
    }
}
