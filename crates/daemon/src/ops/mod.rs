// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations: what the interfaces of the daemon call, and no other logic.
//!
//! Each operation asks the book, carries its effects out in the file system, and wakes the
//! watchers. Everything runs on one thread and no operation waits, so that the book and the file
//! system agree for every call. [`lending`], [`returning`], [`zeroing`] and [`report`] are most of
//! them. [`observing`] has the kernel's counts, [`peers`] the borrowers, [`loans`] the unfinished
//! loans, and [`effects`] changes files. This file has the state, the start, and the shared parts.

mod drain;
mod effects;
mod health;
pub(crate) mod holders;
mod learning;
mod lending;
mod loans;
mod named;
mod observing;
mod peers;
mod report;
mod resize;
mod returning;
#[cfg(test)]
pub(crate) mod testkit;
#[cfg(test)]
mod tests;
mod unbacked;
mod waiting;
pub(crate) mod waits;
pub(crate) mod watchers;
mod zeroing;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use book::config::{Config, PoolConfig};
use book::{Book, HeldByName, JobOrder, Loan};
use linux::Roots;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use units::{Bytes, LeaseId, Node, PageSize, Pages, PoolKey};
use wire::PoolChange;

use self::drain::DrainMode;
use self::learning::Learning;
use self::loans::LoanWork;
use self::observing::{Changes, Observed};
use self::peers::Peers;
use self::returning::MemoryErrors;
use self::zeroing::WorkerStates;
use crate::base::error::{Error, Result};
use crate::base::user_queues::{UNLENT_NAMES, UserQueues};
use crate::peers::metrics::Metrics;
use crate::storage::kernel::Fill;
use crate::storage::leases::{FoundLease, Leases};
use crate::storage::loan_paths::LoanPathDirs;
use crate::storage::provider::PoolProvider;
use crate::storage::store::{Returned, Store, directory_name};

pub(crate) use health::{Incidents, LoggedIncident};
pub(crate) use resize::PoolSizes;
pub(crate) use waiting::Waiting;

/// The daemon's state, shared by everything on its one thread.
pub(crate) type Shared = Rc<RefCell<Shell>>;

/// What user queues found out about returned blocks, for [`Shell::settled`].
pub(crate) type ReturnedBlocks = mpsc::UnboundedReceiver<Returned>;

/// How long a start waits for leases with holders that delay the look at them.
const START_LEASES_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a start waits until it knows what became of the blocks that it has found.
const START_BLOCKS_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a loan that is held by its memory is left alone at first. Looking costs it the page
/// tables that were made in advance, so that its client has this long to fault its pages in.
const MIN_HELD_PERIOD: Duration = Duration::from_millis(250);

/// A loan as its borrower gets it.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) loan: Loan,
    pub(crate) lease: Lease,
    /// The files of its blocks, in order.
    pub(crate) blocks: Vec<OwnedFd>,
}

/// What a loan's borrower holds it by.
#[derive(Debug)]
pub(crate) enum Lease {
    /// The borrower's end of the lease.
    Descriptor(OwnedFd),
    /// A name, which [`Shell::hold_by_name`] puts on the loan when it is ready.
    Name,
}

/// A loan that was granted, and what goes on with it.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) handover: Handover,
    /// The daemon's end of the lease; a loan by name has none.
    pub(crate) watch: Option<linux::DaemonEnd>,
    /// Files that take their pages from the kernel's pool before the client gets them.
    pub(crate) fills: Vec<Fill>,
    /// Cancelled when the loan is unwanted: its agent hung up, or returned its name.
    pub(crate) stop: CancellationToken,
}

impl Granted {
    /// The pages that are ready.
    pub(crate) fn ready(&self) -> Pages {
        self.handover.loan.parts.iter().map(|part| part.ready).sum()
    }
}

/// What came of a request.
#[derive(Debug)]
pub(crate) enum LoanStep {
    /// A new loan, to be made ready.
    Granted(Granted),
    /// The loan by that name is there: its agent may have forgotten, or died before it heard.
    Found(HeldByName),
}

/// Work for a worker.
#[derive(Debug)]
pub(crate) struct TakenJob {
    pub(crate) order: JobOrder,
    /// The block's file, where the job is on one.
    pub(crate) block: Option<OwnedFd>,
    /// The worker's end of the job.
    pub(crate) job: OwnedFd,
}

/// A shell that has taken over what an earlier daemon left.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) shell: Shell,
    /// The leases that are alive, to be watched.
    pub(crate) leases: Vec<(LeaseId, linux::DaemonEnd)>,
    /// The same of those with holders that delay the look.
    pub(crate) later: mpsc::UnboundedReceiver<FoundLease>,
    pub(crate) returned: ReturnedBlocks,
}

/// Where a daemon keeps what the next one needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dirs<'a> {
    /// Until the machine's next boot.
    pub(crate) run: &'a std::path::Path,
    /// Over boots, if there is such a directory.
    pub(crate) state: Option<&'a std::path::Path>,
}

