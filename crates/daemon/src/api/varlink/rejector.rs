// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refused peers: they get a reason, and are disconnected.
//!
//! By a thread of its own, as sending to a socket and closing it wakes the watchers of its other
//! end: a hundred thousand epoll sets of a stranger's take 12 ms of the caller.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::connection::send;

/// How long the socket of a refused connection stays open, so that a peer which has not sent its
/// call yet does not find it broken before it reads why.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);
/// The most refused peers at a time; the oldest goes for another.
const MAX_CLOSING_CONNECTIONS: usize = 64;
/// The most on their way to the thread; later ones are disconnected without a reason.
const MAX_QUEUED_REJECTIONS: usize = 4096;

/// The thread that refuses; it ends with the last of these values.
#[derive(Debug, Clone)]
pub(super) struct Rejector {
    refused: Sender<(OwnedFd, Vec<u8>)>,
    on_the_way: Arc<AtomicUsize>,
}

impl Rejector {
    pub(super) fn new() -> Self {
        let (refused, comes) = channel();
        let on_the_way = Arc::default();
        let left = Arc::clone(&on_the_way);
        let thread = std::thread::Builder::new().name("refusals".to_owned());
        if let Err(error) = thread.spawn(move || work(&comes, &left)) {
            tracing::error!(%error, "a thread cannot be started: nobody is told why it is refused");
        }
        Self { refused, on_the_way }
    }

    /// Says why, reads nothing, and hangs up at once.
    pub(super) fn reject(&self, stream: OwnedFd, error: wire::Error) {
        let Ok(message) = wire::refusal(&error.into()) else { return };
        if self.on_the_way.load(Ordering::Relaxed) < MAX_QUEUED_REJECTIONS {
            self.on_the_way.fetch_add(1, Ordering::Relaxed);
            // Without a thread it comes back, and is closed.
            drop(self.refused.send((stream, message)));
        }
    }
}

fn work(comes: &Receiver<(OwnedFd, Vec<u8>)>, on_the_way: &AtomicUsize) {
    let mut open: VecDeque<(Instant, OwnedFd)> = VecDeque::new();
    loop {
        let next = match open.front() {
            Some((ends, _)) => comes.recv_timeout(ends.saturating_duration_since(Instant::now())),
            None => comes.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok((stream, message)) => {
                on_the_way.fetch_sub(1, Ordering::Relaxed);
                if send(&stream, &message, &[]).is_ok() {
                    open.push_back((Instant::now() + CLOSE_TIMEOUT, stream));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        while open.len() > MAX_CLOSING_CONNECTIONS
            || open.front().is_some_and(|(ends, _)| *ends <= now)
        {
            open.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn each_rejected_connection_gets_an_error_and_a_hangup() {
        let rejector = Rejector::new();
        let pairs = (0..4 * MAX_CLOSING_CONNECTIONS).map(|_| UnixStream::pair().unwrap());
        let (theirs, ours): (Vec<_>, Vec<_>) = pairs.unzip();
        let error = wire::Error::NothingToZero;
        ours.into_iter().for_each(|stream| rejector.reject(stream.into(), error.clone()));
        for mut stream in theirs {
            let mut reported = String::new();
            stream.read_to_string(&mut reported).unwrap();
            assert!(reported.contains("NothingToZero") && reported.ends_with('\0'), "{reported}");
        }
        assert_eq!(rejector.on_the_way.load(Ordering::Relaxed), 0);
    }
}
