// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations: what every face of the daemon calls, and no logic besides.
//!
//! Each one asks the book, carries its effects out in the file system, and tells the watchers.
//! Everything runs on one thread and no operation waits, so that the book and the file system
//! are never seen apart by anybody.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use linux::{Roots, hugetlb};
use model::block::{Reach, Settled, StateName};
use model::book::{
    Book, DomainCounts, Effect, JobOrder, KernelOrder, LendRequest, Loan, Refusal, Who,
    ZeroedCounts,
};
use model::config::{Config, PoolConfig};
use model::ids::{BlockId, Domain, JobId, LeaseId, PoolKey};
use model::units::{Bytes, Node, PageSize, Pages};
use model::wire::{self, Level, Status};
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::held::Held;
use crate::kernel::Fill;
use crate::leases::Leases;
use crate::metrics::Metrics;
use crate::provider::Provider;
use crate::store::{Store, directory_name, page_bytes};

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

/// What a worker gets.
#[derive(Debug)]
pub(crate) enum Order {
    /// A block and its file.
    Block(JobOrder, OwnedFd),
    /// Pages of the kernel's own pool.
    Kernel(KernelOrder),
}

/// A domain as the kernel's pool has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DomainInKernel {
    pub(crate) ours: DomainCounts,
    /// Pages that nobody uses, ours among them.
    pub(crate) free: Pages,
    /// Pages promised to mappings, of all nodes.
    pub(crate) reserved: Pages,
    /// All pages there are.
    pub(crate) total: Pages,
}

