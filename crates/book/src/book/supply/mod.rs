// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where ready pages come from: the one place of the book where providers differ.
//!
//! [`blocks`]: the book owns blocks and keeps them ready. [`kernel`]: the kernel knows the zero
//! pages of its own pool, the book owns only lent blocks, everything is observed. Both answer the
//! same questions: the counts of a pool ([`ready`](Book::ready), [`zeroing`](Book::zeroing),
//! [`zeroable`](Book::zeroable)), the pages for a loan ([`lendable`](Book::lendable),
//! [`plan`](Book::plan)), and a worker's next, finished or failed job (`take`, `finish`, `lose`).
//! The provider's kind stays inside this folder.

mod blocks;
mod kernel;

use std::collections::BTreeMap;

use units::{Counts, Domain, JobId, Node, PageSize, Pages, PoolKey};
use wire::LendRequest;

use self::kernel::KernelPools;
use super::job::{JobEnd, JobOrder, Requester, Work};
use super::lend::LoanPlan;
use super::{Book, Effect};
use crate::block::{IllegalMove, Reach, StateName};
use crate::config::{ConfigError, PoolConfig};

/// Where a book's ready pages are.
#[derive(Debug, Default)]
pub(super) enum PoolSupply {
    /// In blocks that it owns.
    #[default]
    Blocks,
    /// In the kernel's own pool.
    Kernel(KernelPools),
}

impl PoolSupply {
    /// The pools that are meant by a configuration.
    pub(super) fn arranged(&self, pools: Vec<PoolConfig>) -> Result<Vec<PoolConfig>, ConfigError> {
        match self {
            Self::Blocks => Ok(pools),
            Self::Kernel(_) => kernel::merged(pools),
        }
    }

    /// Whether a block stays the book's while it is ready.
    pub(super) fn owns_ready(&self) -> bool {
        matches!(self, Self::Blocks)
    }
}

impl Book {
    /// An empty book over a kernel that knows its zeroed pages.
    ///
    /// # Errors
    /// Those of [`PoolConfig::check`].
    pub fn over_kernel(pools: impl IntoIterator<Item = PoolConfig>) -> Result<Self, ConfigError> {
        let book = Self::new(kernel::merged(pools)?, false)?;
        Ok(Self { supply: PoolSupply::Kernel(KernelPools::default()), ..book })
    }

    /// The pool that is meant by `key`: itself, but where the kernel keeps the pages the one of its
    /// domain.
    #[must_use]
    pub fn canonical(&self, key: PoolKey) -> PoolKey {
        match self.supply {
            PoolSupply::Blocks => key,
            PoolSupply::Kernel(_) => kernel::canonical(key),
        }
    }

    /// Tells what the kernel's pool has, less what jobs and loans have been promised of it. Returns
    /// whether what can be had changed by it.
    pub fn observe(&mut self, domain: Domain, seen: &Counts) -> bool {
        self.available.insert(domain, seen.available);
        if seen.total > Pages::ZERO {
            self.totals.insert(domain, seen.total);
        }
        match &mut self.supply {
            PoolSupply::Blocks => false,
            PoolSupply::Kernel(pools) => {
                let is_news = pools.observe(domain, *seen);
                self.record_level(kernel::pool_of(domain));
                is_news
            }
        }
    }

    /// A pool's pages that are known to be zero.
    pub(super) fn ready(&self, key: PoolKey) -> Pages {
        match &self.supply {
            PoolSupply::Blocks => self.pages_in(key, StateName::Ready),
            PoolSupply::Kernel(pools) => pools.counts(key).ready,
        }
    }

    /// A pool's pages that are being zeroed.
    pub(super) fn zeroing(&self, key: PoolKey) -> Pages {
        match &self.supply {
            PoolSupply::Blocks => self.pages_in(key, StateName::Zeroing),
            PoolSupply::Kernel(pools) => pools.counts(key).zeroing,
        }
    }

    /// Pages that could be zeroed now, within the pool's `max`.
    #[must_use]
    pub fn zeroable(&self, key: PoolKey) -> Pages {
        match &self.supply {
            PoolSupply::Blocks => self.zeroable_in_blocks(key),
            PoolSupply::Kernel(pools) => self.zeroable_in_kernel(pools, key),
        }
    }

    /// Zeroed pages that a loan may have of a domain.
    pub(super) fn lendable(&self, domain: Domain) -> Pages {
        match &self.supply {
            PoolSupply::Blocks => self.lendable_in_blocks(domain),
            PoolSupply::Kernel(pools) => self.lendable_in_kernel(pools, domain),
        }
    }

    /// The same by the length of the blocks that they are in, the smallest first; of no length
    /// where one file may have them all.
    pub(super) fn lendable_by_size(&self, domain: Domain) -> Vec<(Pages, Pages)> {
        let all = match &self.supply {
            PoolSupply::Blocks => self.lendable_by_block(domain),
            PoolSupply::Kernel(pools) => {
                vec![(Pages::ZERO, self.lendable_in_kernel(pools, domain))]
            }
        };
        all.into_iter().filter(|(_, ready)| *ready > Pages::ZERO).collect()
    }

    /// How a loan of `need` pages would be served from these nodes, in one file if it must be.
    pub(super) fn plan(
        &self,
        nodes: &[Node],
        page_size: PageSize,
        need: Pages,
        request: &LendRequest,
    ) -> Option<LoanPlan> {
        match self.supply {
            PoolSupply::Blocks => self.plan_from_blocks(nodes, page_size, need, request),
            PoolSupply::Kernel(_) => self.plan_from_kernel(nodes, page_size, need),
        }
    }

    /// Promises zeroed pages of the kernel's pool to a loan.
    pub(super) fn promise(&mut self, domain: Domain, pages: Pages) {
        if let PoolSupply::Kernel(pools) = &mut self.supply {
            pools.promise(domain, pages);
        }
    }

    /// The thresholds at which the kernel itself can signal a fall of its zeroed pages.
    #[must_use]
    pub fn notified_below(&self) -> BTreeMap<Domain, Pages> {
        match self.supply {
            PoolSupply::Blocks => BTreeMap::new(),
            PoolSupply::Kernel(_) => {
                let configured = self.pools.iter().filter(|(_, pool)| pool.configured);
                configured.map(|(key, pool)| (key.domain(), pool.config.low())).collect()
            }
        }
    }

    /// What a worker should zero next, as the job of that number.
    pub(super) fn take(
        &mut self,
        job: JobId,
        who: Requester,
        fits: impl Fn(PoolKey) -> bool,
    ) -> Option<(JobOrder, Vec<Effect>)> {
        match &self.supply {
            PoolSupply::Blocks => self.take_block(job, who, fits),
            PoolSupply::Kernel(pools) => {
                self.take_pages(pools, job, who, fits).map(|order| (order, Vec::new()))
            }
        }
    }

    /// A worker's report.
    pub(super) fn finish(
        &mut self,
        order: &JobOrder,
        done: Pages,
        reach: Reach,
    ) -> Result<Option<JobEnd>, IllegalMove> {
        match order.work {
            Work::Block { block, .. } => self.finish_block(order.job, block, done, reach),
            Work::Pages => Ok(Some((None, self.finish_pages(order, done), Vec::new()))),
        }
    }

    /// A worker without a report.
    pub(super) fn lose(&mut self, order: &JobOrder) -> Vec<Effect> {
        match order.work {
            Work::Block { block, .. } => self.lose_block(order.job, block),
            // What it had zeroed is zero, and the kernel knows of it.
            Work::Pages => Vec::new(),
        }
    }
}
