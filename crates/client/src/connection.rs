// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection to the daemon, and a method per method of the interface.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use units::{Bytes, JobId, LeaseId, Node, PageSize, Pages};
use wire::{
    Configure, Drain, Drained, FindHolders, FinishZeroing, Finished, GetStatus, Holders,
    LendRequest, MAX_LOAN_PARTS, MAX_MESSAGE_PARTS, Parameters, PoolChange, Refused, Release,
    Reply, Revoke, Status, TakeZeroing, WatchReply,
};

use crate::error::{Error, Result};
use crate::loan::Loan;
use crate::socket::Connection;

/// How long an answer may take before the connection counts as broken.
///
/// A loan waits at most 2 s for its owner's former self (see the daemon), so 10 s is a hang.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the answer to a request for a `whole` loan may take: the daemon may zero what the loan
/// lacks, at some GiB a second.
pub const WHOLE_LOAN_TIMEOUT: Duration = Duration::from_secs(60);

const WATCH: &str = <wire::Watch as Parameters>::NAME;
/// A timeout of zero would be no timeout.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

/// A connection to the daemon. Every call blocks until its answer, at most [`ANSWER_TIMEOUT`].
///
/// Loans by name are for agents: root, and members of the daemon's `agent.group`. They connect to
/// the daemon's socket for agents. A call that lost its answer may have been carried out: ask for
/// the same name again, or return it.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    path: PathBuf,
    timeout: Duration,
}

impl Client {
    /// Connects to the daemon that listens at `socket`.
    ///
    /// # Errors
    /// [`Error::NoDaemon`].
    pub fn connect(socket: impl AsRef<Path>) -> Result<Self> {
        Self::connect_within(socket, ANSWER_TIMEOUT)
    }

    /// The same with a timeout of its own instead of [`ANSWER_TIMEOUT`], for connecting and for
    /// each answer.
    ///
    /// # Errors
    /// [`Error::NoDaemon`], also when a daemon that is there does not accept in time.
    pub fn connect_within(socket: impl AsRef<Path>, timeout: Duration) -> Result<Self> {
        let path = socket.as_ref();
        let connection = crate::socket::connect(path, timeout)
            .map_err(|source| Error::NoDaemon { path: path.to_owned(), source })?;
        Ok(Self { connection, path: path.to_owned(), timeout })
    }

    /// Where its daemon listens.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// One call and its answer.
    pub(crate) fn call<M: Parameters>(
        &mut self,
        parameters: &M,
    ) -> Result<(M::Reply, Vec<OwnedFd>)> {
        send(&self.connection, parameters, false)?;
        let (reply, fds) = receive::<M>(&mut self.connection)?;
        Ok((reply.parameters, fds))
    }

    /// Everything there is to see.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Broken`].
    pub fn status(&mut self) -> Result<Status> {
        self.call(&GetStatus {}).map(|(status, _)| status)
    }

    /// Borrows memory, in no more blocks than half of this process's limit on open files, unless
    /// the request says how many. Never waits for zeroing: dirty parts come as an unbacked part,
    /// which the kernel zeroes when the program touches it.
    ///
    /// A loan by name is one file, until the name is returned. The same name and size again are the
    /// same loan. Only for a `whole` loan the daemon zeroes, which may take
    /// [`WHOLE_LOAN_TIMEOUT`]. A loan by name ends within a page if its connection is dropped while
    /// it is being made.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason, [`Error::Broken`], [`Error::Descriptors`].
    pub fn lend(&mut self, request: &LendRequest) -> Result<Loan> {
        let most_blocks = request.most_blocks.or_else(|| Some(most_blocks(open_files())));
        let broken = broken(<LendRequest as Parameters>::NAME);
        if request.whole {
            let timeout = self.timeout.max(WHOLE_LOAN_TIMEOUT);
            self.connection.set_timeout(Some(timeout)).map_err(&broken)?;
        }
        let answer = self.call(&LendRequest { most_blocks, ..request.clone() });
        if request.whole {
            self.connection.set_timeout(Some(self.timeout)).map_err(&broken)?;
        }
        let (lent, fds) = answer?;
        Loan::from_reply(lent, fds)
    }