/// The daemon's state. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Shell {
    book: Book,
    store: Store,
    leases: Leases,
    provider: PoolProvider,
    /// Whether this kernel grants leases on hugetlbfs.
    provable: bool,
    config: Config,
    roots: Roots,
    /// Where the control tree is mounted.
    pub(crate) tree: Option<PathBuf>,
    drain_mode: DrainMode,
    learning: Learning,
    errors: MemoryErrors,
    loans: LoanWork,
    /// Where others reach loans by name.
    loan_paths: LoanPathDirs,
    sizes: PoolSizes,
    pub(crate) observed: Observed,
    pub(crate) changes: Changes,
    pub(crate) peers: Peers,
    pub(crate) workers: WorkerStates,
    pub(crate) metrics: Metrics,
    pub(crate) incidents: Incidents,
}

/// The time since the machine started, suspend included.
pub(crate) fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(now).unwrap_or_default()
}

/// Seconds of `CLOCK_BOOTTIME`, which goes on during suspend and starts anew with the machine,
/// as hugetlbfs does.
pub(crate) fn boot_seconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or_default()
}

/// The same in microseconds: where numbers of blocks, leases and jobs begin, so that none that an
/// earlier daemon gave comes again.
fn boot_micros() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let micros = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000);
    u64::try_from(micros).unwrap_or_default()
}

fn failed(error: &Error) -> wire::Error {
    wire::Error::Failed { what: error.to_string() }
}

