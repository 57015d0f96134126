// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection to the daemon, and a method per method of the interface.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use units::{Bytes, Node, PageSize, Pages};
use wire::{Finished, GivenBack, Lent, PoolChange, Status, WatchReply};
use zlink::{Call, Connection};

use crate::error::{Error, Result};
use crate::loan::{LendRequest, Loan};
use crate::socket::{Blocking, now};

/// How long an answer may take before the connection counts as broken.
///
/// A loan waits at most 2 s for its owner's former self (see the daemon), so 10 s is a hang.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

#[zlink::proxy(interface = "io.prezero")]
#[expect(clippy::too_many_arguments, reason = "a parameter each in the interface")]
trait Prezero {
    async fn get_status(&mut self) -> zlink::Result<std::result::Result<Status, wire::Error>>;

    #[zlink(return_fds)]
    async fn lend(
        &mut self,
        bytes: u64,
        page_bytes: Option<u64>,
        node: Option<u32>,
        owner: Option<&str>,
        keep_seconds: Option<u64>,
        single: Option<bool>,
        held_by_memory: Option<bool>,
    ) -> zlink::Result<(std::result::Result<Lent, wire::Error>, Vec<OwnedFd>)>;

    #[zlink(return_fds)]
    async fn take_zeroing(
        &mut self,
        node: Option<u32>,
        page_bytes: Option<u64>,
        background: Option<bool>,
    ) -> zlink::Result<(std::result::Result<wire::Job, wire::Error>, Vec<OwnedFd>)>;

    async fn finish_zeroing(
        &mut self,
        job: u64,
        pages_done: u64,
    ) -> zlink::Result<std::result::Result<Finished, wire::Error>>;

    async fn give_back(
        &mut self,
        node: Option<u32>,
        page_bytes: Option<u64>,
        pages: Option<u64>,
    ) -> zlink::Result<std::result::Result<GivenBack, wire::Error>>;

    async fn configure(
        &mut self,
        change: PoolChange,
    ) -> zlink::Result<std::result::Result<(), wire::Error>>;
}

