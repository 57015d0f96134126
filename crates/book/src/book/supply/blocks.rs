// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks that the book owns: made, zeroed and kept ready before a request.

use units::{BlockId, Domain, JobId, Node, PageSize, Pages, PoolKey};
use wire::{LendRequest, ZeroBy};

use crate::block::{Block, IllegalMove, Reach, State, StateName};
use crate::book::index::ReadyIndex;
use crate::book::job::{JobEnd, JobOrder, Requester, Work};
use crate::book::lend::{LoanPlan, Taken};
use crate::book::{Book, Effect};

impl Book {
    /// Of the pool that has the least of what it wants a dirty block before a new one (it already
    /// has its pages).
    pub(super) fn take_block(
        &mut self,
        job: JobId,
        who: Requester,
        fits: impl Fn(PoolKey) -> bool,
    ) -> Option<(JobOrder, Vec<Effect>)> {
        let (key, _) = self
            .pools
            .iter()
            // A block beyond the ready target goes back as it is, even if a user would zero it.
            .filter(|(key, pool)| fits(**key) && pool.configured)
            .filter(|(_, pool)| who == Requester::User || pool.refilling)
            .filter(|(key, _)| who == Requester::User || !self.reaches_high(**key))
            .filter(|(key, _)| self.dirty_block(**key).is_some() || self.creatable(**key) > 0)
            .min_by_key(|(key, pool)| {
                let wanted = pool.config.ready_high.0.max(1);
                self.pages_in(**key, StateName::Ready).0.saturating_mul(1000) / wanted
            })?;
        let key = *key;
        let (block, first, effect, by) = match self.dirty_block(key) {
            Some((id, missing)) => {
                let first = self.blocks.change(id, |b| b.take(job))?.ok()?;
                self.spend(key.domain(), missing);
                // The block decides, not how its pool recycles today: `fallocate` would leave
                // the pages that a client used as they are.
                let by = if missing > Pages::ZERO { ZeroBy::Allocate } else { ZeroBy::Clear };
                (id, first, Effect::Move(id), by)
            }
            None => {
                let id = BlockId(self.next_block);
                self.next_block += 1;
                self.blocks.insert(Block::new_zeroing(id, key, job));
                self.spend(key.domain(), key.pages_per_block);
                let pages = key.pages_per_block;
                let effect = Effect::Create { block: id, pages, fill: Pages::ZERO };
                (id, Pages::ZERO, effect, ZeroBy::Allocate)
            }
        };
        let (pages, work) = (key.pages_per_block, Work::Block { block, by });
        Some((JobOrder { job, pool: key, first, pages, work }, vec![effect]))
    }

    /// Whether ready blocks and those in other workers' hands already reach the high threshold.
    pub(in crate::book) fn reaches_high(&self, key: PoolKey) -> bool {
        let coming = self.coming(key);
        self.pools.get(&key).is_none_or(|p| coming >= p.config.ready_high) || self.fills_mix(key)
    }

    /// The dirty block that is furthest done, as it becomes ready soonest, and its missing pages.
    fn dirty_block(&self, key: PoolKey) -> Option<(BlockId, Pages)> {
        let block = self.blocks.furthest_dirty(key, self.spendable(key))?;
        Some((block.id(), block.missing()))
    }

    /// A worker says that the block's first `pages_done` pages are zero, and `reach` whether it let
    /// go of the file.
    pub(super) fn finish_block(
        &mut self,
        job: JobId,
        id: BlockId,
        pages_done: Pages,
        reach: Reach,
    ) -> Result<Option<JobEnd>, IllegalMove> {
        let Some(block) = self.blocks.get(id) else { return Ok(None) };
        let pool = block.pool();
        let before = match block.state() {
            State::Zeroing { done, .. } => *done,
            _ => Pages::ZERO,
        };
        let page_size = block.pool().page_size;
        // Where the kernel cannot prove that the worker let go, only `fresh` is offered, and there
        // the pages are the kernel's own: a worker is root or in the zeroing group.
        let trust = !self.in_place_allowed;
        let finished = self.blocks.change(id, |b| b.finish(job, pages_done, reach, trust));
        let Some(state) = finished.transpose()? else { return Ok(None) };
        self.record_level(pool);
        if state != StateName::Draining {
            self.counters.zeroed_bytes += pages_done.saturating_sub(before).bytes(page_size);
        }
        Ok(Some((Some(id), state, vec![Effect::Move(id)])))
    }

