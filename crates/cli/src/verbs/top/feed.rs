// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that talks to the daemon, and comes back to one that went away.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use client::{Client, Error};
use units::{Node, PageSize, Pages};
use wire::{LoanStatus, PoolChange, Status};

/// As many characters of a command line as a wide screen has room for.
const MAX_COMMAND: usize = 120;

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
    /// The daemon is being asked, and has yet to answer.
    Asked,
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
        if notify.send(Update::Asked).is_err() {
            return;
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
        Ok(mut status) => {
            status.loans.iter_mut().for_each(name_fully);
            Update::Status(Box::new(status))
        }
        Err(error) => Update::Gone(error.to_string()),
    };
    updates.push(last);
    updates
}

/// The whole command line of a loan's process, where the daemon's number for it is this namespace's
/// as well: the daemon has 15 characters, which are the same for all guests of a host.
fn name_fully(loan: &mut LoanStatus) {
    let (Some(pid), Some(command)) = (loan.pid, &loan.command) else { return };
    let read = |file| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    if read("comm").strip_suffix(b"\n") != Some(command.as_bytes()) {
        return;
    }
    let words = read("cmdline");
    let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let mut words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    if let Some(program) = words.first_mut() {
        *program = program.rsplit('/').next().unwrap_or_default().to_owned().into();
        let line: String = words.join(" ").chars().take(MAX_COMMAND).collect();
        loan.command = Some(line);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loan_of_a_process_of_this_namespace_has_its_command_line() {
        let name = std::fs::read_to_string("/proc/self/comm").expect("/proc");
        let mut loan = LoanStatus {
            pid: Some(std::process::id()),
            command: Some(name.trim_end().to_owned()),
            ..LoanStatus::default()
        };
        name_fully(&mut loan);
        let line = loan.command.clone().expect("it has one");
        let program = std::env::args().next().expect("a program");
        assert!(line.starts_with(program.rsplit('/').next().expect("a name")), "{line}");
        loan.command = Some("another".into());
        name_fully(&mut loan);
        assert_eq!(loan.command.as_deref(), Some("another"));
    }
}
