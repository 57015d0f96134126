// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where ready pages come from: the one place where providers differ.
//!
//! *Stock* and *plain* own blocks and keep them ready; over a *kernel* that knows its zeroed pages
//! nothing is owned before it is lent. The book has the same two ways ([`Book::new`],
//! [`Book::over_kernel`]); everything else, from leases to kept content, is the same code.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use book::Book;
use book::config::{self, Config};
use linux::hugetlb::{self, Meter};
use linux::kernel::{Offer, Origin, offer};
use linux::meminfo::{Memory, MemoryMeter, NodeMemory, NodeMeter};
use linux::numa::{self, CpuMeter};
use linux::{BlockFile, Roots};
use units::{BlockId, Bytes, Counts, Domain, Node, PageSize, Pages};

use crate::base::error::{Error, Result};
use crate::storage::kernel::{Fill, KernelPool};

/// The provider of one daemon.
#[derive(Debug)]
pub(crate) enum PoolProvider {
    /// Plain memory in place of huge pages.
    Plain,
    /// Blocks of huge pages that the daemon owns.
    Stock,
    /// The kernel's own pool.
    Kernel(KernelPool),
}

impl PoolProvider {
    /// The one that is wanted, or what this kernel has the most of.
    ///
    /// # Errors
    /// [`Error::NoProvider`] if the kernel's is forced and not there.
    pub(crate) fn choose(config: &Config, plain: bool, roots: &Roots) -> Result<Self> {
        if plain {
            return Ok(Self::Plain);
        }
        if config.provider == config::Provider::Stock {
            return Ok(Self::Stock);
        }
        let offer = offer::probe(roots)?;
        match origin_to_use(config, &offer)? {
            Some(origin) => {
                let (offered, used) = (offer.kernel, offer.effective());
                tracing::info!(kernel = %offered, %used, "provider kernel ({origin})");
                Ok(Self::Kernel(KernelPool::open(roots, origin.clone())?))
            }
            None => {
                tracing::info!("provider stock");
                Ok(Self::Stock)
            }
        }
    }

    /// As a status says it.
    pub(crate) fn name(&self) -> wire::Provider {
        match self {
            Self::Plain => wire::Provider::Plain,
            Self::Stock => wire::Provider::Stock,
            Self::Kernel(_) => wire::Provider::Kernel,
        }
    }

    /// The kernel that is the provider, as a status says it.
    pub(crate) fn kernel(&self) -> Option<wire::KernelStatus> {
        match self {
            Self::Kernel(pool) => Some(pool.status()),
            Self::Plain | Self::Stock => None,
        }
    }

    /// Whether others can take ready pages: then a loan has to look first.
    pub(crate) fn shares_ready(&self) -> bool {
        matches!(self, Self::Kernel(_))
    }

    /// Whether workers get blocks into their hands, and not only the right to zero.
    pub(crate) fn hands_out_blocks(&self) -> bool {
        !matches!(self, Self::Kernel(_))
    }

    /// Whether blocks can be cleared where they lie, or are the kernel's to make zero again.
    pub(crate) fn recycles(&self) -> bool {
        matches!(self, Self::Stock)
    }

    /// Whether the kernel itself has the tree's files, and tells when its pool changes.
    pub(crate) fn is_notified(&self) -> bool {
        matches!(self, Self::Kernel(_))
    }

    /// A loan's file that takes this number of zeroed pages, if there is a kernel to take them
    /// from.
    pub(crate) fn fill(
        &self,
        block: BlockId,
        file: BlockFile,
        domain: Domain,
        pages: Pages,
    ) -> Option<Fill> {
        match self {
            Self::Kernel(pool) => Some(Fill::new(pool, block, file, domain, pages)),
            Self::Plain | Self::Stock => None,
        }
    }

    /// Whether this machine has what a configuration names: pages, nodes, CPUs, control groups. The
    /// one place that says so, to a start, a reload and a check. Returns the pools' page sizes.
    pub(crate) fn check(&self, config: &Config, roots: &Roots) -> Result<Vec<PageSize>> {
        let sizes = self.page_sizes(config, roots)?;
        config.pools.iter().try_for_each(|pool| self.has_node(pool.node, roots))?;
        self.can_resize(config)?;
        let config::WorkersConfig { cpus, cgroup, .. } = config.workers.clone();
        let context = worker::Context { cpus, cgroup, ..worker::Context::default() };
        context.check(roots).map_err(Error::Workers)?;
        Ok(sizes)
    }

