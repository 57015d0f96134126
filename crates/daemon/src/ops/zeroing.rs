// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs: handing pages to workers and taking their reports.

use std::os::fd::OwnedFd;

use book::block::{Reach, StateName};
use book::{JobOrder, Who};
use rustix::pipe::PipeFlags;
use tokio::sync::oneshot;
use units::{JobId, Node, PageSize, Pages};
use wire::Error;

use super::{Shell, Taken, failed};
use crate::storage::store::Seen;

impl Shell {
    /// Hands work to a worker, with the daemon's end of the job to watch. `None` where there is
    /// none.
    pub(crate) fn take_zeroing(
        &mut self,
        who: Who,
        node: Option<Node>,
        page_size: Option<PageSize>,
    ) -> Result<Option<(Taken, OwnedFd)>, wire::Error> {
        if self.draining.is_on() {
            return Ok(None);
        }
        let (watch, job) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|e| Error::Failed { what: format!("pipe2(O_CLOEXEC|O_NONBLOCK) = {e}") })?;
        self.observe();
        if who == Who::Background {
            self.book.wanted_workers(self.config.workers.max);
        }
        let taken = match self.apply(|book| book.take_zeroing(who, node, page_size)) {
            (None, _) => {
                // What other jobs were promised may have been taken since the last look.
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
        Ok(Some((Taken { order, block: block.map(OwnedFd::from), job }, watch)))
    }

    /// Has it looked up who can reach the block of a job that is reported: what comes of it is for
    /// [`finish_zeroing`](Self::finish_zeroing). `None` for a job on no block, or none at all.
    pub(crate) fn look_at_report(&self, job: JobId) -> Option<oneshot::Receiver<Seen>> {
        let block = self.book.job(job)?.block()?;
        match self.store.look_at_report(block) {
            Ok(told) => Some(told),
            Err(error) => {
                tracing::warn!(%error, %block, "cannot tell who holds a block");
                None
            }
        }
    }

    /// Books what a worker reports. `None` for a job that is unknown.
    pub(crate) fn finish_zeroing(
        &mut self,
        job: JobId,
        done: Pages,
        seen: Option<Seen>,
    ) -> Option<StateName> {
        let order = self.book.job(job)?.clone();
        let (reach, done) = match (order.block(), seen) {
            // A page that has no memory was not zeroed, whatever the worker says.
            (Some(_), Some((reach, allocated))) => (reach, done.min(allocated)),
            (Some(_), None) => (Reach::Shared, Pages::ZERO),
            (None, _) => (Reach::Sole, done),
        };
        match self.apply(|book| book.finish_zeroing(job, done, reach)).0 {
            Ok(Some((_, state))) => {
                self.follow_up(&order, state == StateName::Lingering);
                Some(state)
            }
            Ok(None) => None,
            Err(error) => {
                tracing::error!(%error, "a job ended in a state it cannot end in");
                None
            }
        }
    }

    /// A worker is gone. No-op if it reported before.
    pub(crate) fn lose_job(&mut self, job: JobId) {
        let Some(order) = self.book.job(job).cloned() else { return };
        self.apply(|book| book.lose_job(job));
        self.follow_up(&order, true);
    }

    /// After a job: a block of it that lingers is looked at, and what is ready where there is no
    /// block the kernel says.
    fn follow_up(&mut self, order: &JobOrder, lingers: bool) {
        match order.block() {
            Some(block) if lingers => self.settle(block),
            Some(_) => {}
            None => self.look_again(),
        }
    }
}
