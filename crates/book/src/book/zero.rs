// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handing blocks to workers and taking them back.

use units::{BlockId, JobId, Node, PageSize, Pages, PoolKey};
use wire::ZeroBy;

use super::{Book, Effect};
use crate::block::{Block, IllegalMove, Reach, State, StateName};

/// On whose account a worker zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A user's worker: whatever can be zeroed.
    User,
    /// One of the daemon's own: only what the thresholds ask for.
    Background,
}

/// A block in a worker's hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOrder {
    /// The job.
    pub job: JobId,
    /// Its block.
    pub block: BlockId,
    /// The block's pool.
    pub pool: PoolKey,
    /// The first page that is not done yet.
    pub first: Pages,
    /// How to clear it.
    pub by: ZeroBy,
}

impl Book {
    /// Picks what a worker should zero next: the pool that has the least of what it wants first,
    /// and in it a dirty block before a new one (it already has its pages).
    ///
    /// `None` when there is nothing to zero.
    pub fn take_zeroing(
        &mut self,
        who: Who,
        node: Option<Node>,
        page_size: Option<PageSize>,
    ) -> Option<(JobOrder, Vec<Effect>)> {
        let fits = |key: &PoolKey| {
            node.is_none_or(|n| n == key.node) && page_size.is_none_or(|s| s == key.page_size)
        };
        let (key, _) = self
            .pools
            .iter()
            .filter(|(key, pool)| fits(key) && (who == Who::User || pool.refilling))
            .filter(|(key, _)| who == Who::User || !self.reaches_high(**key))
            .filter(|(key, _)| self.dirty_block(**key).is_some() || self.creatable(**key) > 0)
            .min_by_key(|(key, pool)| {
                let wanted = pool.config.ready_high.0.max(1);
                self.pages_in(**key, StateName::Ready).0.saturating_mul(1000) / wanted
            })?;
        let key = *key;
        let job = JobId(self.next_job);
        let (block, first, effect, by) = match self.dirty_block(key) {
            Some((id, missing)) => {
                let first = self.blocks.change(id, |b| b.take(job))?.ok()?;
                self.spend(key, missing);
                // The block decides, not how its pool recycles today: `fallocate` would leave
                // the pages that a client used as they are.
                let by = if missing > Pages::ZERO { ZeroBy::Allocate } else { ZeroBy::Clear };
                (id, first, Effect::Move(id), by)
            }
            None => {
                let id = BlockId(self.next_block);
                self.next_block += 1;
                self.blocks.insert(Block::new_zeroing(id, key, job));
                self.spend(key, key.pages_per_block);
                let effect = Effect::Create { block: id, pages: key.pages_per_block };
                (id, Pages::ZERO, effect, ZeroBy::Allocate)
            }
        };
        self.next_job += 1;
        self.jobs.insert(job, block);
        Some((JobOrder { job, block, pool: key, first, by }, vec![effect]))
    }

    /// Whether what is ready and in other workers' hands already reaches the high threshold.
    fn reaches_high(&self, key: PoolKey) -> bool {
        let coming = self.pages_in(key, StateName::Ready) + self.pages_in(key, StateName::Zeroing);
        self.pools.get(&key).is_none_or(|p| coming >= p.config.ready_high)
    }

    /// The dirty block that is furthest done, as it becomes ready soonest, and its missing pages.
    fn dirty_block(&self, key: PoolKey) -> Option<(BlockId, Pages)> {
        let done = |b: &&Block| match b.state() {
            State::Zeroable { done } => *done,
            _ => Pages::ZERO,
        };
        self.takeable(key).max_by_key(done).map(|b| (b.id(), b.missing()))
    }

    pub(super) fn spend(&mut self, key: PoolKey, pages: Pages) {
        if let Some(available) = self.available.get_mut(&(key.node, key.page_size)) {
            *available = available.saturating_sub(pages);
        }
    }

    /// A worker says that the block's first `pages_done` pages are zero, and `reach` whether it
    /// let go of the file.
    ///
    /// # Errors
    /// [`None`](Option::None) of the state for a job that is unknown; [`IllegalMove`] can not
    /// happen while the book is consistent.
    pub fn finish_zeroing(
        &mut self,
        job: JobId,
        pages_done: Pages,
        reach: Reach,
    ) -> Result<Option<(BlockId, StateName, Vec<Effect>)>, IllegalMove> {
        let Some(id) = self.jobs.remove(&job) else { return Ok(None) };
        let Some(block) = self.blocks.get(id) else { return Ok(None) };
        let pool = block.pool();
        let before = match block.state() {
            State::Zeroing { done, .. } => *done,
            _ => Pages::ZERO,
        };
        let page_size = block.pool().page_size;
        // Where the kernel can not prove that the worker let go, only `fresh` is offered, and
        // there the pages are the kernel's own: a worker is root or in the zeroing group.
        let trust = !self.in_place_allowed;
        let finished = self.blocks.change(id, |b| b.finish(job, pages_done, reach, trust));
        let Some(state) = finished.transpose()? else { return Ok(None) };
        self.note_level(pool);
        if state != StateName::Lingering {
            self.counters.zeroed_bytes += pages_done.saturating_sub(before).bytes(page_size).0;
        }
        Ok(Some((id, state, vec![Effect::Move(id)])))
    }

    /// A worker is gone without a word: what it wrote, and whether it still can, is unknown.
    pub fn lose_job(&mut self, job: JobId) -> Vec<Effect> {
        let Some(id) = self.jobs.remove(&job) else { return Vec::new() };
        match self.blocks.change(id, |b| b.lose(job)) {
            Some(Ok(())) => vec![Effect::Move(id)],
            _ => Vec::new(),
        }
    }

    /// The block of a job.
    #[must_use]
    pub fn job_block(&self, job: JobId) -> Option<BlockId> {
        self.jobs.get(&job).copied()
    }
}