    /// Fails for a pool that resizes the kernel's where that is not done: a kernel that knows its
    /// zeroed pages would have to choose which of them go.
    fn can_resize(&self, config: &Config) -> Result<()> {
        match config.pools.iter().find(|pool| pool.resize.is_on()) {
            Some(pool) if !matches!(self, Self::Stock) => {
                let (domain, provider) = (pool.key().domain(), self.name());
                Err(Error::NotResizable { domain, provider })
            }
            _ => Ok(()),
        }
    }

    /// The nodes that loans may lie on; plain memory lies where the kernel puts it.
    pub(crate) fn nodes(&self, roots: &Roots) -> Result<Vec<Node>> {
        match self {
            Self::Plain => Ok(Vec::new()),
            Self::Stock | Self::Kernel(_) => Ok(numa::nodes(roots)?),
        }
    }

    /// Whether the kernel's pool is what limits the daemon's own.
    pub(crate) fn owns_pages(&self) -> bool {
        matches!(self, Self::Stock)
    }

    /// Fails for a node that the machine lacks.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`], and those of looking.
    pub(crate) fn has_node(&self, node: Node, roots: &Roots) -> Result<()> {
        if matches!(self, Self::Plain) {
            return Ok(());
        }
        let nodes = numa::nodes(roots)?;
        if nodes.contains(&node) {
            return Ok(());
        }
        let known = nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Err(Error::NoSuchNode { node, known })
    }

    /// The page sizes of the configured pools. The kernel must have all of them.
    fn page_sizes(&self, config: &Config, roots: &Roots) -> Result<Vec<PageSize>> {
        let mut sizes: Vec<_> = config.pools.iter().map(|p| p.page_size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        if matches!(self, Self::Plain) {
            return Ok(sizes);
        }
        let known = hugetlb::page_sizes(roots)?;
        for page in &sizes {
            if !known.contains(page) {
                let known = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                return Err(Error::NoSuchPages { page: *page, known });
            }
        }
        Ok(sizes)
    }

    /// An empty book. `provable` says whether this kernel proves that a file is free.
    pub(crate) fn book(&self, config: &Config, provable: bool) -> Result<Book> {
        let pools = config.pools.iter().cloned();
        Ok(match self {
            Self::Plain | Self::Stock => Book::new(pools, provable)?,
            Self::Kernel(_) => Book::over_kernel(pools)?,
        })
    }

    /// The kernel's counts of a domain; the book's own are left out.
    pub(crate) fn look(&self, meters: &mut Meters, domain: Domain) -> Result<Counts> {
        match self {
            Self::Plain => {
                // Plain memory has no pool of its own: a quarter of the machine stays for others.
                let memory = meters.memory()?;
                let free = memory.available_bytes.saturating_sub(memory.total_bytes / 4);
                let free = Bytes(free).whole_pages(domain.page_size);
                Ok(Counts { free, available: free, ..Counts::default() })
            }
            Self::Stock => meters.read(domain),
            Self::Kernel(pool) => {
                let zeroed = pool.counts(domain).unwrap_or_else(|error| {
                    tracing::warn!(%error, "cannot see the kernel's zeroed pages");
                    Counts::default()
                });
                let Counts { ready, zeroing, zeroable, .. } = zeroed;
                Ok(Counts { ready, zeroing, zeroable, ..meters.read(domain)? })
            }
        }
    }

    /// All pages of a domain, including `lent` in clients' hands.
    pub(crate) fn total(&self, seen: &Counts, lent: Pages) -> Pages {
        if matches!(self, Self::Plain) { seen.free + lent } else { seen.total }
    }
}

/// The module or series that becomes the provider; `None` is provider stock. A host may have got
/// the module since its configuration was written and has to start all the same, so that pools
/// with `size_max` keep provider stock unless the kernel's is forced.
fn origin_to_use<'a>(config: &Config, offer: &'a Offer) -> Result<Option<&'a Origin>> {
    let forced = config.provider == config::Provider::Kernel;
    let resizes = config.pools.iter().any(|pool| pool.resize.is_on());
    match &offer.origin {
        Some(origin) if resizes && !forced => {
            tracing::warn!(kernel = %origin, "a pool has size_max, which provider kernel lacks");
            Ok(None)
        }
        Some(origin) => Ok(Some(origin)),
        None if forced => {
            let found = offer.missing.unwrap_or("it has no /dev/hugepagectl");
            Err(Error::NoProvider { found })
        }
        None => Ok(None),
    }
}