    /// Takes work for a worker: the job, and its descriptors. Blocks for the request's `wait_ms`.
    ///
    /// # Errors
    /// [`wire::Error::NothingToZero`] as [`Error::Refused`] when there is nothing (left) to do.
    pub fn take_zeroing(&mut self, request: &TakeZeroing) -> Result<(wire::Job, Vec<OwnedFd>)> {
        self.call(request)
    }

    /// Reports a job. Everything of it must have been dropped before: the daemon proves that no
    /// process holds the block any more, and takes it for dirty otherwise.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`wire::Error::NoSuchJob`] for a job that was reported or lost.
    pub fn finish_zeroing(&mut self, job: JobId, pages_done: Pages) -> Result<Finished> {
        let report = FinishZeroing { job, pages_done };
        self.call(&report).map(|(finished, _)| finished)
    }

    /// Gives ready and zeroable blocks back to the kernel: `pages` of them, or all.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Broken`].
    pub fn release(
        &mut self,
        node: Option<Node>,
        page_size: Option<PageSize>,
        pages: Option<Pages>,
    ) -> Result<Bytes> {
        self.call(&Release { node, page_size, pages }).map(|(given, _)| given.bytes)
    }

    /// Has the daemon give all unused blocks back and keep nothing ready, or go on as configured.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Broken`].
    pub fn drain(&mut self, on: bool) -> Result<Drained> {
        self.call(&Drain { on }).map(|(drained, _)| drained)
    }

    /// Finds the processes that have blocks which are lent or draining: of one loan, or of all. The
    /// daemon looks for some seconds at most. For root.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`wire::Error::NoSuchLease`], or while another search goes on;
    /// [`Error::Broken`].
    pub fn find_holders(&mut self, lease: Option<LeaseId>) -> Result<Holders> {
        self.call(&FindHolders { lease }).map(|(holders, _)| holders)
    }

    /// Ends a loan and takes its memory away: processes that still map it get SIGBUS at their next
    /// access. Returns how much that was. For root.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`wire::Error::NoSuchLease`]; [`Error::Broken`].
    pub fn revoke(&mut self, lease: LeaseId) -> Result<Bytes> {
        self.call(&Revoke { lease }).map(|(revoked, _)| revoked.bytes)
    }

    /// Changes a pool's thresholds, or adds a pool, which only root may.
    ///
    /// # Errors
    /// [`Error::Refused`] with the rule that was broken, and nothing changed.
    pub fn configure(&mut self, change: PoolChange) -> Result<()> {
        self.call(&Configure { change }).map(drop)
    }

    /// Watches levels: with `below`, one report whenever a node's ready pages fall below it (and
    /// one at once if they are); without, one now and one whenever a count changes. At most one
    /// report each `interval`; the last state is never lost.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Broken`]. The iterator ends with the daemon.
    pub fn watch(
        self,
        node: Option<Node>,
        page_size: Option<PageSize>,
        below: Option<Pages>,
        interval: Duration,
    ) -> Result<StatusWatch> {
        let interval_ms = Some(u64::try_from(interval.as_millis()).unwrap_or(u64::MAX));
        let watch = wire::Watch { node, page_size, below, interval_ms };
        send(&self.connection, &watch, true)?;
        // A watch may be silent for days.
        self.connection.set_timeout(None).map_err(broken(WATCH))?;
        Ok(StatusWatch { connection: self.connection })
    }
}

/// The reports of [`Client::watch`]. Blocks in `next`; dropping it ends the watch.
#[derive(Debug)]
pub struct StatusWatch {
    connection: Connection,
}

