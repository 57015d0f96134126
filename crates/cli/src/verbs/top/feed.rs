// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that talks to the daemon, and comes back to one that went away.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use client::{Client, Error};
use units::{Node, PageSize, Pages};
use wire::{PoolChange, Status};

/// What the daemon is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FeedRequest {
    Release { node: Node, page_size: PageSize, pages: Option<Pages> },
    Configure(PoolChange),
}

/// What was heard.
#[derive(Debug)]
pub(super) enum Update {
    Status(Box<Status>),
    /// What became of a request, in one line.
    Answer(String),
    /// No daemon answers, and why.
    Gone(String),
}

/// The thread's ends. It ends with them.
#[derive(Debug)]
pub(super) struct Feed {
    updates: Receiver<Update>,
    requests: Sender<FeedRequest>,
}

impl Feed {
    pub(super) fn start(socket: PathBuf, interval: Duration) -> Self {
        let (notify, updates) = mpsc::channel();
        let (requests, asked) = mpsc::channel();
        std::thread::spawn(move || talk(&socket, interval, &asked, &notify));
        Self { updates, requests }
    }

    /// Everything heard since the last look. Does not block.
    pub(super) fn updates(&self) -> impl Iterator<Item = Update> + '_ {
        self.updates.try_iter()
    }

    /// The next thing heard, if that is soon.
    pub(super) fn next(&self, timeout: Duration) -> Option<Update> {
        self.updates.recv_timeout(timeout).ok()
    }

    pub(super) fn ask(&self, request: FeedRequest) {
        // The thread lives as long as this end does.
        let _ = self.requests.send(request);
    }
}

fn talk(
    socket: &std::path::Path,
    interval: Duration,
    requests: &Receiver<FeedRequest>,
    notify: &Sender<Update>,
) {
    let mut client: Option<Client> = None;
    let mut next = Instant::now();
    loop {
        let request = match requests.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(request) => Some(request),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if request.is_none() {
            next = (next + interval).max(Instant::now());
        }
        let heard = look(socket, &mut client, request);
        for update in heard {
            if notify.send(update).is_err() {
                return;
            }
        }
    }
}

/// Carries out a request, if there is one, and looks at the daemon.
fn look(
    socket: &std::path::Path,
    kept: &mut Option<Client>,
    request: Option<FeedRequest>,
) -> Vec<Update> {
    let mut updates = Vec::new();
    let talk = || {
        // A connection is kept only by what went well: a broken one is never used again.
        let mut client = match kept.take() {
            Some(client) => client,
            None => Client::connect(socket)?,
        };
        if let Some(request) = request {
            updates.push(Update::Answer(match carry_out(&mut client, request) {
                Ok(done) => done,
                Err(Error::Refused(refusal)) => format!("refused: {refusal}"),
                Err(error) => return Err(error),
            }));
        }
        let status = client.status()?;
        *kept = Some(client);
        Ok(status)
    };
    let last = match talk() {
        Ok(status) => Update::Status(Box::new(status)),
        Err(error) => Update::Gone(error.to_string()),
    };
    updates.push(last);
    updates
}

fn carry_out(client: &mut Client, request: FeedRequest) -> Result<String, Error> {
    match request {
        FeedRequest::Release { node, page_size, pages } => {
            let given = client.release(Some(node), Some(page_size), pages)?;
            Ok(format!("gave {given} back to the kernel"))
        }
        FeedRequest::Configure(change) => client.configure(change).map(|()| "changed".to_owned()),
    }
}
