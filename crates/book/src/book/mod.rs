// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The book of all blocks, leases and jobs.
//!
//! # Theory of operation
//!
//! The book decides, its caller does: every method moves blocks by legal edges of
//! [`crate::block`] and returns the [`Effect`]s that make the file system agree, in order. The
//! caller feeds back what the kernel says ([`Book::observe`], [`Book::settle`]) and what became
//! of leases and jobs. When an effect fails the caller says so ([`Book::forget`],
//! [`Book::end_lease`]); the block at hand is then dirty or gone, never ready.
//!
//! *Limits*: `available` is the kernel pool's free and unreserved pages. The book itself subtracts
//! pages that it hands out, and adds pages that it gives back, until the next observation. So two
//! jobs started between two looks count on different pages.
//!
//! *Conservation*: a page of a pool is in exactly one block, a block in exactly one state. The sums
//! of [`Book::pool_status`] are an index over the blocks, and the property tests compare it with a
//! count of the blocks in every state.

mod configure;
mod domain;
mod effect;
mod index;
mod job;
mod lend;
mod mix;
mod names;
mod resize;
mod returns;
mod supply;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use units::{
    BlockId, Bytes, Counts, Domain, JobId, LeaseId, LoanName, Node, PageSize, Pages, PoolKey, Uid,
};
use wire::{Counters, LoanStatus, PoolStatus};

pub use effect::Effect;
pub use job::{JobEnd, JobOrder, Requester, Work};
pub use lend::{Asked, Loan, LoanPart, Named, Refusal};
pub use mix::Learnt;
pub use names::HeldByName;
use names::LeaseEntry;

use crate::block::{Block, HeldBy, Part, Reach, State, StateName};
use crate::config::{ConfigError, PoolConfig, Recycle};
use crate::journal::{self, Entry};
use crate::policy;
use index::Blocks;
use mix::Mix;
use supply::PoolSupply;

/// A file found at start.
#[derive(Debug)]
pub struct Found {
    /// The directory it was found in.
    pub state: StateName,
    /// What its name says.
    pub entry: Entry,
    /// The pages it has memory for.
    pub allocated: Pages,
    /// Who can reach it.
    pub reach: Reach,
    /// Whether its lease still has a holder.
    pub lease_alive: bool,
}

#[derive(Debug)]
struct Pool {
    config: PoolConfig,
    refilling: bool,
    /// Whether the operator named it, or only a file that was found.
    configured: bool,
}

/// The book. See the module's documentation.
#[derive(Debug)]
pub struct Book {
    /// By size of block, also of pools that have several.
    pools: BTreeMap<PoolKey, Pool>,
    mixes: BTreeMap<Domain, Mix>,
    blocks: Blocks,
    leases: BTreeMap<LeaseId, LeaseEntry>,
    names: BTreeMap<LoanName, LeaseId>,
    jobs: BTreeMap<JobId, JobOrder>,
    available: BTreeMap<Domain, Pages>,
    /// What the kernel's pools have in all, where that is known.
    totals: BTreeMap<Domain, Pages>,
    supply: PoolSupply,
    in_place_allowed: bool,
    /// The page sizes with visible pins.
    pins_seen: BTreeSet<PageSize>,
    next_block: u64,
    next_lease: u64,
    next_job: u64,
    counters: Counters,
    /// Hits and misses; the other counts of it are sums over blocks.
    lent_so_far: BTreeMap<Domain, Counts>,
}

impl Book {
    /// An empty book of these pools.
    ///
    /// `in_place_allowed` says whether this kernel can prove that a file is free; otherwise every
    /// pool recycles `fresh`.
    ///
    /// # Errors
    /// Those of [`PoolConfig::check`] and [`ConfigError::Twice`].
    pub fn new(
        pools: impl IntoIterator<Item = PoolConfig>,
        in_place_allowed: bool,
    ) -> Result<Self, ConfigError> {
        let mut book = Self {
            pools: BTreeMap::new(),
            mixes: BTreeMap::new(),
            blocks: Blocks::default(),
            leases: BTreeMap::new(),
            names: BTreeMap::new(),
            jobs: BTreeMap::new(),
            available: BTreeMap::new(),
            totals: BTreeMap::new(),
            supply: PoolSupply::default(),
            in_place_allowed,
            pins_seen: BTreeSet::new(),
            next_block: 1,
            next_lease: 1,
            next_job: 1,
            counters: Counters::default(),
            lent_so_far: BTreeMap::new(),
        };
        for config in pools {
            config.check()?;
            let key = config.key();
            book.check_mix(key)?;
            if key.is_mixed() {
                if book.is_mixed(key.domain()) {
                    return Err(ConfigError::Twice(key));
                }
                book.mix(config);
                continue;
            }
            if book.pools.insert(key, Pool { config, refilling: false, configured: true }).is_some()
            {
                return Err(ConfigError::Twice(key));
            }
        }
        Ok(book)
    }

