// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Domains: what all pools of one page size on one node come to.

use units::{Domain, Pages, PoolKey};
use wire::Level;

use super::Book;
use crate::block::{Block, StateName};

/// The counts of one domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DomainCounts {
    /// Pages ready.
    pub zeroed: Pages,
    /// Pages that could be zeroed now.
    pub zeroable: Pages,
    /// Pages in workers' hands.
    pub zeroing: Pages,
    /// Pages lent.
    pub lent: Pages,
    /// Pages of blocks that are nobody's, and that have memory for sure: what is free without
    /// being free in the kernel's pool. Blocks in workers' hands are left out.
    pub idle: Pages,
    /// Pages lent that were ready.
    pub hits: Pages,
    /// Pages lent as a hole.
    pub misses: Pages,
}

impl Book {
    /// The domains that have a pool, in order.
    pub fn domains(&self) -> impl Iterator<Item = Domain> + '_ {
        self.shapes().map(|(node, page_size)| Domain { node, page_size })
    }

    /// The counts of a domain that has a pool.
    #[must_use]
    pub fn domain(&self, domain: Domain) -> Option<DomainCounts> {
        let in_domain = |key: PoolKey| (key.node, key.page_size) == (domain.node, domain.page_size);
        let keys = || self.pools.keys().copied().filter(|key| in_domain(*key));
        keys().next()?;
        let mut counts = self.lent_so_far.get(&domain).copied().unwrap_or_default();
        let sum = |count: &dyn Fn(PoolKey) -> Pages| keys().map(count).sum::<Pages>();
        counts.zeroed = sum(&|key| self.ready(key));
        counts.zeroing = sum(&|key| self.zeroing(key));
        counts.lent = sum(&|key| self.pages_in(key, StateName::Lent));
        let idle = [StateName::Ready, StateName::Zeroable];
        let idle = idle.into_iter().flat_map(|state| self.in_state(state));
        counts.idle = idle.filter(|block| in_domain(block.pool())).map(Block::memory).sum();
        // Pools of one shape share the kernel's free pages: the largest share counts once.
        counts.zeroable = keys().map(|key| self.zeroable(key)).max().unwrap_or_default();
        Some(counts)
    }

    /// Counts a loan's pages.
    pub(super) fn count_loan(&mut self, domain: Domain, ready: Pages, hole: Pages) {
        self.counters.hit_bytes += ready.bytes(domain.page_size).0;
        self.counters.miss_bytes += hole.bytes(domain.page_size).0;
        let counts = self.lent_so_far.entry(domain).or_default();
        counts.hits += ready;
        counts.misses += hole;
    }

    /// The counts of every domain, as a watch reports them.
    #[must_use]
    pub fn levels(&self) -> Vec<Level> {
        let level = |domain: Domain| {
            let counts = self.domain(domain).unwrap_or_default();
            Level {
                node: domain.node.0,
                page_bytes: domain.page_size.bytes(),
                ready_pages: counts.zeroed.0,
                zeroable_pages: counts.zeroable.0,
                zeroing_pages: counts.zeroing.0,
                lent_pages: counts.lent.0,
            }
        };
        self.domains().map(level).collect()
    }
}
