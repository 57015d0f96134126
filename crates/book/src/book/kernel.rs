// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools whose ready pages the kernel keeps: nothing is owned, everything is observed.
//!
//! A kernel with the series knows which pages of its own pool are zero. There is no block before a
//! loan then: *ready*, *zeroing* and *zeroable* are what the kernel says
//! ([`Book::observe_zeroed`]), a worker's job is a number of pages, and a loan is a new file that
//! takes its pages, zeroed, from the kernel's pool. From there on a block lives as any other: it is
//! lent, lingers, is kept, and goes.
//!
//! *Limits*: between two looks the book subtracts what it has promised to loans. Jobs in workers'
//! hands count as ready to come, so that own workers do not zero beyond the high threshold; that the
//! kernel has done part of them already is not known until they are reported, which errs on the
//! side of zeroing less.
//!
//! A block's size has no meaning before the block is made, so pools of one node and page size are
//! one here: thresholds and bounds are added up ([`merged`]).

use std::collections::BTreeMap;

use units::{BlockId, Bytes, Domain, JobId, Node, PageSize, Pages, PoolKey};

use super::{Book, Pool, Who};
use crate::block::{Block, StateName};
use crate::config::{ConfigError, PoolConfig, Recycle};

/// What a worker gets in one job: 0.1 s of work at 2.5 GB/s, and no more is out of sight between two
/// reports.
const JOB_BYTES: Bytes = Bytes(256 << 20);

/// What the kernel's own pool has of one node and page size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZeroedCounts {
    /// Free pages known to be zero.
    pub zeroed: Pages,
    /// Free pages that somebody is zeroing now.
    pub zeroing: Pages,
    /// Free pages that could be zeroed now.
    pub zeroable: Pages,
}

/// So many pages of one pool, to be zeroed where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelOrder {
    /// The job.
    pub job: JobId,
    /// The pool whose pages are meant.
    pub pool: PoolKey,
    /// At most so many.
    pub pages: Pages,
}

/// The part of a book that only such a kernel needs.
#[derive(Debug, Default)]
pub(super) struct KernelPools {
    counts: BTreeMap<(Node, PageSize), ZeroedCounts>,
    jobs: BTreeMap<JobId, KernelOrder>,
}

impl KernelPools {
    fn counts(&self, key: PoolKey) -> ZeroedCounts {
        self.counts.get(&(key.node, key.page_size)).copied().unwrap_or_default()
    }

    /// Pages in workers' hands, done or not.
    fn promised(&self, key: PoolKey) -> Pages {
        self.jobs.values().filter(|order| order.pool == key).map(|order| order.pages).sum()
    }
}

/// The one pool of its node and page size.
fn canonical(key: PoolKey) -> PoolKey {
    PoolKey { pages_per_block: Pages(1), ..key }
}

