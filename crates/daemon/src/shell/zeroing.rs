// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs: handing pages to workers and taking their reports.

use book::Who;
use book::block::{Reach, StateName};
use units::{JobId, Node, PageSize, Pages};

use super::{Order, Shell, failed};

impl Shell {
    /// Hands a block to a worker: its file, and the daemon's end of the job to watch.
    pub(crate) fn take_zeroing(
        &mut self,
        who: Who,
        node: Option<Node>,
        page_size: Option<PageSize>,
    ) -> Result<Option<Order>, wire::Error> {
        self.observe();
        if who == Who::Background {
            self.book.wanted_workers(self.config.workers.max);
        }
        if self.provider.kernel().is_some() {
            return Ok(self.book.take_kernel_zeroing(who, node, page_size).map(Order::Kernel));
        }
        let taken = self.book.take_zeroing(who, node, page_size).or_else(|| {
            // What other jobs were promised may have been taken since the last look.
            self.observed = None;
            self.observe();
            self.book.take_zeroing(who, node, page_size)
        });
        let Some((order, effects)) = taken else { return Ok(None) };
        let made = self.carry_out(&effects).pop().map(|(_, file)| file);
        let opened = made.map_or_else(|| self.store.open_block(order.block), Ok);
        match opened {
            Ok(file) => Ok(Some(Order::Block(order, file.into()))),
            Err(error) => {
                self.lose_job(order.job);
                Err(failed(&error))
            }
        }
    }

    /// Books what a worker reports. `None` for a job that is unknown.
    pub(crate) fn finish_zeroing(&mut self, job: JobId, done: Pages) -> Option<StateName> {
        if let Some(state) = self.book.finish_kernel_zeroing(job, done) {
            self.look_again();
            return Some(state);
        }
        let block = self.book.job_block(job)?;
        let page_size = self.book.block(block)?.pool().page_size;
        let (reach, allocated) =
            self.store.reach(block, page_size).unwrap_or((Reach::Shared, Pages::ZERO));
        // A page that has no memory was not zeroed, whatever the worker says.
        let done = done.min(allocated);
        match self.book.finish_zeroing(job, done, reach) {
            Ok(Some((block, state, effects))) => {
                self.carry_out(&effects);
                if state == StateName::Lingering {
                    self.settle(block);
                }
                Some(state)
            }
            Ok(None) => None,
            Err(error) => {
                tracing::error!(%error, "a job ended in a state it can't end in");
                None
            }
        }
    }

    /// A worker is gone. No-op if it reported before.
    pub(crate) fn lose_job(&mut self, job: JobId) {
        if self.book.lose_kernel_job(job) {
            self.book.count_lost_worker();
            self.look_again();
            return;
        }
        let Some(block) = self.book.job_block(job) else { return };
        self.book.count_lost_worker();
        let effects = self.book.lose_job(job);
        self.carry_out(&effects);
        self.settle(block);
    }
}