    /// Gives blocks, leases and jobs numbers from `first` on, where those in use are lower.
    ///
    /// Files show only the numbers that are still in use. Give a clock that continues across
    /// restarts, such as microseconds of `CLOCK_BOOTTIME`: a book hands out fewer than a million
    /// numbers in a second, so every book starts above all earlier numbers. A worker or client of
    /// an earlier daemon then never matches one of today.
    pub fn number_from(&mut self, first: u64) {
        for next in [&mut self.next_block, &mut self.next_lease, &mut self.next_job] {
            *next = first.max(*next);
        }
    }

    /// Takes over a file that an earlier daemon left. If its pool is absent from the configuration,
    /// it gets no new blocks.
    ///
    /// Unproven content is dirty. A file in `ready/` stays ready only if it is whole and the daemon
    /// alone reaches it. A lent file stays lent only with a live lease, and a `kept/` file keeps
    /// its content only if the daemon alone has it.
    pub fn adopt(&mut self, found: &Found) -> Vec<Effect> {
        let Entry { block: id, pool, part, until } = found.entry.clone();
        let configured =
            self.pools.get(&pool).is_some_and(|p| p.configured) || self.is_mixed(pool.domain());
        if !self.pools.contains_key(&pool) {
            self.pools.insert(pool, self.pool_of_found(pool));
        }
        self.next_block = self.next_block.max(id.0.saturating_add(1));
        if let Some(part) = &part {
            self.next_lease = self.next_lease.max(part.lease.0.saturating_add(1));
        }
        let mut effects = self.give_way(found.state, part.as_ref());
        let whole = found.allocated == pool.pages_per_block;
        // Where the kernel keeps ready pages, a ready file of an earlier daemon goes back to it.
        let owning = self.supply.owns_ready();
        let block = match (found.state, part, until) {
            (StateName::Ready, None, None) if whole && configured && owning => {
                Block::adopt_ready(id, pool, &found.reach)
            }
            (StateName::Lent, Some(part), None) if self.is_loan(&part, found.lease_alive) => {
                self.enter_found(id, &part);
                Block::adopt_lent(id, pool, part)
            }
            (StateName::Kept, Some(part), Some(until))
                if matches!(found.reach, Reach::Nobody(_) | Reach::Sole) =>
            {
                Block::adopt_kept(id, pool, part, until)
            }
            // A lost `kept` file must not come back as its owner's: its deadline is unproven.
            (StateName::Kept, part, _) => Block::adopt_unknown(id, pool, part.map(Part::given_up)),
            (_, part, _) => Block::adopt_unknown(id, pool, part),
        };
        self.blocks.insert(block.with_memory(found.allocated));
        effects.push(Effect::Move(id));
        effects
    }

    /// The directory and name of a block's file.
    #[must_use]
    pub fn place(&self, block: BlockId) -> Option<(StateName, String)> {
        self.blocks.get(block).map(|b| (b.state_name(), journal::name_of(b)))
    }

    /// One block.
    #[must_use]
    pub fn block(&self, block: BlockId) -> Option<&Block> {
        self.blocks.get(block)
    }

    /// Blocks in one state.
    pub fn in_state(&self, state: StateName) -> impl Iterator<Item = &Block> {
        self.blocks.in_state(state)
    }