/// A connection to the daemon. Every call blocks until its answer, at most [`ANSWER_TIMEOUT`].
#[derive(Debug)]
pub struct Client {
    connection: Connection<Blocking>,
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
        let stream = crate::socket::connect(path, timeout)
            .map_err(|source| Error::NoDaemon { path: path.to_owned(), source })?;
        Ok(Self { connection: Connection::new(Blocking(stream)) })
    }

    /// Everything there is to see.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Broken`].
    pub fn status(&mut self) -> Result<Status> {
        answer("GetStatus", now(self.connection.get_status()))
    }

    /// Borrows memory. Never waits for zeroing: what is not ready comes as a hole, which the
    /// kernel zeroes when the program touches it.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason, [`Error::Broken`], [`Error::Descriptors`].
    pub fn lend(&mut self, request: &LendRequest) -> Result<Loan> {
        let call = self.connection.lend(
            request.bytes.0,
            request.page_size.map(PageSize::bytes),
            request.node.map(|n| n.0),
            request.owner.as_ref().map(units::Owner::as_str),
            request.keep.map(|keep| keep.as_secs()),
            Some(request.single),
            Some(request.held_by_memory),
        );
        let (reply, fds) = now(call).map_err(broken("Lend"))?;
        Loan::from_reply(reply?, fds)
    }

    /// Takes work for a worker: what is to be done, and its descriptors. `background` asks only
    /// for what the thresholds want.
    ///
    /// # Errors
    /// [`wire::Error::NothingToZero`] as [`Error::Refused`] when there is nothing (left) to do.
    pub fn take_zeroing(
        &mut self,
        node: Option<Node>,
        page_size: Option<PageSize>,
        background: bool,
    ) -> Result<(wire::Job, Vec<OwnedFd>)> {
        let page_bytes = page_size.map(PageSize::bytes);
        let call = self.connection.take_zeroing(node.map(|n| n.0), page_bytes, Some(background));
        let (reply, fds) = now(call).map_err(broken("TakeZeroing"))?;
        Ok((reply?, fds))
    }

    /// Reports a job. Everything of it must have been dropped before: the daemon proves that
    /// nobody holds the block any more, and takes it for dirty otherwise.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`wire::Error::NoSuchJob`] for a job that was reported or lost.
    pub fn finish_zeroing(&mut self, job: u64, pages_done: Pages) -> Result<Finished> {
        answer("FinishZeroing", now(self.connection.finish_zeroing(job, pages_done.0)))
    }

    /// Gives ready and zeroable blocks back to the kernel: `pages` of them, or all.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Broken`].
    pub fn give_back(
        &mut self,
        node: Option<Node>,
        page_size: Option<PageSize>,
        pages: Option<Pages>,
    ) -> Result<Bytes> {
        let page_bytes = page_size.map(PageSize::bytes);
        let call = self.connection.give_back(node.map(|n| n.0), page_bytes, pages.map(|p| p.0));
        answer("GiveBack", now(call)).map(|given: GivenBack| Bytes(given.bytes))
    }

    /// Changes a pool's thresholds, or adds a pool.
    ///
    /// # Errors
    /// [`Error::Refused`] with the rule that was broken, and nothing changed.
    pub fn configure(&mut self, change: PoolChange) -> Result<()> {
        answer("Configure", now(self.connection.configure(change)))
    }

    /// Watches levels: with `below`, one report whenever a node's ready pages fall below it (and
    /// one at once if they are); without, one now and one whenever a count changes. At most one
    /// report each `interval`; the last state is never lost.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Broken`]. The iterator ends with the daemon.
    pub fn watch(
        mut self,
        node: Option<Node>,
        page_size: Option<PageSize>,
        below: Option<Pages>,
        interval: Duration,
    ) -> Result<Watch> {
        #[derive(Debug, serde::Serialize)]
        #[serde(tag = "method", content = "parameters")]
        enum Method {
            #[serde(rename = "io.prezero.Watch")]
            Watch {
                node: Option<u32>,
                page_bytes: Option<u64>,
                below: Option<u64>,
                interval_ms: Option<u64>,
            },
        }
        let method = Method::Watch {
            node: node.map(|n| n.0),
            page_bytes: page_size.map(PageSize::bytes),
            below: below.map(|p| p.0),
            interval_ms: Some(u64::try_from(interval.as_millis()).unwrap_or(u64::MAX)),
        };
        let call = Call::new(method).set_more(true);
        now(self.connection.send_call(&call, Vec::new())).map_err(broken("Watch"))?;
        // A watch may be silent for days.
        self.connection
            .read()
            .read_half()
            .set_timeout(None)
            .map_err(|e| broken("Watch")(e.into()))?;
        Ok(Watch { connection: self.connection })
    }
}

/// The reports of [`Client::watch`]. Blocks in `next`; dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    connection: Connection<Blocking>,
}

impl Iterator for Watch {
    type Item = Result<WatchReply>;

    fn next(&mut self) -> Option<Self::Item> {
        let received = now(self.connection.receive_reply::<WatchReply, wire::Error>());
        match received {
            Ok((Ok(reply), _)) => reply.into_parameters().map(Ok),
            Ok((Err(refused), _)) => Some(Err(refused.into())),
            Err(zlink::Error::UnexpectedEof) => None,
            Err(source) => Some(Err(broken("Watch")(source))),
        }
    }
}

fn broken(method: &'static str) -> impl Fn(zlink::Error) -> Error {
    move |source| Error::Broken { method, source }
}

fn answer<T>(
    method: &'static str,
    result: zlink::Result<std::result::Result<T, wire::Error>>,
) -> Result<T> {
    Ok(result.map_err(broken(method))??)
}