impl StatusWatch {
    /// The next report, if there is one within `timeout`, which is at least a millisecond. The next
    /// call goes on with a report that has come in part.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::Broken`], also when the daemon ends.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<WatchReply>> {
        self.connection.set_timeout(Some(timeout.max(MIN_TIMEOUT))).map_err(broken(WATCH))?;
        match self.report() {
            Err(Error::Broken { source, .. }) if source.kind() == ErrorKind::WouldBlock => Ok(None),
            report => report.map(Some),
        }
    }

    fn report(&mut self) -> Result<WatchReply> {
        let (reply, _) = receive::<wire::Watch>(&mut self.connection)?;
        Ok(reply.parameters)
    }
}

impl Iterator for StatusWatch {
    type Item = Result<WatchReply>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.report() {
            Err(Error::Broken { source, .. }) if source.kind() == ErrorKind::UnexpectedEof => None,
            report => Some(report),
        }
    }
}

/// Sends a call.
fn send<M: Parameters>(connection: &Connection, parameters: &M, more: bool) -> Result<()> {
    let call = wire::call(parameters, more).map_err(io::Error::from);
    call.and_then(|call| connection.send(&call)).map_err(broken(M::NAME))
}

/// Receives one reply to a call of `M`.
fn receive<M: Parameters>(connection: &mut Connection) -> Result<(Reply<M::Reply>, Vec<OwnedFd>)> {
    let (message, fds) = connection.receive().map_err(broken(M::NAME))?;
    let reply = wire::read_reply::<M>(&message)
        .map_err(|error| broken(M::NAME)(io::Error::new(ErrorKind::InvalidData, error)))?;
    match reply {
        Ok(reply) => Ok((reply, fds)),
        Err(Refused::Interface(refused)) => Err(refused.into()),
        Err(Refused::Service(source)) => Err(Error::Unknown { method: M::NAME, source }),
    }
}

/// How many files this process may have open.
fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// A block is a descriptor, and a program has others.
fn most_blocks(open: u64) -> u32 {
    let half = usize::try_from(open / 2)
        .unwrap_or(MAX_LOAN_PARTS)
        .clamp(MAX_MESSAGE_PARTS, MAX_LOAN_PARTS);
    u32::try_from(half).unwrap_or(u32::MAX)
}

fn broken(method: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Broken { method, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::net::UnixStream;

    #[test]
    fn loan_has_at_most_half_of_the_process_file_limit() {
        let limits = std::fs::read_to_string("/proc/self/limits").expect("our own");
        let open = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let soft = open.and_then(|rest| rest.split_whitespace().next()).expect("its line");
        assert_eq!(open_files(), soft.parse().unwrap_or(u64::MAX));
        let bounds =
            [MAX_MESSAGE_PARTS, MAX_LOAN_PARTS].map(|parts| u32::try_from(parts).expect("few"));
        assert_eq!(most_blocks(0), bounds[0]);
        assert_eq!(most_blocks(1001), 500);
        assert_eq!(most_blocks(u64::MAX), bounds[1]);
    }

    /// The message for a request, by the bytes of it.
    fn sent(request: &LendRequest) -> String {
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        let connection = Connection::new(ours);
        let (path, timeout) = (PathBuf::new(), ANSWER_TIMEOUT);
        let mut client = Client { connection, path, timeout };
        std::thread::scope(|scope| {
            scope.spawn(move || client.lend(request).expect_err("nobody answers"));
            let mut call = Vec::new();
            BufReader::new(theirs).read_until(0, &mut call).expect("a call");
            String::from_utf8(call).expect("JSON")
        })
    }

    #[test]
    fn request_without_max_blocks_sends_the_process_limit() {
        let request = LendRequest::new(Bytes(1 << 21));
        let most = most_blocks(open_files());
        let call = sent(&request);
        assert!(call.contains(&format!("\"most_blocks\":{most}")), "{call}");
        let call = sent(&LendRequest { most_blocks: Some(3), ..request });
        assert!(call.contains("\"most_blocks\":3"), "{call}");
    }
}
