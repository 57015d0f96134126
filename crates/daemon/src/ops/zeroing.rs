// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs: the daemon hands pages to workers and takes their reports.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use book::block::{Reach, StateName};
use book::{JobOrder, Requester};
use rustix::pipe::PipeFlags;
use tokio::sync::oneshot;
use units::{JobId, Node, PageSize, Pages};
use wire::Error;

use super::{Shell, TakenJob, failed};
use crate::storage::store::Seen;

/// Workers, as operations and reports see them.
#[derive(Debug, Default)]
pub(crate) struct WorkerStates {
    /// The daemon's own workers that run.
    pub(crate) running: u32,
    /// Whether the daemon's own workers wait for CPU pressure to fall.
    pub(crate) paused: bool,
    /// Workers that get no more work, by process.
    abandoned: BTreeSet<u32>,
    /// Workers that wait for pages to zero, by process, and the node that they want.
    idle: BTreeMap<u32, Option<Node>>,
}

impl WorkerStates {
    /// A worker waits for pages to zero, until it is told that it does not.
    pub(super) fn set_idle(&mut self, pid: Option<u32>, node: Option<Node>, idle: bool) {
        match pid {
            Some(pid) if idle => drop(self.idle.insert(pid, node)),
            Some(pid) => drop(self.idle.remove(&pid)),
            None => {}
        }
    }

    /// Whether it waits for pages to zero.
    pub(crate) fn is_idle(&self, pid: u32) -> bool {
        self.idle.contains_key(&pid)
    }

    /// Whether it waits for pages of other nodes than these.
    pub(crate) fn is_idle_elsewhere(&self, pid: u32, nodes: &[Node]) -> bool {
        self.idle.get(&pid).is_some_and(|node| node.is_some_and(|node| !nodes.contains(&node)))
    }

    /// A worker gets no more work: a delegated one whose writer has gone, or one that was asked to
    /// stop.
    pub(crate) fn abandon(&mut self, pid: u32) {
        self.abandoned.insert(pid);
    }

    /// An abandoned worker has ended.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.abandoned.remove(&pid);
    }

    pub(crate) fn is_abandoned(&self, pid: u32) -> bool {
        self.abandoned.contains(&pid)
    }
}

impl Shell {
    /// Hands work to a worker, and returns the daemon's end of the job to watch. `None` where there
    /// is no work.
    pub(crate) fn take_zeroing(
        &mut self,
        who: Requester,
        node: Option<Node>,
        page_size: Option<PageSize>,
    ) -> Result<Option<(TakenJob, OwnedFd)>, wire::Error> {
        if self.drain_mode.is_on() {
            return Ok(None);
        }
        let (watch, job) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|e| Error::Failed { what: format!("pipe2(O_CLOEXEC|O_NONBLOCK) = {e}") })?;
        self.observe();
        if who == Requester::Background {
            self.book.wanted_workers(self.config.workers.max);
        }
        let taken = match self.apply(|book| book.take_zeroing(who, node, page_size)) {
            (None, _) => {
                // Pages promised to other jobs may have been taken since the last look.
                self.look_again();
                self.apply(|book| book.take_zeroing(who, node, page_size))
            }
            taken => taken,
        };
        let (Some(order), mut made) = taken else { return Ok(None) };
        let block = match (order.block(), made.pop()) {
            (None, _) => None,
            (Some(_), Some(made)) => Some(made.file),
            (Some(block), None) => match self.store.open_block(block) {
                Ok(file) => Some(file),
                Err(error) => {
                    self.lose_job(order.job);
                    return Err(failed(&error));
                }
            },
        };
        Ok(Some((TakenJob { order, block: block.map(OwnedFd::from), job }, watch)))
    }

    /// Whether a worker that waits would find pages to zero, as of the last look at the kernel.
    pub(crate) fn has_zeroing(
        &mut self,
        who: Requester,
        node: Option<Node>,
        page_size: Option<PageSize>,
    ) -> bool {
        if who == Requester::Background {
            self.book.wanted_workers(self.config.workers.max);
        }
        !self.drain_mode.is_on() && self.book.has_zeroing(who, node, page_size)
    }

    /// Begins the check which processes reach the block of a reported job. The result goes to
    /// [`finish_zeroing`](Self::finish_zeroing). `None` for an unknown job, or one without a block.
    pub(crate) fn look_at_report(&self, job: JobId) -> Option<oneshot::Receiver<Seen>> {
        let block = self.book.job(job)?.block()?;
        match self.store.look_at_report(block) {
            Ok(reported) => Some(reported),
            Err(error) => {
                tracing::warn!(%error, %block, "cannot tell who holds a block");
                None
            }
        }
    }

    /// Books a worker's report. `None` for an unknown job.
    pub(crate) fn finish_zeroing(
        &mut self,
        job: JobId,
        done: Pages,
        seen: Option<Seen>,
    ) -> Option<StateName> {
        let order = self.book.job(job)?.clone();
        let (reach, done) = match (order.block(), seen) {
            // A page without memory was not zeroed, even if the worker reports it.
            (Some(_), Some((reach, allocated))) => (reach, done.min(allocated)),
            (Some(_), None) => (Reach::Shared, Pages::ZERO),
            (None, _) => (Reach::Sole, done),
        };
        match self.apply(|book| book.finish_zeroing(job, done, reach)).0 {
            Ok(Some((_, state))) => {
                self.follow_up(&order, state == StateName::Draining);
                Some(state)
            }
            Ok(None) => None,
            Err(error) => {
                tracing::error!(%error, "a job ended in a state it cannot end in");
                None
            }
        }
    }

    /// A worker has ended. No-op after its report.
    pub(crate) fn lose_job(&mut self, job: JobId) {
        let Some(order) = self.book.job(job).cloned() else { return };
        self.apply(|book| book.lose_job(job));
        self.follow_up(&order, true);
    }

    /// After a job: checks its block if that drains. Without a block, the kernel's counts say how
    /// much is ready.
    fn follow_up(&mut self, order: &JobOrder, draining: bool) {
        match order.block() {
            Some(block) if draining => self.settle(block),
            Some(_) => {}
            None => self.look_again(),
        }
    }
}