/// The kernel's counters of the domains and nodes that were looked at, by files that stay open.
#[derive(Debug)]
pub(crate) struct Meters {
    roots: Roots,
    open: BTreeMap<Domain, (Meter, Meter)>,
    memory: Option<MemoryMeter>,
    nodes: BTreeMap<Node, NodeMeter>,
    cpus: BTreeMap<Node, CpuMeter>,
}

/// The file of a node, opened at its first use.
fn kept<K: Ord + Copy, M>(
    files: &mut BTreeMap<K, M>,
    key: K,
    open: impl FnOnce() -> linux::Result<M>,
) -> linux::Result<&M> {
    Ok(match files.entry(key) {
        Entry::Occupied(open) => open.into_mut(),
        Entry::Vacant(place) => place.insert(open()?),
    })
}

impl Meters {
    pub(crate) fn new(roots: Roots) -> Self {
        let (open, memory) = (BTreeMap::new(), None);
        Self { roots, open, memory, nodes: BTreeMap::new(), cpus: BTreeMap::new() }
    }

    /// The machine's memory.
    fn memory(&mut self) -> Result<Memory> {
        let meter = match &mut self.memory {
            Some(meter) => meter,
            none => none.insert(MemoryMeter::open(&self.roots)?),
        };
        Ok(meter.read()?)
    }

    /// A node's memory.
    pub(crate) fn node_memory(&mut self, node: Node) -> Result<NodeMemory> {
        let meter = kept(&mut self.nodes, node, || NodeMeter::open(&self.roots, node))?;
        let read = meter.read();
        // It may go, and come back as another.
        Ok(read.inspect_err(|_| drop(self.nodes.remove(&node)))?)
    }

    /// The CPUs of a node, as a list.
    pub(crate) fn cpus_of(&mut self, node: Node) -> Result<String> {
        let meter = kept(&mut self.cpus, node, || CpuMeter::open(&self.roots, node))?;
        let read = meter.read();
        Ok(read.inspect_err(|_| drop(self.cpus.remove(&node)))?.to_string())
    }

    /// What the kernel's hugetlb pool says of a domain.
    fn read(&mut self, domain: Domain) -> Result<Counts> {
        let open = |node| Meter::open(&self.roots, domain.page_size, node);
        let (here, all) =
            kept(&mut self.open, domain, || Ok((open(Some(domain.node))?, open(None)?)))?;
        let read = here.read().and_then(|here| Ok((here, all.read()?)));
        let (here, all) = read.inspect_err(|_| {
            // A node may go, and come back as another.
            self.open.remove(&domain);
        })?;
        Ok(Counts {
            total: Pages(here.total),
            surplus: Pages(here.surplus),
            free: Pages(here.free),
            reserved: Pages(all.reserved.unwrap_or_default()),
            available: Pages(here.free.min(all.unreserved_free())),
            ..Counts::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::kernel::{Implementation, Support};

    fn offer(origin: Option<Origin>) -> Offer {
        let kernel = if origin.is_some() { Support::OURS } else { Support::Stock };
        let (files, missing) = (origin.is_some(), None);
        Offer { kernel, query_bytes: None, files, watch_zeroable: None, missing, origin }
    }

    fn config(keys: &str) -> Config {
        Config::from_toml(&format!("{keys}\n[[pool]]\npage_size = \"2M\"\n")).expect("good")
    }

    #[test]
    fn pool_with_size_max_keeps_stock_unless_kernel_is_forced() {
        let implementation = Implementation::Module(Some("0.1.0".into()));
        let origin = Origin { implementation, release: "6.12.117".into() };
        let (with, without) = (offer(Some(origin.clone())), offer(None));
        let plain = config("");
        let mut resize = plain.clone();
        let pool = "page_size=2M,size_max=1G".parse().expect("a pool");
        resize.pools = vec![pool];
        assert_eq!(origin_to_use(&plain, &with).expect("there"), Some(&origin));
        assert_eq!(origin_to_use(&resize, &with).expect("stock"), None);
        assert_eq!(origin_to_use(&plain, &without).expect("stock"), None);
        resize.provider = config::Provider::Kernel;
        assert_eq!(origin_to_use(&resize, &with).expect("forced"), Some(&origin));
        let missing = origin_to_use(&config("provider = \"kernel\""), &without);
        assert!(matches!(missing, Err(Error::NoProvider { .. })));
    }
}