    /// What a worker wrote that is gone without a word, and whether it still can, is unknown.
    pub(super) fn lose_block(&mut self, job: JobId, id: BlockId) -> Vec<Effect> {
        match self.blocks.change(id, |b| b.lose(job)) {
            Some(Ok(())) => vec![Effect::Move(id)],
            _ => Vec::new(),
        }
    }

    /// Dirty pages, and whole blocks that may still be made, of a wanted pool.
    pub(super) fn zeroable_in_blocks(&self, key: PoolKey) -> Pages {
        if key.is_mixed() {
            let domain = key.domain();
            // Its sizes share the kernel's free pages: the largest share counts once.
            let new = |key: PoolKey| key.pages_per_block * self.creatable(key);
            let new = self.pools.keys().filter(|key| key.domain() == domain).map(|key| new(*key));
            return self.sum_of(domain, |key| self.dirty(key)) + new.max().unwrap_or_default();
        }
        match self.pools.get(&key) {
            Some(pool) if pool.configured => {
                self.dirty(key) + key.pages_per_block * self.creatable(key)
            }
            _ => Pages::ZERO,
        }
    }

    /// Bytes to clear in a pool's dirty blocks, if the kernel can give their missing pages.
    fn dirty(&self, key: PoolKey) -> Pages {
        self.blocks.left_dirty(key, self.spendable(key))
    }

    /// How many new blocks a pool may have now.
    fn creatable(&self, key: PoolKey) -> u64 {
        let Some(pool) = self.pools.get(&key) else { return 0 };
        // Blocks that were begun come first: a new one must not take what they miss.
        let by_kernel = self.spendable(key).saturating_sub(self.blocks.missing(key.domain()));
        let owned = || match self.is_mixed(key.domain()) {
            true => self.sum_of(key.domain(), |key| self.owned(key)),
            false => self.owned(key),
        };
        if let Some(spared) = self.spared_by_large(key)
            && (pool.config.ready_high == Pages::ZERO || key.pages_per_block + spared > by_kernel)
        {
            return 0;
        }
        let by_bound = match pool.config.max {
            Some(max) => max.saturating_sub(owned()),
            None => by_kernel,
        };
        by_kernel.min(by_bound).0 / key.pages_per_block.0
    }

    /// Ready pages of every purpose.
    pub(super) fn lendable_in_blocks(&self, domain: Domain) -> Pages {
        self.blocks.ready_blocks(domain).map(ReadyIndex::pages).unwrap_or_default()
    }

    /// A ready block is as long as those of its pool.
    pub(super) fn lendable_by_block(&self, domain: Domain) -> Vec<(Pages, Pages)> {
        let here = self.pools.keys().filter(|key| key.domain() == domain);
        here.map(|key| (key.pages_per_block, self.pages_in(*key, StateName::Ready))).collect()
    }

    pub(super) fn plan_from_blocks(
        &self,
        nodes: &[Node],
        page_size: PageSize,
        need: Pages,
        request: &LendRequest,
    ) -> Option<LoanPlan> {
        let most = request.max_parts();
        let on = |node: &Node| Domain { node: *node, page_size };
        if request.single {
            return nodes.iter().find_map(|node| self.plan_single(on(node), need));
        }
        // What loans in one file would be served from, others take only if nothing else is ready.
        let plan = self.plan_of_several(nodes, page_size, need, most, false);
        match plan.filter(LoanPlan::is_ready) {
            Some(ready) => Some(ready),
            // Pools of one size have nothing that is left to others.
            None => self.plan_of_several(nodes, page_size, need, most, true),
        }
    }

