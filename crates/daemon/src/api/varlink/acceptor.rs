// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The door: a thread that accepts connections and asks the kernel whose they are, and no more.
//!
//! The kernel has one queue for all who connect. Whoever fills it, with 4000 connections in 20 ms,
//! keeps everybody waiting for as long as each of them takes to be served or refused, 60 us; the
//! thread takes 3. So it asks for the user alone (SO_PEERCRED), whose answer is of one size. Behind
//! it each user has a queue of its own, and these take turns.

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
const PAUSE: Duration = Duration::from_millis(50);

/// Somebody who connected.
pub(super) type Guest = (OwnedFd, Peer);

/// The door; dropped, it is closed, and so is the listening socket.
#[derive(Debug)]
pub(super) struct Door {
    accepted: Arc<Accepted>,
    /// The thread ends when this is closed.
    open: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Where guests wait for the daemon.
#[derive(Debug)]
struct Accepted {
    most: usize,
    queues: Mutex<Queues<Guest>>,
    news: Notify,
    /// Connections that could not be accepted.
    failed: AtomicU64,
}

impl Door {
    /// Accepts from now on; at most so many wait. `turn_away` is for one who is one too many, of
    /// whichever user has most.
    ///
    /// # Errors
    /// No thread, or no descriptors.
    pub(super) fn open(
        listener: UnixListener,
        most: usize,
        turn_away: impl Fn(OwnedFd) + Send + 'static,
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
        let thread = std::thread::Builder::new().name("door".to_owned());
        let thread = thread.spawn(move || inside.let_in(&listener, &closed, &turn_away));
        Ok(Self { accepted, open: Some(open), thread: Some(thread.map_err(failed)?) })
    }

    /// The next guest: users take turns. Can be cancelled anywhere.
    pub(super) async fn next(&self) -> Guest {
        loop {
            if let Some(guest) = self.accepted.lock().take() {
                return guest;
            }
            self.accepted.news.notified().await;
        }
    }

    /// How many could not be accepted since the last call.
    pub(super) fn take_failed(&self) -> u64 {
        self.accepted.failed.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        drop(self.open.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that accepts connections has panicked");
        }
    }
}

impl Accepted {
    fn lock(&self) -> MutexGuard<'_, Queues<Guest>> {
        // Nothing in between panics.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    fn let_in(&self, listener: &UnixListener, closed: &OwnedFd, turn_away: &dyn Fn(OwnedFd)) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match accept_with(listener, flags).map(|stream| (Peer::of(&stream), stream)) {
                Ok((Ok(peer), stream)) => {
                    let mut queues = self.lock();
                    queues.put(peer.uid, (stream, peer));
                    let away = if queues.count() > self.most { queues.turn_away() } else { None };
                    drop(queues);
                    self.news.notify_one();
                    if let Some((stream, _)) = away {
                        turn_away(stream);
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
                    std::thread::sleep(PAUSE);
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
    fn a_door_that_is_closed_ends_its_thread_and_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let door = Door::open(listener, 8, drop).unwrap();
        let _guest = UnixStream::connect(&path).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (_, peer) = runtime.block_on(door.next());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        drop(door);
        assert!(UnixStream::connect(&path).is_err());
    }
}