    /// The leases that are alive.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.leases.keys().copied()
    }

    /// Whether a lease is alive.
    #[must_use]
    pub fn has_lease(&self, lease: LeaseId) -> bool {
        self.leases.contains_key(&lease)
    }

    /// The blocks of a lease, in the order of the loan.
    #[must_use]
    pub fn lease_blocks(&self, lease: LeaseId) -> Vec<BlockId> {
        self.leases.get(&lease).map(|l| l.blocks.clone()).unwrap_or_default()
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Drops a block with a file that the caller could not make, move or find.
    pub fn forget(&mut self, block: BlockId) {
        self.blocks.remove(block);
        self.jobs.retain(|_, order| order.block() != Some(block));
        for lease in self.leases.values_mut() {
            lease.blocks.retain(|held| *held != block);
        }
    }

    /// A pool's configuration.
    #[must_use]
    pub fn pool_config(&self, key: PoolKey) -> Option<&PoolConfig> {
        let key = self.canonical(key);
        match self.mixes.get(&key.domain()).filter(|_| key.is_mixed()) {
            Some(mix) => Some(&mix.config),
            None => self.pools.get(&key).map(|p| &p.config),
        }
    }

    /// Every pool, as it is configured.
    pub fn pool_keys(&self) -> impl Iterator<Item = PoolKey> + '_ {
        self.configured_pools()
    }

    /// How a pool recycles: as configured, if the kernel can show that a file is free.
    fn recycling(&self, key: PoolKey) -> Recycle {
        let reported = self.pools.get(&key).map(|p| p.config.recycle).unwrap_or_default();
        if self.in_place_allowed { reported } else { Recycle::Fresh }
    }

    /// Says for which page sizes pins are visible: pools with `recycle = "auto"` of these sizes
    /// recycle in place.
    pub fn see_pins_of(&mut self, sizes: impl IntoIterator<Item = PageSize>) {
        self.pins_seen = sizes.into_iter().collect();
    }

    /// The sizes of the pages of pools that would recycle in place if pins could be seen.
    pub fn misses_pins_of(&self) -> impl Iterator<Item = PageSize> + '_ {
        let auto = self.pools.values().filter(|p| p.config.recycle == Recycle::Auto);
        let sizes: BTreeSet<_> = auto.map(|p| p.config.page_size).collect();
        sizes.into_iter().filter(|size| !self.pins_seen.contains(size))
    }

    /// How the next returned and free block is recycled.
    fn effective_recycling(&self, key: PoolKey) -> Recycle {
        match self.recycling(key) {
            Recycle::Auto if !self.pins_seen.contains(&key.page_size) => Recycle::Fresh,
            reported => reported,
        }
    }

    fn available(&self, domain: Domain) -> Pages {
        self.available.get(&domain).copied().unwrap_or_default()
    }

    /// Promises pages of the kernel's pool.
    fn spend(&mut self, domain: Domain, pages: Pages) {
        if let Some(available) = self.available.get_mut(&domain) {
            *available = available.saturating_sub(pages);
        }
    }

    fn pages_in(&self, key: PoolKey, state: StateName) -> Pages {
        self.blocks.sum(key, state).pages
    }

    fn owned(&self, key: PoolKey) -> Pages {
        StateName::ALL.into_iter().map(|state| self.pages_in(key, state)).sum()
    }

    /// Pages that a pool may take from the kernel now.
    fn spendable(&self, key: PoolKey) -> Pages {
        let leave = self.pools.get(&key).map(|p| p.config.leave_free).unwrap_or_default();
        self.available(key.domain()).saturating_sub(leave)
    }

    /// Brings every pool's hysteresis up to date and says how many of `max` own workers should
    /// run now.
    pub fn wanted_workers(&mut self, max: u32) -> u32 {
        let keys: Vec<_> = self.pools.keys().copied().collect();
        let mut wanted = 0;
        for key in keys {
            self.record_level(key);
            // In a pool of several sizes one can lack blocks where others have too many.
            if !self.pools.get(&key).is_some_and(|pool| pool.refilling) || self.fills_mix(key) {
                continue;
            }
            let work = self.zeroing(key) > Pages::ZERO || self.zeroable(key) > Pages::ZERO;
            let ready = self.ready(key);
            let Some(pool) = self.pools.get(&key).filter(|_| work) else { continue };
            let low = pool.config.low();
            wanted = wanted.max(policy::wanted_workers(pool.refilling, ready, low, max));
        }
        wanted
    }

    /// Whether a worker that asks now is likely to find pages to zero. Call
    /// [`Book::wanted_workers`] before, for [`Requester::Background`].
    #[must_use]
    pub fn has_zeroing(
        &self,
        who: Requester,
        node: Option<Node>,
        page_size: Option<PageSize>,
    ) -> bool {
        self.pools.iter().any(|(key, pool)| {
            let wanted = who == Requester::User || pool.refilling;
            wanted && key.domain().fits(node, page_size) && self.zeroable(*key) > Pages::ZERO
        })
    }

    /// Updates one pool's hysteresis. Call it whenever its ready pages increase: a pool that was
    /// full for a moment counts as filled, even if a loan takes from it before the next question
    /// for workers.
    fn record_level(&mut self, key: PoolKey) {
        let ready = self.ready(key);
        if let Some(pool) = self.pools.get_mut(&key) {
            let (low, high) = (pool.config.low(), pool.config.ready_high);
            pool.refilling = policy::refilling(pool.refilling, ready, low, high);
        }
    }

    /// The nodes with pools that are being refilled, since the last [`Book::wanted_workers`].
    #[must_use]
    pub fn refilling_nodes(&self) -> Vec<Node> {
        let mut nodes: Vec<_> =
            self.pools.iter().filter(|(_, p)| p.refilling).map(|(key, _)| key.node).collect();
        nodes.dedup();
        nodes
    }

    /// The pools that are being refilled, as of the last [`Book::wanted_workers`]: their ready
    /// pages and their high threshold.
    #[must_use]
    pub fn filling(&self) -> BTreeMap<PoolKey, (Pages, Pages)> {
        let fixed = self.pools.iter().filter(|(key, _)| !self.is_mixed(key.domain()));
        let filling = fixed.filter(|(_, pool)| pool.refilling);
        let level =
            |(key, pool): (&PoolKey, &Pool)| (*key, (self.ready(*key), pool.config.ready_high));
        filling.map(level).chain(self.filling_mixes()).collect()
    }

    /// A pool's counts.
    #[must_use]
    pub fn pool_status(&self, key: PoolKey, kernel: &Counts) -> Option<PoolStatus> {
        if key.is_mixed() {
            return self.mix_status(key, kernel);
        }
        Some(self.status_of(key, &self.pools.get(&key)?.config, kernel))
    }

    fn status_of(&self, key: PoolKey, config: &PoolConfig, kernel: &Counts) -> PoolStatus {
        let pages = |state| self.pages_in(key, state);
        PoolStatus {
            node: key.node,
            page_size: key.page_size,
            pages_per_block: key.pages_per_block,
            recycle: self.effective_recycling(key),
            zeroable_pages: self.zeroable(key),
            zeroing_pages: self.zeroing(key),
            ready_pages: self.ready(key),
            lent_pages: pages(StateName::Lent),
            kept_pages: pages(StateName::Kept),
            draining_pages: pages(StateName::Draining),
            mapped_pages: self.draining_by(key, HeldBy::Mapped),
            pinned_pages: self.draining_by(key, HeldBy::Pinned),
            blocks: StateName::ALL.iter().map(|s| self.blocks.sum(key, *s).blocks).sum(),
            ready_low: config.low(),
            ready_high: config.ready_high,
            max_pages: config.max,
            leave_free: config.leave_free,
            kernel_free_pages: kernel.available,
            kernel_reserved_pages: kernel.free.saturating_sub(kernel.available),
            sizes: Vec::new(),
            resize: None,
        }
    }

    fn draining_by(&self, key: PoolKey, hold: HeldBy) -> Pages {
        let held = |b: &&Block| b.pool() == key && b.held_by() == hold;
        self.in_state(StateName::Draining).filter(held).map(Block::pages).sum()
    }

    /// Every loan.
    #[must_use]
    pub fn loans(&self) -> Vec<LoanStatus> {
        let loan = |(id, lease): (&LeaseId, &LeaseEntry)| {
            let blocks = lease.blocks.iter().filter_map(|b| self.blocks.get(*b));
            let owner = blocks.clone().find_map(|b| match b.state() {
                State::Lent(Part { keep: Some(keep), .. }) => Some(keep.owner.to_string()),
                _ => None,
            });
            let first = blocks.clone().next();
            let nodes: BTreeSet<_> = blocks.clone().map(|b| b.pool().node).collect();
            let sum = |pages: fn(&Block) -> Pages| blocks.clone().map(pages).sum::<Pages>();
            let (pages, unbacked) = (sum(Block::pages), sum(Block::missing));
            LoanStatus {
                lease: *id,
                uid: lease.uid,
                account: lease.account,
                owner,
                page_size: first.map_or_else(PageSize::default, |b| b.pool().page_size),
                pages,
                grown_pages: sum(Block::grown),
                blocks: lease.blocks.len() as u64,
                nodes: nodes.into_iter().collect(),
                ready_pages: pages.saturating_sub(unbacked),
                unbacked_pages: unbacked,
                ..LoanStatus::default()
            }
        };
        self.leases.iter().map(loan).collect()
    }

    /// What counts against a user's quota: lent, kept and draining, and what files were seen to
    /// have beyond that.
    #[must_use]
    pub fn held_by(&self, account: Uid) -> Bytes {
        self.blocks.held(account)
    }

    /// The users that hold anything.
    pub fn accounts(&self) -> impl Iterator<Item = Uid> + '_ {
        self.blocks.accounts()
    }

    /// The blocks that their borrowers may still enlarge: lent ones, and returned ones that a
    /// process may still have.
    pub fn growable(&self, account: Uid) -> impl Iterator<Item = &Block> {
        let is_there = |b: &&Block| !matches!(b.state(), State::Kept { .. });
        self.blocks.held_blocks(account).filter(is_there)
    }

    /// Records how many pages of a lent or draining block have memory: pages beyond the lent
    /// length count against its borrower's quota, too.
    pub fn record_growth(&mut self, block: BlockId, allocated: Pages) {
        self.blocks.change(block, |b| b.record_growth(allocated));
    }
}