/// Pools of one node and page size as one: thresholds and bounds add up, the larger `leave_free`
/// counts, and every pool is *fresh*.
pub(super) fn merged(
    pools: impl IntoIterator<Item = PoolConfig>,
) -> Result<Vec<PoolConfig>, ConfigError> {
    let mut merged: BTreeMap<PoolKey, PoolConfig> = BTreeMap::new();
    for pool in pools {
        pool.check()?;
        let pool = PoolConfig { pages_per_block: Pages(1), recycle: Recycle::Fresh, ..pool };
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
    /// An empty book over a kernel that knows its zeroed pages.
    ///
    /// # Errors
    /// Those of [`PoolConfig::check`].
    pub fn over_kernel(pools: impl IntoIterator<Item = PoolConfig>) -> Result<Self, ConfigError> {
        let book = Self::new(merged(pools)?, false)?;
        Ok(Self { kernel: Some(KernelPools::default()), ..book })
    }

    /// The pool that is meant by `key`: itself, but where the kernel keeps the pages the one of its
    /// node and page size.
    #[must_use]
    pub fn canonical(&self, key: PoolKey) -> PoolKey {
        if self.kernel.is_some() { canonical(key) } else { key }
    }

    /// Tells what the kernel says of its own pool. Returns whether it is news.
    pub fn observe_zeroed(
        &mut self,
        node: Node,
        page_size: PageSize,
        counts: ZeroedCounts,
    ) -> bool {
        let Some(kernel) = &mut self.kernel else { return false };
        let is_news = kernel.counts.insert((node, page_size), counts) != Some(counts);
        self.note_level(PoolKey { node, page_size, pages_per_block: Pages(1) });
        is_news
    }

    /// A pool's pages that are known to be zero.
    pub(super) fn ready(&self, key: PoolKey) -> Pages {
        match &self.kernel {
            None => self.pages_in(key, StateName::Ready),
            Some(kernel) if key == canonical(key) => kernel.counts(key).zeroed,
            // A pool of an earlier daemon that owned blocks: only what it has lent is its own.
            Some(_) => Pages::ZERO,
        }
    }

    /// A pool's pages that are being zeroed.
    pub(super) fn zeroing(&self, key: PoolKey) -> Pages {
        match &self.kernel {
            None => self.pages_in(key, StateName::Zeroing),
            Some(kernel) if key == canonical(key) => kernel.counts(key).zeroing,
            Some(_) => Pages::ZERO,
        }
    }

    /// Pages of the kernel's pool that could be zeroed now, within the pool's `max`.
    pub(super) fn kernel_zeroable(&self, key: PoolKey) -> Option<Pages> {
        let kernel = self.kernel.as_ref()?;
        let pool = self.pools.get(&key).filter(|_| key == canonical(key));
        let Some(pool) = pool.filter(|pool| pool.configured) else { return Some(Pages::ZERO) };
        let zeroable = kernel.counts(key).zeroable;
        let bound = match pool.config.max {
            Some(max) => max.saturating_sub(self.ready(key) + self.owned(key)),
            None => zeroable,
        };
        Some(zeroable.min(bound))
    }

    /// Zeroed pages that a loan from this node may take: `leave_free` stays for others.
    pub(super) fn kernel_lendable(&self, node: Node, page_size: PageSize) -> Option<Pages> {
        let kernel = self.kernel.as_ref()?;
        let key = PoolKey { node, page_size, pages_per_block: Pages(1) };
        Some(kernel.counts(key).zeroed.min(self.spendable(key)))
    }

    /// Promises zeroed pages to a loan.
    pub(super) fn spend_zeroed(&mut self, key: PoolKey, pages: Pages) {
        if let Some(kernel) = &mut self.kernel
            && let Some(counts) = kernel.counts.get_mut(&(key.node, key.page_size))
        {
            counts.zeroed = counts.zeroed.saturating_sub(pages);
        }
    }

    /// Picks what a worker should zero next, as [`Book::take_zeroing`] does where blocks are owned.
    ///
    /// `None` when there is nothing to zero.
    pub fn take_kernel_zeroing(
        &mut self,
        who: Who,
        node: Option<Node>,
        page_size: Option<PageSize>,
    ) -> Option<KernelOrder> {
        let kernel = self.kernel.as_ref()?;
        let fits = |key: &PoolKey| {
            node.is_none_or(|n| n == key.node) && page_size.is_none_or(|s| s == key.page_size)
        };
        let wanted = |key: PoolKey, pool: &Pool| {
            let zeroable = self.kernel_zeroable(key).unwrap_or_default();
            match who {
                Who::User => zeroable,
                Who::Background if !pool.refilling => Pages::ZERO,
                Who::Background => {
                    let coming = self.ready(key) + kernel.promised(key);
                    zeroable.min(pool.config.ready_high.saturating_sub(coming))
                }
            }
        };
        let (key, wanted) = self
            .pools
            .iter()
            .filter(|(key, _)| fits(key))
            .map(|(key, pool)| (*key, wanted(*key, pool)))
            .filter(|(_, pages)| *pages > Pages::ZERO)
            .min_by_key(|(key, _)| {
                let high = self.pools.get(key).map_or(0, |p| p.config.ready_high.0).max(1);
                self.ready(*key).0.saturating_mul(1000) / high
            })?;
        let job = JobId(self.next_job);
        self.next_job += 1;
        let most = JOB_BYTES.whole_pages(key.page_size).max(Pages(1));
        let order = KernelOrder { job, pool: key, pages: wanted.min(most) };
        self.kernel.as_mut()?.jobs.insert(job, order);
        Some(order)
    }

    /// A worker says how many pages of its job it has zeroed. What is ready, the kernel says.
    ///
    /// `None` if the job is unknown, or one on a block.
    pub fn finish_kernel_zeroing(&mut self, job: JobId, done: Pages) -> Option<StateName> {
        let order = self.kernel.as_mut()?.jobs.remove(&job)?;
        self.counters.zeroed_bytes += done.min(order.pages).bytes(order.pool.page_size).0;
        Some(if done >= order.pages { StateName::Ready } else { StateName::Zeroable })
    }

    /// A worker is gone without a word. What it had zeroed is zero. Returns whether it had such a
    /// job.
    pub fn lose_kernel_job(&mut self, job: JobId) -> bool {
        self.kernel.as_mut().is_some_and(|kernel| kernel.jobs.remove(&job).is_some())
    }

    /// Tells that of a block just lent, whose file was to be filled with `planned` zeroed pages,
    /// only the first `filled` could be had: the rest is a hole.
    pub fn note_filled(&mut self, block: BlockId, planned: Pages, filled: Pages) {
        let Some(pool) = self.block(block).map(Block::pool) else { return };
        self.blocks.change(block, |b| b.note_filled(filled));
        let short = planned.saturating_sub(filled);
        let bytes = short.bytes(pool.page_size).0;
        self.counters.hit_bytes = self.counters.hit_bytes.saturating_sub(bytes);
        self.counters.miss_bytes += bytes;
        let domain = Domain { node: pool.node, page_size: pool.page_size };
        let counts = self.lent_so_far.entry(domain).or_default();
        counts.hits = counts.hits.saturating_sub(short);
        counts.misses += short;
    }
}
