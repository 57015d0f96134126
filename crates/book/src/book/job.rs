// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handing work to workers and taking it back. What the work is, [`supply`](super::supply) knows.

use units::{BlockId, JobId, Node, PageSize, Pages, PoolKey};
use wire::ZeroBy;

use super::{Book, Effect};
use crate::block::{IllegalMove, Reach, StateName};

/// The account for which a worker zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// A user's worker: any zeroable page.
    User,
    /// One of the daemon's own: only what the thresholds ask for.
    Background,
}

/// What a worker has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOrder {
    /// The job.
    pub job: JobId,
    /// The pool to zero.
    pub pool: PoolKey,
    /// Pages from the start that are done already.
    pub first: Pages,
    /// Pages in total.
    pub pages: Pages,
    /// Which.
    pub work: Work,
}

/// The pages that a worker has to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Those of a block, which has a file.
    Block {
        /// The block.
        block: BlockId,
        /// How to clear it.
        by: ZeroBy,
    },
    /// Any of the kernel's own pool, where they are.
    Pages,
}

impl JobOrder {
    /// The block that is zeroed, if it is one.
    #[must_use]
    pub fn block(&self) -> Option<BlockId> {
        match self.work {
            Work::Block { block, .. } => Some(block),
            Work::Pages => None,
        }
    }

    /// How to clear it.
    #[must_use]
    pub fn by(&self) -> ZeroBy {
        match self.work {
            Work::Block { by, .. } => by,
            Work::Pages => ZeroBy::Kernel,
        }
    }
}

/// A reported job: its block, if it had one, the state of its pages, and the effects.
pub type JobEnd = (Option<BlockId>, StateName, Vec<Effect>);

impl Book {
    /// Picks what a worker should zero next: the pool that has the least of what it wants first.
    ///
    /// `None` when there is nothing to zero.
    pub fn take_zeroing(
        &mut self,
        who: Requester,
        node: Option<Node>,
        page_size: Option<PageSize>,
    ) -> Option<(JobOrder, Vec<Effect>)> {
        let fits = |key: PoolKey| key.domain().fits(node, page_size);
        let (order, effects) = self.take(JobId(self.next_job), who, fits)?;
        self.next_job += 1;
        self.jobs.insert(order.job, order.clone());
        Some((order, effects))
    }

    /// A worker says that the first `done` pages of its job are zero. `reach` is whether it let go
    /// of the block's file, if the job is on one.
    ///
    /// # Errors
    /// `None` for a job that is unknown; [`IllegalMove`] cannot happen while the book is
    /// consistent.
    pub fn finish_zeroing(
        &mut self,
        job: JobId,
        done: Pages,
        reach: Reach,
    ) -> Result<Option<JobEnd>, IllegalMove> {
        match self.jobs.remove(&job) {
            Some(order) => self.finish(&order, done, reach),
            None => Ok(None),
        }
    }

    /// A worker is gone without a word. Nothing happens for a job that is unknown.
    pub fn lose_job(&mut self, job: JobId) -> Vec<Effect> {
        let Some(order) = self.jobs.remove(&job) else { return Vec::new() };
        self.counters.lost_workers += 1;
        self.lose(&order)
    }

    /// A job in a worker's hands.
    #[must_use]
    pub fn job(&self, job: JobId) -> Option<&JobOrder> {
        self.jobs.get(&job)
    }
}