impl Shell {
    /// Takes over what an earlier daemon left under `run_dir`.
    pub(crate) fn start(
        config: Config,
        dirs: Dirs<'_>,
        roots: Roots,
        plain: bool,
        mut stored: BTreeMap<String, OwnedFd>,
    ) -> Result<Started> {
        config.check()?;
        let run_dir = dirs.run;
        let provider = PoolProvider::choose(&config, plain, &roots)?;
        let sizes = provider.check(&config, &roots)?;
        let changes = Changes::new();
        let freed = {
            let changes = changes.clone();
            move || changes.wake()
        };
        let (notify, mut returned) = mpsc::unbounded_channel();
        let mut store = Store::open(run_dir, plain, config.share_page_tables, freed, notify)?;
        for page_size in sizes {
            store.add(page_size, stored.remove(&directory_name(page_size)))?;
        }
        let mut leases = Leases::default();
        store.add_leases(&mut leases)?;
        let provable = store.can_prove()?;
        if !provable {
            tracing::warn!("this kernel grants no leases on hugetlbfs: every pool recycles fresh");
        }
        let mut taken_over = leases.take_over(&store.lease_owners()?, store.user_queues())?;
        store.user_queues().wait(START_LEASES_TIMEOUT);
        let mut held = taken_over.held()?;
        let mut book = provider.book(&config, provable)?;
        book.number_from(boot_micros());
        let learning = Learning::take_over(dirs, &mut book);
        let is_alive = |lease: &_| held.contains_key(lease) || taken_over.unknown().contains(lease);
        let found = store.scan(&|lease| is_alive(&LeaseId(lease)))?;
        if !found.is_empty() {
            tracing::info!(files = found.len(), "took over what an earlier daemon left");
        }
        let mut shell = Self {
            book,
            store,
            leases,
            provider,
            provable,
            drain_mode: DrainMode::new(run_dir),
            learning,
            errors: MemoryErrors::open(&roots),
            loans: LoanWork::default(),
            loan_paths: LoanPathDirs::take_over(run_dir, &roots),
            sizes: PoolSizes::load(run_dir, &roots),
            observed: Observed::new(roots.clone()),
            changes,
            peers: Peers::default(),
            workers: WorkerStates::default(),
            config,
            roots,
            tree: None,
            metrics: Metrics::new(),
            incidents: Incidents::default(),
        };
        shell.learn_nodes();
        shell.apply(|book| found.iter().flat_map(|f| book.adopt(f)).collect::<Vec<_>>());
        // A lease without blocks has no holder: its number must be free for a new one.
        let known: Vec<_> = shell.book.leases().collect();
        for lease in held.keys().filter(|lease| !known.contains(lease)) {
            if let Some(forget) = shell.leases.remove(*lease) {
                shell.store.user_queues().submit(UNLENT_NAMES, forget);
            }
        }
        held.retain(|lease, _| known.contains(lease));
        shell.settle_some(usize::MAX);
        shell.store.user_queues().wait(START_BLOCKS_TIMEOUT);
        while let Ok(block) = returned.try_recv() {
            shell.settled(block);
        }
        let leases = held.into_iter().collect();
        Ok(Started { shell, leases, later: taken_over.later(), returned })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Takes `config` from now on; lent, kept and zeroing blocks stay.
    ///
    /// # Errors
    /// A rule that it breaks, or pages that this kernel does not have; nothing is changed then.
    pub(crate) fn reload(&mut self, config: Config) -> Result<()> {
        config.check()?;
        for page_size in self.provider.check(&config, &self.roots)? {
            // An empty mount of a configuration that is refused later costs nothing.
            self.store.add(page_size, None)?;
        }
        self.store.add_leases(&mut self.leases)?;
        self.apply(|book| book.reconfigure(config.pools.clone())).0?;
        let at_start = |of: &Config| (of.share_page_tables, of.nice, of.provider, of.tree.clone());
        if at_start(&config) != at_start(&self.config) {
            tracing::warn!(
                "share_page_tables, nice, provider and [tree] change with the next start"
            );
        }
        self.config = config;
        self.learn_nodes();
        self.lift_size_limits();
        self.observed.expire();
        self.changes.wake();
        Ok(())
    }

    /// A configuration with a pool on each node with memory for one without a node.
    ///
    /// # Errors
    /// Those of looking at the nodes.
    pub(crate) fn on_this_machine(&self, mut config: Config) -> Result<Config> {
        let nodes = self.provider.nodes(&self.roots)?;
        config.spread(if nodes.is_empty() { &[Node(0)] } else { &nodes });
        Ok(config)
    }

    /// Looks at which nodes have memory; a failure is told of by the checks of the pools.
    fn learn_nodes(&mut self) {
        let nodes = self.provider.nodes(&self.roots).unwrap_or_default();
        self.incidents.set_nodes(nodes);
    }

    /// The pools that are being filled, with what they have ready and want.
    pub(crate) fn filling(&self) -> BTreeMap<PoolKey, (Pages, Pages)> {
        if self.drain_mode.is_on() {
            return BTreeMap::new();
        }
        self.book.filling()
    }

    /// The roots of its mounts by name, for a service manager to keep.
    pub(crate) fn kept_descriptors(
        &self,
    ) -> impl Iterator<Item = (String, std::os::fd::BorrowedFd<'_>)> {
        self.store.roots().map(|(size, root)| (directory_name(size), root))
    }

    pub(crate) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The book, to read counts and states. Only [`apply`](Self::apply) and the operations here
    /// change it.
    pub(crate) fn book(&self) -> &Book {
        &self.book
    }

    pub(crate) fn provider(&self) -> &PoolProvider {
        &self.provider
    }

    /// The work queues of users' files: how many files are on their way to the kernel, and of
    /// those how many no user holds up.
    pub(crate) fn queues(&self) -> &UserQueues {
        self.store.user_queues()
    }

    pub(crate) fn release(
        &mut self,
        node: Option<Node>,
        page_size: Option<PageSize>,
        pages: Option<Pages>,
    ) -> Bytes {
        let pages = pages.unwrap_or(Pages(u64::MAX));
        let (bytes, _) = self.apply(|book| book.release(node, page_size, pages));
        self.observed.expire();
        bytes
    }

    /// Changes a pool's thresholds, or adds a pool, which only root may.
    pub(crate) fn configure(&mut self, change: &PoolChange) -> Result<(), wire::Error> {
        let key = self.book.canonical(change.pool());
        let old = self.book.pool_config(key).cloned();
        let bad = |reason| wire::Error::bad_value("change", reason);
        if old.is_none() {
            let known = self.provider.has_node(key.node, &self.roots);
            known.map_err(|error| bad(error.to_string()))?;
        }
        let pool = old.unwrap_or_else(|| PoolConfig::new(key)).with(change);
        if !self.store.has(pool.page_size) {
            let reason = format!("no pool of {} pages was configured at start", pool.page_size);
            return Err(bad(reason));
        }
        self.book.configure(pool).map_err(|e| bad(e.to_string()))?;
        self.lift_size_limits();
        self.changes.wake();
        Ok(())
    }

    /// Whether a change is of a pool that there is.
    pub(crate) fn has_pool(&self, change: &PoolChange) -> bool {
        let key = self.book.canonical(change.pool());
        self.book.pool_config(key).is_some()
    }

    /// Records the borrower of a loan that was just granted, unless it has ended meanwhile.
    pub(crate) fn record_borrower(&mut self, lease: LeaseId, pid: Option<u32>) {
        if self.book.has_lease(lease) {
            self.peers.borrowers.insert(lease, pid, since_boot());
        }
    }

    /// How many of its own workers should run now, and on which nodes.
    pub(crate) fn wanted_workers(&mut self) -> (u32, Vec<Node>) {
        self.observe();
        if self.drain_mode.is_on() {
            return (0, Vec::new());
        }
        let wanted = self.book.wanted_workers(self.config.workers.max);
        (wanted, self.book.refilling_nodes())
    }

    /// The daemon serves: from now on its mounts outlive it.
    pub(crate) fn keep_mounts(&mut self) {
        self.store.keep_mounts();
    }

    /// Removes every file and mount.
    pub(crate) fn clean_up(&mut self) -> Result<()> {
        self.leases = Leases::default();
        self.store.clean_up()
    }
}
