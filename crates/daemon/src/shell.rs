// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations: what every face of the daemon calls, and no logic besides.
//!
//! Each one asks the book, carries its effects out in the file system, and tells the watchers.
//! Everything runs on one thread and no operation waits, so that the book and the file system
//! are never seen apart by anybody. [`lending`], [`zeroing`] and [`report`] are most of them; here
//! are the state, starting, and what they share.

mod lending;
mod report;
mod zeroing;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use book::block::StateName;
use book::config::{Config, PoolConfig};
use book::{Book, Effect, Loan};
use linux::Roots;
use tokio::sync::{mpsc, watch};
use units::{BlockId, Bytes, Counts, Domain, LeaseId, Node, PageSize, Pages, PoolKey, Uid};
use wire::Level;

use crate::error::{Error, Result};
use crate::held::Held;
use crate::kernel::Fill;
use crate::leases::Leases;
use crate::metrics::Metrics;
use crate::provider::Provider;
use crate::store::{Returned, Store, directory_name};

/// What lanes found out about returned blocks, for [`Shell::settled`].
pub(crate) type ReturnedBlocks = mpsc::UnboundedReceiver<Returned>;

/// How long a start waits until it knows what became of the blocks that it has found.
const START_PATIENCE: Duration = Duration::from_millis(500);

/// How old the kernel's counts may be when a loan or job relies on them. A read is three files of
/// sysfs, about 10 us; a loan from ready memory needs none.
const OBSERVE_EVERY: Duration = Duration::from_millis(20);

/// How long a loan that is held by its memory is left alone at first. Looking costs it the page
/// tables that were made in advance, so that its client has this long to fault its pages in.
const HELD_AGE: Duration = Duration::from_millis(250);

/// What is lent: descriptors for the client, and the daemon's end of the lease to watch.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) loan: Loan,
    pub(crate) lease: OwnedFd,
    pub(crate) blocks: Vec<OwnedFd>,
    pub(crate) watch: linux::DaemonEnd,
    /// Files that take their pages from the kernel's pool before the client gets them.
    pub(crate) fills: Vec<Fill>,
}

/// A shell that has taken over what an earlier daemon left.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) shell: Shell,
    /// The leases that are alive, to be watched.
    pub(crate) leases: Vec<(LeaseId, linux::DaemonEnd)>,
    pub(crate) returned: ReturnedBlocks,
}

/// The loans that wait for pages on their way to them. They look at nothing themselves: the house
/// is kept for all of them at once, and whoever waits is woken when something came of it.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    loans: Cell<usize>,
    begun: tokio::sync::Notify,
}

impl Waiting {
    /// Until the value is dropped, the house is kept for one more loan.
    pub(crate) fn begin(self: &Rc<Self>) -> Waits {
        self.loans.set(self.loans.get() + 1);
        self.begun.notify_one();
        Waits(Rc::clone(self))
    }

    pub(crate) fn is_anybody(&self) -> bool {
        self.loans.get() > 0
    }

    /// Waits until a loan begins to wait.
    pub(crate) async fn begun(&self) {
        self.begun.notified().await;
    }
}

/// One that waits.
#[derive(Debug)]
pub(crate) struct Waits(Rc<Waiting>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.loans.set(self.0.loans.get() - 1);
    }
}