    fn plan_of_several(
        &self,
        nodes: &[Node],
        page_size: PageSize,
        need: Pages,
        most: usize,
        takes_files: bool,
    ) -> Option<LoanPlan> {
        let on = |node: &Node| Domain { node: *node, page_size };
        let mut plan = LoanPlan::default();
        let mut left = need;
        for node in nodes {
            let Some(ready) = self.blocks.ready_blocks(on(node)) else { continue };
            let is_others = |pages| !takes_files && self.is_for_files(on(node), pages);
            let mut last = None;
            while left > Pages::ZERO && plan.blocks.len() < most {
                let Some((pages, id)) = ready.fitting(left, last) else { break };
                last = Some((pages, id));
                if is_others(pages) {
                    continue;
                }
                plan.blocks.push((id, pages));
                left = left.saturating_sub(pages);
            }
            // A block larger than the rest, trimmed. Blocks taken before may be larger than the
            // rest, too.
            if left > Pages::ZERO
                && plan.blocks.len() < most
                && let Some((pages, id)) = ready
                    .from(left + Pages(1))
                    .filter(|(pages, _)| !is_others(*pages))
                    .find(|(_, id)| plan.blocks.iter().all(|(taken, _)| taken != id))
                && (self.is_worth(on(node), pages.saturating_sub(left), need)
                    || !self.has_room_beside(nodes, page_size, left))
            {
                plan.blocks.push((id, left));
                left = Pages::ZERO;
            }
        }
        if left > Pages::ZERO {
            // The unbacked part is a part, too.
            if plan.blocks.len() >= most
                && let Some((_, pages)) = plan.blocks.pop()
            {
                left += pages;
            }
            let spare: Vec<_> = plan.blocks.iter().map(|(id, _)| *id).collect();
            let room = |node: &&Node| self.room(on(node), &spare) >= left;
            let node = nodes.iter().find(room)?;
            plan.taken.push(Taken {
                pool: self.unbacked_pool(on(node))?,
                pages: left,
                zeroed: Pages::ZERO,
            });
        }
        Some(plan)
    }

    /// Whether a loan of `need` pages justifies throwing this number of ready pages away.
    fn is_worth(&self, domain: Domain, waste: Pages, need: Pages) -> bool {
        waste <= need && self.has_waste_credit(domain, waste)
    }

    /// Whether the kernel has `need` pages free on one of the nodes, beside every block. Then a
    /// large block is worth more than a small loan that would throw away more than it uses. The
    /// kernel zeroes a page of 2 MiB in 0.1 ms.
    fn has_room_beside(&self, nodes: &[Node], page_size: PageSize, pages: Pages) -> bool {
        nodes.iter().any(|node| self.available(Domain { node: *node, page_size }) >= pages)
    }

    fn plan_single(&self, domain: Domain, need: Pages) -> Option<LoanPlan> {
        let ready = self.blocks.ready_blocks(domain);
        let larger = ready.and_then(|s| s.from(need).next());
        let is_worth = |pages: Pages| {
            let waste = pages.saturating_sub(need);
            self.is_worth(domain, waste, need)
                || !self.has_room_beside(&[domain.node], domain.page_size, need)
        };
        if let Some((_, id)) = larger.filter(|(pages, _)| is_worth(*pages)) {
            return Some(LoanPlan { blocks: vec![(id, need)], taken: Vec::new() });
        }
        let smaller = ready.and_then(|s| s.fitting(need, None));
        let left = need.saturating_sub(smaller.map(|(pages, _)| pages).unwrap_or_default());
        let blocks: Vec<_> = smaller.map(|(_, id)| (id, need)).into_iter().collect();
        let spare: Vec<_> = blocks.iter().map(|(id, _)| *id).collect();
        if self.room(domain, &spare) < left {
            return None;
        }
        let pool = self.unbacked_pool(domain)?;
        Some(LoanPlan { blocks, taken: vec![Taken { pool, pages: left, zeroed: Pages::ZERO }] })
    }
}
