// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools with ready pages in the kernel: the book owns no blocks, everything is observed.
//!
//! A kernel with the series knows the zero pages of its own pool. There is no block before a loan
//! then: *ready*, *zeroing* and *zeroable* are the kernel's counts ([`Book::observe`]), a worker's
//! job is a number of pages, and a loan is a new file that takes its pages, zeroed, from the
//! kernel's pool. From there on a block lives as any other: it is lent, is draining, is kept, and
//! goes.
//!
//! *Limits*: between two looks the book subtracts the pages that it has promised to loans. Jobs in
//! workers' hands count as ready to come, and so do reported pages until the next look at the
//! kernel. So zeroing stops at `max`, and own workers stop at the high threshold. The finished part
//! of a running job is unknown until its report; the error is on the side of zeroing less.
//!
//! A block's size has no meaning before the block is made, so pools of one node and page size are
//! one here: thresholds and bounds are added up ([`merged`]).

use std::collections::BTreeMap;

use units::{BlockId, Bytes, Counts, Domain, JobId, Node, PageSize, Pages, PoolKey};

use crate::block::{Block, StateName};
use crate::book::job::{JobOrder, Requester, Work};
use crate::book::lend::{LoanPlan, Taken};
use crate::book::supply::PoolSupply;
use crate::book::{Book, Pool};
use crate::config::{ConfigError, PoolConfig, Recycle};

/// What a worker gets in one job: 0.1 s of work at 2.5 GB/s, and no more is out of sight between
/// two reports.
const JOB_BYTES: Bytes = Bytes(256 << 20);

/// What the kernel was seen to have.
#[derive(Debug, Default)]
pub(in crate::book) struct KernelPools {
    seen: BTreeMap<Domain, Counts>,
    /// Pages zeroed by jobs that were reported since the last look. They are lent only after the
    /// kernel has confirmed them.
    reported: BTreeMap<Domain, Pages>,
}

impl KernelPools {
    /// The counts seen of a pool. A pool of an earlier daemon that owned blocks has none of them:
    /// it owns only its lent blocks.
    pub(super) fn counts(&self, key: PoolKey) -> Counts {
        let seen = self.seen.get(&key.domain()).filter(|_| key == canonical(key));
        seen.copied().unwrap_or_default()
    }

    /// Returns whether pages became or stopped being zero, or zeroable, since the last look.
    pub(super) fn observe(&mut self, domain: Domain, seen: Counts) -> bool {
        let states = |counts: Counts| (counts.ready, counts.zeroing, counts.zeroable);
        self.reported.remove(&domain);
        self.seen.insert(domain, seen).map(states) != Some(states(seen))
    }

    /// Zeroed pages that are a loan's from now on.
    pub(super) fn promise(&mut self, domain: Domain, pages: Pages) {
        if let Some(counts) = self.seen.get_mut(&domain) {
            counts.ready = counts.ready.saturating_sub(pages);
        }
    }

    fn reported(&self, key: PoolKey) -> Pages {
        self.reported.get(&key.domain()).copied().unwrap_or_default()
    }

    /// A job's report: this number of pages is zero now.
    fn report(&mut self, domain: Domain, pages: Pages) {
        *self.reported.entry(domain).or_default() += pages;
    }
}

/// The one pool of a domain.
pub(super) fn pool_of(domain: Domain) -> PoolKey {
    let Domain { node, page_size } = domain;
    PoolKey { node, page_size, pages_per_block: Pages(1) }
}

/// The one pool of its domain.
pub(super) fn canonical(key: PoolKey) -> PoolKey {
    pool_of(key.domain())
}

/// Pools of one node and page size as one: thresholds and bounds add up, the larger `leave_free`
/// counts, and every pool is *fresh*.
pub(super) fn merged(
    pools: impl IntoIterator<Item = PoolConfig>,
) -> Result<Vec<PoolConfig>, ConfigError> {
    let mut merged: BTreeMap<PoolKey, PoolConfig> = BTreeMap::new();
    for pool in pools {
        pool.check()?;
        // Pages that are ready stay free for all: there is nothing to save by a lower amount.
        let (learns, recycle) = (None, Recycle::Fresh);
        let pool = PoolConfig { pages_per_block: Pages(1), learns, recycle, ..pool };
        match merged.get_mut(&pool.key()) {
            None => {
                merged.insert(pool.key(), pool);
            }
            Some(sum) => {
                // Without any it stays what `ready_high` is, whenever that changes.
                let low = sum.ready_low.or(pool.ready_low).map(|_| sum.low() + pool.low());
                sum.ready_low = low;
                sum.ready_high += pool.ready_high;
                sum.max = sum.max.zip(pool.max).map(|(a, b)| a + b);
                sum.leave_free = sum.leave_free.max(pool.leave_free);
            }
        }
    }
    Ok(merged.into_values().collect())
}

