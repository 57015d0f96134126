// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports: what there is, as the faces tell it.

use book::DomainCounts;
use book::block::StateName;
use linux::hugetlb;
use units::{Domain, Pages, PoolKey};
use wire::Status;

use super::{DomainInKernel, Shell};
use crate::error::Result;
use crate::provider::Provider;

impl Shell {
    pub(crate) fn status(&mut self) -> Status {
        self.observed = None;
        self.observe();
        let free = |key: &PoolKey| {
            self.kernel_free.get(&(key.node, key.page_size)).copied().unwrap_or_default()
        };
        let pools = self.book.pool_keys().filter_map(|key| self.book.pool_status(key, free(&key)));
        Status {
            provider: self.provider.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            pools: pools.collect(),
            loans: self.book.loans(),
            workers: self.workers,
            paused_by_pressure: self.paused,
            counters: self.book.counters(),
        }
    }

    /// Whether the kernel itself knows its zeroed pages, and shows them in sysfs.
    pub(crate) fn is_over_kernel(&self) -> bool {
        self.provider.kernel().is_some()
    }

    /// The domains that have a pool.
    pub(crate) fn domains(&self) -> Vec<Domain> {
        self.book.domains().collect()
    }

    /// The counts of a domain that has a pool, looked up now.
    pub(crate) fn domain(&mut self, domain: Domain) -> Option<DomainCounts> {
        self.observed = None;
        self.domain_lately(domain)
    }

    /// The same from what was seen of the kernel's counts a moment ago: for who asks often.
    pub(crate) fn domain_lately(&mut self, domain: Domain) -> Option<DomainCounts> {
        self.observe();
        self.book.domain(domain)
    }

    /// A domain's counts and those of the kernel around them.
    pub(crate) fn domain_in_kernel(&mut self, domain: Domain) -> Result<Option<DomainInKernel>> {
        let Some(ours) = self.domain(domain) else { return Ok(None) };
        let Domain { node, page_size } = domain;
        let (free, reserved, total) = if matches!(self.provider, Provider::Plain) {
            let (free, _) = self.provider.free_pages(&self.roots, node, page_size)?;
            (free, Pages::ZERO, free + ours.lent)
        } else {
            let here = hugetlb::counters(&self.roots, page_size, Some(node))?;
            let all = hugetlb::counters(&self.roots, page_size, None)?;
            (Pages(here.free), Pages(all.reserved.unwrap_or_default()), Pages(here.total))
        };
        let in_work =
            |b: &&book::block::Block| (b.pool().node, b.pool().page_size) == (node, page_size);
        let taken = self.book.in_state(StateName::Zeroing).filter(in_work);
        let taken: Pages =
            taken.map(|b| self.store.allocated(b.id(), page_size).unwrap_or_default()).sum();
        // What others do between the looks must not make a part larger than its whole.
        let free = (free + ours.idle + taken).max(ours.zeroed + ours.zeroable + ours.zeroing);
        Ok(Some(DomainInKernel { ours, free, reserved, total: total.max(free) }))
    }
}
