// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where ready pages come from: the one place where providers differ.
//!
//! *Stock* and *plain* own blocks and keep them ready; over a *kernel* that knows its zeroed pages
//! nothing is owned before it is lent. The book has the same two ways ([`Book::new`],
//! [`Book::over_kernel`]); everything else, from leases to kept content, is the same code.

use book::Book;
use book::config::{self, Config};
use linux::kernel::{Level, level};
use linux::{Roots, hugetlb, meminfo};
use units::{Bytes, Node, PageSize, Pages};

use crate::error::{Error, Result};
use crate::kernel::KernelPool;

/// The provider of one daemon.
#[derive(Debug)]
pub(crate) enum Provider {
    /// Plain memory in place of huge pages.
    Plain,
    /// Blocks of huge pages that the daemon owns.
    Stock,
    /// The kernel's own pool.
    Kernel(KernelPool),
}

impl Provider {
    /// The one that is wanted, or what this kernel has the most of.
    ///
    /// # Errors
    /// [`Error::NoProvider`] if the kernel's is forced and not there.
    pub(crate) fn choose(wanted: config::Provider, plain: bool, roots: &Roots) -> Result<Self> {
        if plain {
            return Ok(Self::Plain);
        }
        if wanted == config::Provider::Stock {
            return Ok(Self::Stock);
        }
        let offer = level::probe(roots)?;
        match (offer.effective(), wanted) {
            (Level::Zeroed(_), _) => {
                tracing::info!(kernel = %offer.kernel, used = %offer.effective(), "provider kernel");
                Ok(Self::Kernel(KernelPool::open(roots)?))
            }
            (Level::Stock, config::Provider::Kernel) => {
                let found = offer.missing.unwrap_or("it has no /dev/hugepagectl");
                Err(Error::NoProvider { found })
            }
            (Level::Stock, _) => Ok(Self::Stock),
        }
    }

    /// As `Status.provider` says it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Stock => "stock",
            Self::Kernel(_) => "kernel",
        }
    }

    /// The kernel's pool, if that is what pages come from.
    pub(crate) fn kernel(&self) -> Option<&KernelPool> {
        match self {
            Self::Kernel(pool) => Some(pool),
            Self::Plain | Self::Stock => None,
        }
    }

    /// An empty book. `provable` says whether this kernel proves that a file is held by nobody.
    pub(crate) fn book(&self, config: &Config, provable: bool) -> Result<Book> {
        let pools = config.pools.iter().cloned();
        Ok(match self {
            Self::Plain | Self::Stock => Book::new(pools, provable)?,
            Self::Kernel(_) => Book::over_kernel(pools)?,
        })
    }

    /// Pages free on a node, and those of them that nobody was promised.
    pub(crate) fn free_pages(
        &self,
        roots: &Roots,
        node: Node,
        page_size: PageSize,
    ) -> Result<(Pages, Pages)> {
        if matches!(self, Self::Plain) {
            // Plain memory has no pool of its own: a quarter of the machine stays for others.
            let memory = meminfo::memory(roots)?;
            let free = memory.available_bytes.saturating_sub(memory.total_bytes / 4);
            let pages = Bytes(free).whole_pages(page_size);
            return Ok((pages, pages));
        }
        let here = hugetlb::counters(roots, page_size, Some(node))?;
        let all = hugetlb::counters(roots, page_size, None)?;
        Ok((Pages(here.free), Pages(here.free.min(all.unreserved_free()))))
    }
}