/// The daemon's state. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Shell {
    book: Book,
    store: Store,
    leases: Leases,
    held: Held,
    /// The lingering block that was looked at last.
    looked_at: Option<BlockId>,
    waiting: Rc<Waiting>,
    roots: Roots,
    config: Config,
    provider: Provider,
    /// Files being filled, with the pages that they are to have.
    filling: BTreeMap<BlockId, Pages>,
    /// When what a user's files have is looked up again.
    next_measure: BTreeMap<Uid, Instant>,
    provable: bool,
    observed: Option<Instant>,
    kernel_free: BTreeMap<Domain, Pages>,
    changed: watch::Sender<u64>,
    pub(crate) workers: u32,
    pub(crate) paused: bool,
    pub(crate) metrics: Metrics,
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
        run_dir: &std::path::Path,
        roots: Roots,
        plain: bool,
        mut stored: BTreeMap<String, OwnedFd>,
    ) -> Result<Started> {
        config.check()?;
        let provider = Provider::choose(config.provider, plain, &roots)?;
        let sizes = provider.page_sizes(&config, &roots)?;
        let changed = watch::Sender::new(0);
        let freed = {
            let changed = changed.clone();
            move || changed.send_modify(|generation| *generation += 1)
        };
        let (tell, mut returned) = mpsc::unbounded_channel();
        let mut store = Store::open(run_dir, plain, config.share_page_tables, freed, tell)?;
        for page_size in sizes {
            store.add(page_size, stored.remove(&directory_name(page_size)))?;
        }
        let mut leases = Leases::default();
        store.add_leases(&mut leases)?;
        let provable = store.can_prove()?;
        if !provable {
            tracing::warn!("this kernel grants no leases on hugetlbfs: every pool recycles fresh");
        }
        let mut alive = leases.take_over()?;
        let mut book = provider.book(&config, provable)?;
        book.number_from(boot_micros());
        let found = store.scan(&|lease| alive.contains_key(&LeaseId(lease)))?;
        if !found.is_empty() {
            tracing::info!(files = found.len(), "took over what an earlier daemon left");
        }
        let effects: Vec<_> = found.iter().flat_map(|f| book.adopt(f)).collect();
        let mut shell = Self {
            book,
            store,
            leases,
            held: Held::default(),
            looked_at: None,
            waiting: Rc::default(),
            roots,
            config,
            provider,
            filling: BTreeMap::new(),
            next_measure: BTreeMap::new(),
            provable,
            observed: None,
            kernel_free: BTreeMap::new(),
            changed,
            workers: 0,
            paused: false,
            metrics: Metrics::new(),
        };
        shell.carry_out(&effects);
        // A lease whose blocks are all gone is nobody's: its number must be free for a new one.
        let known: Vec<_> = shell.book.leases().collect();
        for lease in alive.keys().filter(|lease| !known.contains(lease)) {
            shell.leases.remove(*lease)?;
        }
        alive.retain(|lease, _| known.contains(lease));
        shell.settle_some(usize::MAX);
        shell.store.lanes().wait(START_PATIENCE);
        while let Ok(block) = returned.try_recv() {
            shell.settled(block);
        }
        Ok(Started { shell, leases: alive.into_iter().collect(), returned })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Has `config` from now on; what is lent, kept or being zeroed stays.
    ///
    /// # Errors
    /// A rule that it breaks, or pages that this kernel does not have; nothing is changed then.
    pub(crate) fn reload(&mut self, config: Config) -> Result<()> {
        config.check()?;
        for page_size in self.provider.page_sizes(&config, &self.roots)? {
            // An empty mount of a configuration that is refused later costs nothing.
            self.store.add(page_size, None)?;
        }
        self.store.add_leases(&mut self.leases)?;
        let effects = self.book.reconfigure(config.pools.clone())?;
        self.carry_out(&effects);
        let at_start = |of: &Config| (of.share_page_tables, of.nice, of.provider, of.tree.clone());
        if at_start(&config) != at_start(&self.config) {
            tracing::warn!(
                "share_page_tables, nice, provider and [tree] change with the next start"
            );
        }
        self.config = config;
        self.observed = None;
        self.changed.send_modify(|generation| *generation += 1);
        Ok(())
    }

    /// The loans that wait.
    pub(crate) fn waiting(&self) -> Rc<Waiting> {
        Rc::clone(&self.waiting)
    }

    pub(crate) fn counters(&self) -> wire::Counters {
        self.book.counters()
    }

    /// The pools that are being filled, with what they have ready and want.
    pub(crate) fn filling(&self) -> BTreeMap<PoolKey, (Pages, Pages)> {
        self.book.filling()
    }

    /// The roots of its mounts by name, for a service manager to keep.
    pub(crate) fn kept_descriptors(
        &self,
    ) -> impl Iterator<Item = (String, std::os::fd::BorrowedFd<'_>)> {
        self.store.roots().map(|(size, root)| (directory_name(size), root))
    }

    /// Wakes whenever a count changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn levels(&self) -> Vec<Level> {
        self.book.levels()
    }

    /// Carries effects out. One that fails costs its block: a file that could not be made, moved
    /// or opened is nobody's, and the next start removes or takes it over.
    fn carry_out(&mut self, effects: &[Effect]) -> Vec<(BlockId, linux::BlockFile)> {
        let mut made = Vec::new();
        for effect in effects {
            match self.store.carry_out(&self.book, effect) {
                Ok(Some(file)) => {
                    if let Effect::Create { block, .. } = effect {
                        made.push((*block, file));
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, ?effect, "a block is lost");
                    if let Effect::Create { block, .. }
                    | Effect::Move(block)
                    | Effect::Resize { block, .. } = effect
                    {
                        self.book.forget(*block);
                        // Best effort: what cannot be removed either is found at the next start.
                        if let Err(error) =
                            self.store.carry_out(&self.book, &Effect::Remove(*block))
                        {
                            tracing::debug!(%error, "nor could its file be removed");
                        }
                    }
                }
            }
        }
        if !effects.is_empty() {
            self.changed.send_modify(|generation| *generation += 1);
        }
        let pages = |e: &Effect| matches!(e, Effect::Remove(_) | Effect::Resize { .. });
        if effects.iter().any(pages) {
            // The kernel has more free pages than it was seen to have.
            self.observed = None;
        }
        made
    }

    /// Looks at the kernel's counts, unless that was done a moment ago.
    pub(crate) fn observe(&mut self) {
        let freed = self.store.has_freed();
        if !freed && self.observed.is_some_and(|at| at.elapsed() < OBSERVE_EVERY) {
            return;
        }
        self.observed = Some(Instant::now());
        let domains: Vec<_> = self.book.domains().collect();
        for domain in domains {
            // Promises before counts: a page that a job takes in between is counted as taken
            // twice, which the next look mends, and never as free.
            let promised = self.promised(domain);
            let seen = match self.provider.look(&self.roots, domain) {
                Ok(seen) => {
                    self.kernel_free.insert(domain, seen.free);
                    seen
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot see the kernel's free pages");
                    Counts::default()
                }
            };
            let left = Counts {
                available: seen.available.saturating_sub(promised),
                ready: seen.ready.saturating_sub(promised),
                ..seen
            };
            if self.book.observe(domain, &left) {
                self.wake();
            }
        }
    }

    /// Pages that jobs in workers' hands, and loans' new files, have yet to take from the kernel.
    fn promised(&self, domain: Domain) -> Pages {
        let taken = |block| self.store.allocated(block, domain.page_size).unwrap_or_default();
        let here = |b: &&book::block::Block| b.pool().domain() == domain;
        let zeroing = self.book.in_state(StateName::Zeroing).filter(here);
        let filling = self.filling.iter().filter_map(|(id, pages)| {
            self.book.block(*id).filter(here).map(|b| pages.saturating_sub(taken(b.id())))
        });
        zeroing.map(|b| b.pages().saturating_sub(taken(b.id()))).chain(filling).sum()
    }

    /// Looks at the kernel's counts now, and tells whoever watches if they have changed.
    pub(crate) fn look_again(&mut self) {
        self.observed = None;
        self.observe();
    }

    /// Wakes everybody who watches, and the housekeeping.
    pub(crate) fn wake(&self) {
        self.changed.send_modify(|generation| *generation += 1);
    }

    /// Where the kernel tells of its pool: the low threshold of each domain.
    pub(crate) fn told_below(&self) -> BTreeMap<Domain, Pages> {
        self.book.told_below()
    }

    pub(crate) fn roots(&self) -> &Roots {
        &self.roots
    }

    pub(crate) fn give_back(
        &mut self,
        node: Option<Node>,
        page_size: Option<PageSize>,
        pages: Option<Pages>,
    ) -> Bytes {
        let (bytes, effects) =
            self.book.give_back(node, page_size, pages.unwrap_or(Pages(u64::MAX)));
        self.carry_out(&effects);
        self.observed = None;
        bytes
    }

    pub(crate) fn configure(&mut self, pool: PoolConfig) -> Result<(), wire::Error> {
        let bad = |reason| wire::Error::BadValue { field: "change".to_owned(), reason };
        if !self.store.has(pool.page_size) {
            let reason = format!("no pool of {} pages was configured at start", pool.page_size);
            return Err(bad(reason));
        }
        self.book.configure(pool).map_err(|e| bad(e.to_string()))?;
        self.changed.send_modify(|generation| *generation += 1);
        Ok(())
    }

    pub(crate) fn pool(&self, key: PoolKey) -> Option<&PoolConfig> {
        self.book.pool_config(key)
    }

    /// The pool that is meant where a pool of that shape is named.
    pub(crate) fn canonical(&self, key: PoolKey) -> PoolKey {
        self.book.canonical(key)
    }

    pub(crate) fn pools(&self) -> Vec<PoolKey> {
        self.book.pool_keys().collect()
    }

    /// How many of its own workers should run now, and on which nodes.
    pub(crate) fn wanted_workers(&mut self) -> (u32, Vec<Node>) {
        self.observe();
        let wanted = self.book.wanted_workers(self.config.workers.max);
        (wanted, self.book.refilling_nodes())
    }

    /// Bytes that workers have zeroed so far.
    pub(crate) fn zeroed(&self) -> u64 {
        self.book.counters().zeroed_bytes
    }

    /// CPU pressure in percent, if anybody wants to know and the kernel says.
    pub(crate) fn pressure(&self) -> Option<(f64, u8)> {
        let limit = self.config.workers.pause_above_pressure?;
        let pressure = linux::psi::cpu(&self.roots).ok().flatten()?;
        Some((pressure.some.avg10_percent, limit))
    }

    /// The CPUs of a node, for workers that nobody placed.
    pub(crate) fn cpus_of(&self, node: Node) -> Option<String> {
        linux::numa::cpus_of(&self.roots, node).ok().map(|cpus| cpus.to_string())
    }

    /// Removes every file and mount.
    pub(crate) fn clean_up(&mut self) -> Result<()> {
        self.leases = Leases::default();
        self.store.clean_up()
    }
}
