// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Domains: what all pools of one page size on one node come to.

use units::{Counts, Domain, Pages, PoolKey};
use wire::Level;

use super::Book;
use crate::block::{StateName, UNLENT};

impl Book {
    /// The domains that have a pool, in order.
    pub fn domains(&self) -> impl Iterator<Item = Domain> + '_ {
        let mut last = None;
        // The pools are ordered by node, then page size.
        self.pools.keys().filter_map(move |key| {
            let domain = key.domain();
            (last.replace(domain) != Some(domain)).then_some(domain)
        })
    }

    /// The counts of a domain that has a pool. `free` counts pages of unlent blocks that surely
    /// have memory: they are free, but outside the kernel's pool. Blocks in workers' hands are left
    /// out.
    #[must_use]
    pub fn domain(&self, domain: Domain) -> Option<Counts> {
        let in_domain = |key: PoolKey| key.domain() == domain;
        let keys = || self.pools.keys().copied().filter(|key| in_domain(*key));
        keys().next()?;
        let mut counts = self.lent_so_far.get(&domain).copied().unwrap_or_default();
        let sum = |count: &dyn Fn(PoolKey) -> Pages| keys().map(count).sum::<Pages>();
        counts.ready = sum(&|key| self.ready(key));
        counts.zeroing = sum(&|key| self.zeroing(key));
        counts.lent = sum(&|key| self.pages_in(key, StateName::Lent));
        counts.free = self.blocks.total(domain, &UNLENT).memory;
        // Pools of one domain share the kernel's free pages: the largest share counts once.
        counts.zeroable = match self.is_mixed(domain) {
            true => self.zeroable(PoolKey::mixed(domain)),
            false => keys().map(|key| self.zeroable(key)).max().unwrap_or_default(),
        };
        Some(counts)
    }

    /// Counts a loan's pages.
    pub(super) fn count_loan(&mut self, domain: Domain, ready: Pages, unbacked: Pages) {
        self.counters.lent_ready_bytes += ready.bytes(domain.page_size);
        self.counters.lent_unbacked_bytes += unbacked.bytes(domain.page_size);
        let counts = self.lent_so_far.entry(domain).or_default();
        counts.hits += ready;
        counts.misses += unbacked;
    }

    /// The counts of every domain, as a watch reports them.
    #[must_use]
    pub fn levels(&self) -> Vec<Level> {
        let level = |domain| Level::new(domain, &self.domain(domain).unwrap_or_default());
        self.domains().map(level).collect()
    }
}