impl Book {
    pub(super) fn zeroable_in_kernel(&self, pools: &KernelPools, key: PoolKey) -> Pages {
        let pool = self.pools.get(&key).filter(|_| key == canonical(key));
        let Some(pool) = pool.filter(|pool| pool.configured) else { return Pages::ZERO };
        let zeroable = pools.counts(key).zeroable;
        let bound = match pool.config.max {
            Some(max) => max.saturating_sub(self.ready(key) + self.owned(key)),
            None => zeroable,
        };
        zeroable.min(bound)
    }

    /// `leave_free` stays for others.
    pub(super) fn lendable_in_kernel(&self, pools: &KernelPools, domain: Domain) -> Pages {
        let key = pool_of(domain);
        pools.counts(key).ready.min(self.spendable(key))
    }

    /// New files only, each node giving what it has zeroed and one of them the rest as an unbacked
    /// part. One node gives one file.
    pub(super) fn plan_from_kernel(
        &self,
        nodes: &[Node],
        page_size: PageSize,
        need: Pages,
    ) -> Option<LoanPlan> {
        let mut taken = Vec::new();
        let mut left = need;
        for node in nodes {
            let domain = Domain { node: *node, page_size };
            let zeroed = self.lendable(domain).min(left);
            left = left.saturating_sub(zeroed);
            taken.push(Taken { pool: self.unbacked_pool(domain)?, pages: zeroed, zeroed });
        }
        if left > Pages::ZERO {
            let room = |t: &&mut Taken| self.room(t.pool.domain(), &[]) >= t.pages + left;
            let largest = taken.iter_mut().find(room)?;
            largest.pages += left;
        }
        taken.retain(|t| t.pages > Pages::ZERO);
        Some(LoanPlan { blocks: Vec::new(), taken })
    }

    /// Pages of a pool that workers have in hand, done or not.
    fn in_hand(&self, key: PoolKey) -> Pages {
        self.jobs.values().filter(|order| order.pool == key).map(|order| order.pages).sum()
    }

    pub(super) fn take_pages(
        &self,
        pools: &KernelPools,
        job: JobId,
        who: Requester,
        fits: impl Fn(PoolKey) -> bool,
    ) -> Option<JobOrder> {
        let wanted = |key: PoolKey, pool: &Pool| {
            let reported = pools.reported(key);
            let coming = self.ready(key) + reported + self.in_hand(key);
            let bound = pool.config.max.map(|max| max.saturating_sub(coming + self.owned(key)));
            let zeroable = self.zeroable_in_kernel(pools, key).saturating_sub(reported);
            let zeroable = zeroable.min(bound.unwrap_or(zeroable));
            match who {
                Requester::User => zeroable,
                Requester::Background if !pool.refilling => Pages::ZERO,
                Requester::Background => {
                    zeroable.min(pool.config.ready_high.saturating_sub(coming))
                }
            }
        };
        let (pool, wanted) = self
            .pools
            .iter()
            .filter(|(key, _)| fits(**key))
            .map(|(key, pool)| (*key, wanted(*key, pool)))
            .filter(|(_, pages)| *pages > Pages::ZERO)
            .min_by_key(|(key, _)| {
                let high = self.pools.get(key).map_or(0, |p| p.config.ready_high.0).max(1);
                self.ready(*key).0.saturating_mul(1000) / high
            })?;
        let most = JOB_BYTES.whole_pages(pool.page_size).max(Pages(1));
        Some(JobOrder { job, pool, first: Pages::ZERO, pages: wanted.min(most), work: Work::Pages })
    }

    /// A worker reports the number of pages that it has zeroed. The kernel reports the ready pages.
    pub(super) fn finish_pages(&mut self, order: &JobOrder, done: Pages) -> StateName {
        let zeroed = done.min(order.pages);
        self.counters.zeroed_bytes += zeroed.bytes(order.pool.page_size);
        if let PoolSupply::Kernel(pools) = &mut self.supply {
            pools.report(order.pool.domain(), zeroed);
        }
        if done >= order.pages { StateName::Ready } else { StateName::Zeroable }
    }

    /// Reports that a block was just lent with a plan of `planned` zeroed pages, and only the first
    /// `filled` were available: the rest is an unbacked part.
    pub fn record_filled(&mut self, block: BlockId, planned: Pages, filled: Pages) {
        let Some(pool) = self.block(block).map(Block::pool) else { return };
        self.blocks.change(block, |b| b.record_filled(filled));
        let short = planned.saturating_sub(filled);
        let bytes = short.bytes(pool.page_size);
        self.counters.lent_ready_bytes = self.counters.lent_ready_bytes.saturating_sub(bytes);
        self.counters.lent_unbacked_bytes += bytes;
        let counts = self.lent_so_far.entry(pool.domain()).or_default();
        counts.hits = counts.hits.saturating_sub(short);
        counts.misses += short;
    }
}