/// The daemon's state. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Shell {
    book: Book,
    store: Store,
    leases: Leases,
    held: Held,
    roots: Roots,
    config: Config,
    provider: Provider,
    /// Files being filled, with the pages that they are to have.
    filling: BTreeMap<BlockId, Pages>,
    provable: bool,
    observed: Option<Instant>,
    kernel_free: BTreeMap<(Node, PageSize), Pages>,
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
    /// Takes over what an earlier daemon left under `run_dir`. Returns the leases that are alive.
    pub(crate) fn start(
        config: Config,
        run_dir: &std::path::Path,
        roots: Roots,
        plain: bool,
        mut stored: BTreeMap<String, OwnedFd>,
    ) -> Result<(Self, Vec<(LeaseId, linux::DaemonEnd)>)> {
        config.check()?;
        let provider = Provider::choose(config.provider, plain, &roots)?;
        let sizes = page_sizes(&config, &roots, plain)?;
        let changed = watch::Sender::new(0);
        let freed = {
            let changed = changed.clone();
            move || changed.send_modify(|generation| *generation += 1)
        };
        let mut store = Store::open(run_dir, plain, config.share_page_tables, freed)?;
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
            roots,
            config,
            provider,
            filling: BTreeMap::new(),
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
        shell.settle_all();
        Ok((shell, alive.into_iter().collect()))
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
        for page_size in page_sizes(&config, &self.roots, matches!(self.provider, Provider::Plain))?
        {
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
                        // Best effort: what can't be removed either is found at the next start.
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
        let freed = self.store.freeing().has_freed();
        if !freed && self.observed.is_some_and(|at| at.elapsed() < OBSERVE_EVERY) {
            return;
        }
        self.observed = Some(Instant::now());
        let shapes: Vec<_> = self.book.shapes().collect();
        for (node, page_size) in shapes {
            // Promises before counts: a page that a job takes in between is counted as taken
            // twice, which the next look mends, and never as free.
            let promised = self.promised(node, page_size);
            self.observe_zeroed(node, page_size, promised);
            match self.provider.free_pages(&self.roots, node, page_size) {
                Ok((free, unreserved)) => {
                    self.kernel_free.insert((node, page_size), free);
                    self.book.observe(node, page_size, unreserved.saturating_sub(promised));
                }
                Err(error) => {
                    tracing::warn!(%error, "can not see the kernel's free pages");
                    self.book.observe(node, page_size, Pages::ZERO);
                }
            }
        }
    }

    /// What the kernel says of its own zeroed pages, less what it is `promised` to loans.
    fn observe_zeroed(&mut self, node: Node, page_size: PageSize, promised: Pages) {
        let Some(pool) = self.provider.kernel() else { return };
        let counts = pool.counts(node, page_size).unwrap_or_else(|error| {
            tracing::warn!(%error, "can not see the kernel's zeroed pages");
            ZeroedCounts::default()
        });
        let zeroed = counts.zeroed.saturating_sub(promised);
        if self.book.observe_zeroed(node, page_size, ZeroedCounts { zeroed, ..counts }) {
            self.wake();
        }
    }

    /// Pages that jobs in workers' hands, and loans' new files, have yet to take from the kernel.
    fn promised(&self, node: Node, page_size: PageSize) -> Pages {
        let taken = |block| self.store.allocated(block, page_size).unwrap_or_default();
        let here =
            |b: &&model::block::Block| (b.pool().node, b.pool().page_size) == (node, page_size);
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

    /// Where the kernel tells of its pool: the low threshold of each node and page size.
    pub(crate) fn kernel_lows(&self) -> BTreeMap<(Node, PageSize), Pages> {
        let keys = self.book.pool_keys().filter(|_| self.provider.kernel().is_some());
        let low = |key: PoolKey| {
            let config = self.book.pool_config(key)?;
            Some(((key.node, key.page_size), config.low()))
        };
        keys.filter_map(low).collect()
    }

    pub(crate) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Grants a loan, or refuses it with nothing changed.
    pub(crate) fn lend(
        &mut self,
        request: &LendRequest,
        borrower: (u32, u32),
    ) -> Result<Result<Handover, Refusal>, wire::Error> {
        if self.provider.kernel().is_some() {
            // All of the loan comes out of the kernel's pool, which others use, too.
            self.observed = None;
        }
        self.observe();
        let (loan, effects) = match self.book.lend(request) {
            Ok(granted) => granted,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let made = self.carry_out(&effects);
        match self.hand_over(&loan, made, request, borrower) {
            Ok((lease, blocks, watch)) => {
                let fills = self.fills(&loan, &blocks);
                Ok(Ok(Handover { loan, lease, blocks, watch, fills }))
            }
            Err(error) => {
                tracing::error!(%error, lease = %loan.lease, "a loan could not be handed over");
                self.end_lease(loan.lease);
                Err(failed(&error))
            }
        }
    }

    fn hand_over(
        &mut self,
        loan: &Loan,
        made: Vec<(BlockId, linux::BlockFile)>,
        request: &LendRequest,
        borrower: (u32, u32),
    ) -> Result<(OwnedFd, Vec<OwnedFd>, linux::DaemonEnd)> {
        let mut made: BTreeMap<_, _> = made.into_iter().collect();
        let mut blocks = Vec::with_capacity(loan.parts.len());
        for part in &loan.parts {
            let file = match made.remove(&part.block) {
                Some(file) => file,
                None => self.store.open_block(part.block)?,
            };
            // Content that outlives the loan must be reachable by its borrower alone; a fresh
            // block is destroyed on return, and any process the borrower starts may open it.
            let outlives = request.keep.is_some() || self.book.recycles_in_place_block(part.block);
            if outlives {
                file.set_access(Some(borrower))?;
            }
            if cfg!(debug_assertions) && !loan.kept && self.provider.kernel().is_none() {
                verify_zero(&file, part.ready, loan.page_size)?;
            }
            blocks.push(file.into());
        }
        let (client, daemon) = self.leases.create(loan.lease, loan.page_size)?;
        Ok((client, blocks, daemon))
    }

    /// What is to be taken from the kernel's pool for a loan of new files.
    fn fills(&mut self, loan: &Loan, files: &[OwnedFd]) -> Vec<Fill> {
        let Some(pool) = self.provider.kernel().filter(|_| !loan.kept) else { return Vec::new() };
        let mut fills = Vec::new();
        for (part, file) in loan.parts.iter().zip(files) {
            match file.try_clone() {
                Ok(file) if part.ready > Pages::ZERO => {
                    let at = (part.node, loan.page_size);
                    fills.push(Fill::new(pool, part.block, file.into(), at, part.ready));
                    self.filling.insert(part.block, part.ready);
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a loan stays a hole"),
            }
        }
        fills
    }

    /// A loan's file has as many of its pages as could be had zeroed.
    pub(crate) fn filled(&mut self, block: BlockId, filled: Pages) {
        let Some(planned) = self.filling.remove(&block) else { return };
        self.book.note_filled(block, planned, filled);
        self.observed = None;
        self.wake();
    }

    /// Whether this kernel tells who holds a block.
    pub(crate) fn can_prove(&self) -> bool {
        self.provable
    }

    /// From now on the loan lasts as long as somebody has a block of it open or mapped, whatever
    /// becomes of its lease's descriptor.
    pub(crate) fn hold_by_memory(&mut self, lease: LeaseId) {
        self.held.insert(lease);
    }

    /// The lease's last descriptor was closed: that ends the loan, unless its memory holds it.
    pub(crate) fn close_lease(&mut self, lease: LeaseId) {
        if !self.held.close(lease) {
            self.end_lease(lease);
        }
    }

    /// Ends the loans that their memory held and holds no longer, of those whose lease was closed so
    /// long ago. Returns whether there were any.
    fn end_unheld(&mut self, age: Duration) -> bool {
        let mut ended = false;
        for lease in self.held.due(age) {
            let blocks = self.book.lease_blocks(lease);
            let is_held = blocks.into_iter().any(|block| {
                self.store.reach_while_lent(block).is_ok_and(|reach| reach == Reach::Shared)
            });
            if !is_held {
                self.held.remove(lease);
                self.end_lease(lease);
                ended = true;
            }
        }
        ended
    }

    /// The loan is over: its blocks are nobody's as soon as nobody reaches them.
    fn end_lease(&mut self, lease: LeaseId) {
        let blocks = self.book.lease_blocks(lease);
        // A client that went away while its file was being filled.
        self.filling.retain(|block, _| !blocks.contains(block));
        let effects = self.book.end_lease(lease);
        self.carry_out(&effects);
        if let Err(error) = self.leases.remove(lease) {
            tracing::debug!(%error, "the lease's name was gone already");
        }
        for block in blocks {
            self.settle(block);
        }
    }

    fn settle(&mut self, block: BlockId) -> Option<Settled> {
        let known = self.book.block(block)?;
        if known.state_name() != StateName::Lingering {
            return None;
        }
        // A client can cut its file, grow it, or punch holes into it.
        let (page_size, lent) = (known.pool().page_size, known.pages());
        let (reach, memory) =
            self.store.reach_after_loan(block, page_size, lent).unwrap_or_else(|error| {
                tracing::warn!(%error, %block, "can not tell who holds a block");
                (Reach::Shared, Pages::ZERO)
            });
        self.book.note_memory(block, memory);
        let (settled, effects) = self.book.settle(block, reach, boot_seconds())?;
        self.carry_out(&effects);
        Some(settled)
    }

    /// Looks at every lingering block again. Returns how many still linger.
    pub(crate) fn settle_all(&mut self) -> usize {
        self.end_unheld(HELD_AGE);
        let lingering: Vec<_> = self.book.in_state(StateName::Lingering).map(|b| b.id()).collect();
        let still = |shell: &mut Self, id| shell.settle(id) == Some(Settled::Lingering);
        lingering.into_iter().filter(|id| still(self, *id)).count()
    }

    /// Counts the files whose pages are on their way to the kernel: wait until there are none.
    pub(crate) fn freeing(&self) -> watch::Receiver<usize> {
        self.store.freeing().waiting()
    }

    /// What to wait for until the page tables of a job's block are made.
    pub(crate) fn making_tables(&self, job: JobId) -> Option<crate::tables::Making> {
        self.store.making_tables(self.book.job_block(job)?)
    }

    /// Whether pages are on their way from one hand to another.
    ///
    /// For a loan that is short of pages: so loans that are held by their memory are looked at
    /// here however young they are.
    pub(crate) fn has_pages_in_transit(&mut self) -> bool {
        let ended = self.end_unheld(Duration::ZERO);
        let mut states = [StateName::Lingering, StateName::Zeroing].into_iter();
        ended
            || self.store.freeing().is_busy()
            || states.any(|state| self.book.in_state(state).next().is_some())
    }

    /// Gives up kept content whose time is over. Returns the second of the next such moment.
    pub(crate) fn expire(&mut self) -> Option<u64> {
        let effects = self.book.expire(boot_seconds());
        self.carry_out(&effects);
        self.book.next_expiry()
    }

    /// Gives blocks back where the kernel's pool has fewer free pages than it is to be left.
    pub(crate) fn relieve(&mut self) {
        let effects = self.book.relieve();
        self.carry_out(&effects);
    }

    /// Hands a block to a worker: its file, and the daemon's end of the job to watch.
    pub(crate) fn take_zeroing(
        &mut self,
        who: Who,
        node: Option<Node>,
        page_size: Option<PageSize>,
    ) -> Result<Option<Order>, wire::Error> {
        self.observe();
        if who == Who::Background {
            self.book.wanted_workers(self.config.workers.max);
        }
        if self.provider.kernel().is_some() {
            return Ok(self.book.take_kernel_zeroing(who, node, page_size).map(Order::Kernel));
        }
        let taken = self.book.take_zeroing(who, node, page_size).or_else(|| {
            // What other jobs were promised may have been taken since the last look.
            self.observed = None;
            self.observe();
            self.book.take_zeroing(who, node, page_size)
        });
        let Some((order, effects)) = taken else { return Ok(None) };
        let made = self.carry_out(&effects).pop().map(|(_, file)| file);
        let opened = made.map_or_else(|| self.store.open_block(order.block), Ok);
        match opened {
            Ok(file) => Ok(Some(Order::Block(order, file.into()))),
            Err(error) => {
                self.lose_job(order.job);
                Err(failed(&error))
            }
        }
    }

    /// Books what a worker reports. `None` for a job that is unknown.
    pub(crate) fn finish_zeroing(&mut self, job: JobId, done: Pages) -> Option<StateName> {
        if let Some(state) = self.book.finish_kernel_zeroing(job, done) {
            self.look_again();
            return Some(state);
        }
        let block = self.book.job_block(job)?;
        let page_size = self.book.block(block)?.pool().page_size;
        let (reach, allocated) =
            self.store.reach(block, page_size).unwrap_or((Reach::Shared, Pages::ZERO));
        // A page that has no memory was not zeroed, whatever the worker says.
        let done = done.min(allocated);
        match self.book.finish_zeroing(job, done, reach) {
            Ok(Some((block, state, effects))) => {
                self.carry_out(&effects);
                if state == StateName::Lingering {
                    self.settle(block);
                }
                Some(state)
            }
            Ok(None) => None,
            Err(error) => {
                tracing::error!(%error, "a job ended in a state it can't end in");
                None
            }
        }
    }

    /// A worker is gone. No-op if it reported before.
    pub(crate) fn lose_job(&mut self, job: JobId) {
        if self.book.lose_kernel_job(job) {
            self.book.count_lost_worker();
            self.look_again();
            return;
        }
        let Some(block) = self.book.job_block(job) else { return };
        self.book.count_lost_worker();
        let effects = self.book.lose_job(job);
        self.carry_out(&effects);
        self.settle(block);
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
            let page = page_bytes(page_size);
            let here = hugetlb::counters(&self.roots, page, Some(linux::NodeId(node.0)))?;
            let all = hugetlb::counters(&self.roots, page, None)?;
            (Pages(here.free), Pages(all.reserved.unwrap_or_default()), Pages(here.total))
        };
        let in_work =
            |b: &&model::block::Block| (b.pool().node, b.pool().page_size) == (node, page_size);
        let taken = self.book.in_state(StateName::Zeroing).filter(in_work);
        let taken: Pages =
            taken.map(|b| self.store.allocated(b.id(), page_size).unwrap_or_default()).sum();
        // What others do between the looks must not make a part larger than its whole.
        let free = (free + ours.idle + taken).max(ours.zeroed + ours.zeroable + ours.zeroing);
        Ok(Some(DomainInKernel { ours, free, reserved, total: total.max(free) }))
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
        linux::numa::cpus_of(&self.roots, linux::NodeId(node.0)).ok().map(|cpus| cpus.to_string())
    }

    /// Removes every file and mount.
    pub(crate) fn clean_up(&mut self) -> Result<()> {
        self.leases = Leases::default();
        self.store.clean_up()
    }
}

/// The page sizes of the configured pools, all of which the kernel must have.
fn page_sizes(config: &Config, roots: &Roots, plain: bool) -> Result<Vec<PageSize>> {
    let mut sizes: Vec<_> = config.pools.iter().map(|p| p.page_size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if plain {
        return Ok(sizes);
    }
    let known = hugetlb::page_sizes(roots)?;
    for page in &sizes {
        if !known.contains(&page_bytes(*page)) {
            let known = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(Error::NoSuchPages { page: *page, known });
        }
    }
    Ok(sizes)
}

/// Debug builds look at the first and last 4 KiB of every ready page before it is lent.
fn verify_zero(file: &linux::BlockFile, ready: Pages, page_size: PageSize) -> Result<()> {
    for page in 0..ready.0 {
        let start = page * page_size.bytes();
        let end = start + page_size.bytes();
        for range in [start..start + 4096, end - 4096..end] {
            let dirty = file.first_nonzero(range)?;
            assert_eq!(dirty, None, "page {page} of a ready block has a byte that is not zero");
        }
    }
    Ok(())
}
