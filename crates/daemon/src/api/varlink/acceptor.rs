// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The acceptor: a thread that accepts connections, asks the kernel for their users, and does only
//! that.
//!
//! The kernel has one queue for all new connections. A user that fills it, with 4000 connections in
//! 20 ms, would keep all others waiting while each of them is served or refused, 60 us; the thread
//! takes 3. So it asks for the user alone (SO_PEERCRED), an answer of one size. Behind it each user
//! has a queue of its own, and these take turns.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use linux::Peer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::Notify;

use crate::base::error::{Error, Result};
use crate::peers::users::Queues;

/// How long to wait for descriptors to come back.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Somebody who connected.
pub(super) type Connected = (OwnedFd, Peer);

/// The acceptor; dropped, it is closed, and so is the listening socket.
#[derive(Debug)]
pub(super) struct Acceptor {
    accepted: Arc<Accepted>,
    /// The thread ends when this is closed.
    open: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Where guests wait for the daemon.
#[derive(Debug)]
struct Accepted {
    most: usize,
    queues: Mutex<Queues<Connected>>,
    news: Notify,
    /// Failed accepts.
    failed: AtomicU64,
}

impl Acceptor {
    /// Accepts from now on; at most `most` wait. `evict_last` gets each excess connection, of the
    /// user with most.
    ///
    /// # Errors
    /// No thread, or no descriptors.
    pub(super) fn open(
        listener: UnixListener,
        most: usize,
        reject: impl Fn(OwnedFd) + Send + 'static,
    ) -> Result<Self> {
        let failed = |source| Error::Runtime { what: "cannot accept connections", source };
        let (closed, open) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let accepted = Arc::new(Accepted {
            most,
            queues: Mutex::default(),
            news: Notify::new(),
            failed: AtomicU64::new(0),
        });
        let inside = Arc::clone(&accepted);
        let thread = std::thread::Builder::new().name("acceptor".to_owned());
        let thread = thread.spawn(move || inside.accept_loop(&listener, &closed, &reject));
        Ok(Self { accepted, open: Some(open), thread: Some(thread.map_err(failed)?) })
    }

    /// The next guest: users take turns. Can be cancelled anywhere.
    pub(super) async fn next(&self) -> Connected {
        loop {
            if let Some(guest) = self.accepted.lock().take() {
                return guest;
            }
            self.accepted.news.notified().await;
        }
    }

    /// How many accepts failed since the last call.
    pub(super) fn take_failed(&self) -> u64 {
        self.accepted.failed.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        drop(self.open.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that accepts connections has panicked");
        }
    }
}

impl Accepted {
    fn lock(&self) -> MutexGuard<'_, Queues<Connected>> {
        // Nothing in between panics.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    fn accept_loop(&self, listener: &UnixListener, closed: &OwnedFd, reject: &dyn Fn(OwnedFd)) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match accept_with(listener, flags).map(|stream| (Peer::from_socket(&stream), stream)) {
                Ok((Ok(peer), stream)) => {
                    let mut queues = self.lock();
                    queues.put(peer.uid, (stream, peer));
                    let away = if queues.count() > self.most { queues.evict_last() } else { None };
                    drop(queues);
                    self.news.notify_one();
                    if let Some((stream, _)) = away {
                        reject(stream);
                    }
                }
                Ok((Err(error), _)) => {
                    tracing::debug!(%error, "a peer without credentials is refused");
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
                Err(Errno::AGAIN) => {
                    let mut fds = [
                        PollFd::new(listener, PollFlags::IN),
                        PollFd::new(closed, PollFlags::empty()),
                    ];
                    // A signal is another look.
                    let _ = poll(&mut fds, None);
                    if !fds[1].revents().is_empty() {
                        return;
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    // Out of descriptors, most likely: wait for some to come back.
                    tracing::debug!(%error, "cannot accept");
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(ACCEPT_RETRY_INTERVAL);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn closed_acceptor_ends_its_thread_and_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let acceptor = Acceptor::open(listener, 8, drop).unwrap();
        let _guest = UnixStream::connect(&path).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (_, peer) = runtime.block_on(acceptor.next());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        drop(acceptor);
        assert!(UnixStream::connect(&path).is_err());
    }
}
