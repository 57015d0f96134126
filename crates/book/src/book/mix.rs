// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools that were only told how many bytes to have ready: the sizes of their blocks are the
//! book's matter.
//!
//! # Theory of operation
//!
//! Such pools are kept as one pool per size of block, and this module sets the thresholds:
//! [`Demand`] gives the number of blocks of each size. Everything else (zeroing, lending, returns)
//! knows pools of one size only, and a file's name says the size as ever. Others see one pool with
//! a `pages_per_block` of 0.
//!
//! When the wanted sizes change, blocks of the old sizes are in the way. Dirty ones go back to the
//! kernel as soon as another size lacks pages. Ready ones are *thrown away* only on credit: one
//! part in [`CREDIT_PART`] of the lent bytes, and at first one in [`FIRST_CREDIT_PART`] of the
//! pool, as its first blocks are a guess. The same credit pays for pages that are cut off a larger
//! block for a loan.
//!
//! A pool with `learn = "day"` has other bytes to keep ready in each quarter of an hour
//! ([`DayDemand`]). When the level falls, surplus ready blocks go back to the kernel at once: they
//! are few in a day, and the credit does not pay for them.

use std::collections::{BTreeMap, BTreeSet};

use units::{Counts, Domain, Pages, PoolKey};
use wire::{BlockSize, LearntAmount, LendRequest, PoolStatus};

use super::{Book, Effect, Pool};
use crate::block::{Block, StateName};
use crate::config::{ConfigError, PoolConfig, PoolSize, ReadyLearning};
use crate::policy::{CREDIT_PART, DayDemand, Demand, piece};

/// A large block is made only if this fraction of the pool stays free beside it. Otherwise a loan
/// would find the last pages of a nearly full node in a worker's hands.
const SPARED_PART: u64 = 8;
/// The first credit as a fraction of the pool, as its first blocks are a guess.
const FIRST_CREDIT_PART: u64 = 8;

/// One pool of blocks of several sizes.
#[derive(Debug)]
pub(super) struct Mix {
    /// With the bytes that are to be ready now.
    pub(super) config: PoolConfig,
    /// As the operator has it.
    asked: PoolConfig,
    demand: Demand,
    day: DayDemand,
    /// Whether less is to be ready than a moment ago.
    is_lowered: bool,
    /// Zeroed pages that may be thrown away.
    credit: Pages,
    /// What fell off the credit's division.
    odd: u64,
    /// Whether the demand has changed since the blocks were chosen.
    is_stale: bool,
    /// Ready pages after the last loan.
    left: Pages,
}

/// What a pool has learnt, for a book after a restart.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learnt {
    /// Whose it is.
    pub domain: Domain,
    /// Zeroed pages that it may throw away.
    pub credit: Pages,
    /// The requested sizes.
    pub demand: Demand,
    /// The requested bytes by the time of the day.
    #[serde(default)]
    pub day: DayDemand,
}

impl Mix {
    fn new(config: PoolConfig) -> Self {
        let ready = config.ready_high;
        let demand = Demand::guess(ready, config.page_size);
        Self {
            asked: config.clone(),
            config,
            demand,
            day: DayDemand::default(),
            is_lowered: false,
            credit: Pages(ready.0 / FIRST_CREDIT_PART),
            odd: 0,
            is_stale: true,
            left: ready,
        }
    }

    /// The same with other thresholds; what it has learnt stays.
    fn with(self, config: PoolConfig) -> Self {
        // Of nothing nothing was learnt: the guess is of other bytes.
        if self.asked.ready_high == Pages::ZERO {
            return Self { day: self.day, ..Self::new(config) };
        }
        let credit = self.credit.min(config.ready_high);
        Self { asked: config.clone(), config, credit, ..self }
    }

    /// Has as much to keep ready as the time asks for. Returns whether that has changed.
    fn pass(&mut self, now: u64) -> bool {
        let wanted = match self.asked.learns {
            Some(ReadyLearning::Day) => {
                self.day.pass(now);
                self.day.level(now, self.asked.ready_high)
            }
            None => return false,
        };
        let was = std::mem::replace(&mut self.config.ready_high, wanted);
        self.is_lowered |= wanted < was;
        self.is_stale |= wanted != was;
        wanted != was
    }

    /// The pool of one size of its blocks.
    fn class(&self, pages_per_block: Pages, blocks: u64) -> Pool {
        let ready_high = pages_per_block * blocks;
        let config = PoolConfig {
            pages_per_block,
            ready_high,
            learns: None,
            resize: PoolSize::default(),
            ..self.config.clone()
        };
        Pool { config, refilling: false, configured: true }
    }

    pub(super) fn asked(&self) -> &PoolConfig {
        &self.asked
    }

    fn spend(&mut self, pages: Pages) {
        self.credit = self.credit.saturating_sub(pages);
    }
}

impl Book {
    /// Whether the sizes of this pool's blocks are the book's matter.
    pub(super) fn is_mixed(&self, domain: Domain) -> bool {
        self.mixes.contains_key(&domain)
    }

    /// The pools of one domain, each of one size of blocks.
    fn classes(&self, domain: Domain) -> impl Iterator<Item = (PoolKey, &Pool)> {
        let least = PoolKey::mixed(domain);
        let most = PoolKey { pages_per_block: Pages(u64::MAX), ..least };
        self.pools.range(least..=most).map(|(key, pool)| (*key, pool))
    }

    pub(super) fn sum_of(&self, domain: Domain, of: impl Fn(PoolKey) -> Pages) -> Pages {
        self.classes(domain).map(|(key, _)| of(key)).sum()
    }

    /// The pools as an operator knows them.
    pub(super) fn configured_pools(&self) -> impl Iterator<Item = PoolKey> + '_ {
        let fixed = self.pools.keys().filter(|key| !self.is_mixed(key.domain()));
        let mixed = self.mixes.keys().map(|domain| PoolKey::mixed(*domain));
        let all: BTreeSet<_> = fixed.copied().chain(mixed).collect();
        all.into_iter()
    }

    /// Has a pool of several sizes from now on, or other thresholds of one.
    pub(super) fn mix(&mut self, config: PoolConfig) {
        let domain = config.key().domain();
        let mix = match self.mixes.remove(&domain) {
            Some(mix) => mix.with(config),
            None => Mix::new(config),
        };
        self.mixes.insert(domain, mix);
        if self.now > 0 {
            self.pass_time(self.now);
        }
        self.choose_sizes(domain);
    }

    /// Pools of one domain and a mix of it exclude each other.
    pub(super) fn check_mix(&self, key: PoolKey) -> Result<(), ConfigError> {
        let domain = key.domain();
        let is_fixed = || self.classes(domain).any(|(_, pool)| pool.configured);
        match (key.is_mixed(), self.is_mixed(domain)) {
            (false, true) => Err(ConfigError::Mixed(domain)),
            (true, false) if is_fixed() => Err(ConfigError::Mixed(domain)),
            _ => Ok(()),
        }
    }

    /// What the pools of several sizes have learnt so far.
    pub fn learnt(&self) -> impl Iterator<Item = Learnt> + '_ {
        self.mixes.iter().map(|(domain, mix)| Learnt {
            domain: *domain,
            credit: mix.credit,
            demand: mix.demand.clone(),
            day: mix.day.clone(),
        })
    }

    /// Takes over what an earlier book had learnt, to be called before its files are. Nothing
    /// happens where there is no such pool.
    pub fn learn(&mut self, learnt: Learnt) {
        let Some(mix) = self.mixes.get_mut(&learnt.domain) else { return };
        mix.demand = learnt.demand;
        mix.day = learnt.day;
        mix.credit = learnt.credit.min(mix.config.ready_high);
        if self.now > 0 {
            self.pass_time(self.now);
        }
        self.choose_sizes(learnt.domain);
    }

    /// Says the time, in seconds since 1970, before [`Book::relieve`] is asked. Returns whether a
    /// pool that learns from the day has other bytes to keep ready now.
    pub fn pass_time(&mut self, now: u64) -> bool {
        self.now = now;
        let mut changed = false;
        self.mixes.values_mut().for_each(|mix| changed |= mix.pass(now));
        changed
    }

    /// Learns from a granted loan and the number of ready pages that it took.
    pub(super) fn record_demand(&mut self, domain: Domain, request: &LendRequest, taken: Pages) {
        let left = self.lendable(domain);
        let now = self.now;
        let Some(mix) = self.mixes.get_mut(&domain) else { return };
        let zeroed = (left + taken).saturating_sub(std::mem::replace(&mut mix.left, left));
        let pages = request.bytes.whole_pages(domain.page_size);
        let ready = mix.config.ready_high;
        mix.demand.record(pages, request.single, zeroed, ready, domain.page_size);
        if mix.asked.learns.is_some() {
            mix.day.record(pages, now);
        }
        mix.is_stale = true;
        let earned = pages.0 + mix.odd;
        mix.odd = earned % CREDIT_PART;
        mix.credit = (mix.credit + Pages(earned / CREDIT_PART)).min(ready);
    }

    /// Pages cut off a ready block for a loan.
    pub(super) fn record_waste(&mut self, domain: Domain, pages: Pages) {
        if let Some(mix) = self.mixes.get_mut(&domain) {
            mix.spend(pages);
        }
    }

    /// Whether the credit allows cutting `pages` off a ready block for a loan.
    pub(super) fn has_waste_credit(&self, domain: Domain, pages: Pages) -> bool {
        self.mixes.get(&domain).is_none_or(|mix| pages <= mix.credit)
    }

    /// Whether a loan in several blocks leaves blocks of that size to those in one file.
    pub(super) fn is_for_files(&self, domain: Domain, size: Pages) -> bool {
        let of = |mix: &Mix| size > piece(domain.page_size) && mix.demand.is_for_files(size);
        self.mixes.get(&domain).is_some_and(of)
    }

    /// Updates the thresholds of each size from the learnt demand.
    fn choose_sizes(&mut self, domain: Domain) {
        let Some(mix) = self.mixes.get_mut(&domain) else { return };
        mix.is_stale = false;
        mix.demand.choose(mix.config.ready_high, domain.page_size);
        let mut targets = mix.demand.targets(mix.config.ready_high, domain.page_size);
        // Holes need a pool, whatever the ready targets say.
        targets.entry(Pages(1)).or_default();
        let mix = &self.mixes[&domain];
        let key = |size| PoolKey { pages_per_block: size, ..PoolKey::mixed(domain) };
        let wanted: Vec<_> = targets.iter().map(|(s, n)| (key(*s), mix.class(*s, *n))).collect();
        let others: Vec<_> = self
            .classes(domain)
            .map(|(key, _)| key)
            .filter(|k| !targets.contains_key(&k.pages_per_block))
            .collect();
        let others: Vec<_> =
            others.into_iter().map(|k| (k, mix.class(k.pages_per_block, 0))).collect();
        for (key, new) in wanted {
            let refilling = self.pools.get(&key).is_some_and(|pool| pool.refilling);
            self.pools.insert(key, Pool { refilling, ..new });
        }
        for (key, unwanted) in others {
            if self.is_empty(key) {
                self.pools.remove(&key);
            } else {
                self.pools.insert(key, unwanted);
            }
        }
    }

    fn is_empty(&self, key: PoolKey) -> bool {
        StateName::ALL.into_iter().all(|state| self.blocks.sum(key, state).blocks == 0)
    }

    /// A pool for blocks of a size that an earlier book wanted.
    pub(super) fn pool_of_found(&self, key: PoolKey) -> Pool {
        match self.mixes.get(&key.domain()) {
            Some(mix) => mix.class(key.pages_per_block, 0),
            None => Pool::unwanted(key),
        }
    }

    /// Pages of a pool that are ready or about to be.
    pub(super) fn coming(&self, key: PoolKey) -> Pages {
        self.pages_in(key, StateName::Ready) + self.pages_in(key, StateName::Zeroing)
    }

    /// Pages that must stay free beside a new block of a pool of several sizes.
    pub(super) fn spared_by_large(&self, key: PoolKey) -> Option<Pages> {
        let mix = self.mixes.get(&key.domain())?;
        let is_large = key.pages_per_block > piece(key.page_size);
        Some(if is_large { Pages(mix.config.ready_high.0 / SPARED_PART) } else { Pages::ZERO })
    }

    /// Whether one block more would be more ready bytes than a pool of several sizes is to have.
    pub(super) fn fills_mix(&self, key: PoolKey) -> bool {
        let Some(mix) = self.mixes.get(&key.domain()) else { return false };
        let coming = self.sum_of(key.domain(), |key| self.coming(key));
        coming + key.pages_per_block > mix.config.ready_high
    }

    /// Makes room for the sizes that lack blocks. Of sizes with too many blocks, dirty blocks go
    /// back to the kernel, and ready ones while the credit lasts.
    pub(super) fn remix(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        for domain in self.mixes.keys().copied().collect::<Vec<_>>() {
            if self.mixes[&domain].is_stale {
                self.choose_sizes(domain);
            }
            if self.mixes.get_mut(&domain).is_some_and(|mix| std::mem::take(&mut mix.is_lowered)) {
                effects.extend(self.release_surplus(domain));
            }
            effects.extend(self.make_room(domain));
        }
        effects
    }

    /// Gives back ready blocks above the amount to keep ready, of the sizes that have too many.
    /// Dirty blocks go, too: a pool above its amount zeroes none.
    fn release_surplus(&mut self, domain: Domain) -> Vec<Effect> {
        let ready_high = self.mixes.get(&domain).map(|mix| mix.config.ready_high);
        let coming = self.sum_of(domain, |key| self.coming(key));
        let Some(mut beyond) = ready_high.and_then(|high| coming.0.checked_sub(high.0)).map(Pages)
        else {
            return Vec::new();
        };
        let dirty = self.in_state(StateName::Zeroable).filter(|b| b.pool().domain() == domain);
        let mut spare: Vec<_> = dirty.map(Block::id).collect();
        for (key, pool) in self.classes(domain) {
            let surplus = self.coming(key).saturating_sub(pool.config.ready_high);
            let blocks = surplus.min(beyond).0 / key.pages_per_block.0;
            let of_size = self.in_state(StateName::Ready).filter(|b| b.pool() == key);
            let of_size = of_size.take(usize::try_from(blocks).unwrap_or(usize::MAX));
            for block in of_size {
                beyond = beyond.saturating_sub(block.pages());
                spare.push(block.id());
            }
        }
        self.remove_some(Pages(u64::MAX), spare).1
    }

    /// The size with the largest shortage: the next to make, given room.
    fn lacking(&self, domain: Domain) -> Option<PoolKey> {
        let lacks = |(key, pool): &(PoolKey, &Pool)| {
            let high = pool.config.ready_high;
            self.coming(*key) + key.pages_per_block <= high
        };
        let share = |(key, pool): &(PoolKey, &Pool)| {
            self.coming(*key).0.saturating_mul(1000) / pool.config.ready_high.0.max(1)
        };
        self.classes(domain).filter(lacks).min_by_key(share).map(|(key, _)| key)
    }

    fn make_room(&mut self, domain: Domain) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some(key) = self.lacking(domain) {
            let has_dirty = self.blocks.sum(key, StateName::Zeroable).blocks > 0;
            let by_kernel = !has_dirty && key.pages_per_block > self.spendable(key);
            if !by_kernel && !self.fills_mix(key) {
                break;
            }
            let dirty = if by_kernel { self.surplus_dirty(key) } else { None };
            let Some((pool, state)) = dirty
                .map(|pool| (pool, StateName::Zeroable))
                .or_else(|| Some((self.surplus_ready(key)?, StateName::Ready)))
            else {
                break;
            };
            let found = self.in_state(state).find(|b| b.pool() == pool).map(Block::id);
            let Some(block) = found.and_then(|id| self.blocks.remove(id)) else { break };
            if state == StateName::Ready {
                self.record_waste(domain, block.pages());
            }
            if let Some(available) = self.available.get_mut(&domain) {
                *available += block.memory();
            }
            self.counters.released_bytes += block.memory().bytes(domain.page_size);
            effects.push(Effect::Remove(block.id()));
        }
        effects
    }

    /// The largest size with more dirty blocks than it wants, other than `key`.
    fn surplus_dirty(&self, key: PoolKey) -> Option<PoolKey> {
        let has = |(pool, config): &(PoolKey, &Pool)| {
            let dirty = self.pages_in(*pool, StateName::Zeroable);
            let wanted = config.config.ready_high + pool.pages_per_block;
            *pool != key && dirty > Pages::ZERO && self.coming(*pool) + dirty >= wanted
        };
        self.classes(key.domain()).filter(has).map(|(pool, _)| pool).last()
    }

    /// A size that has more ready blocks than it wants, in favour of `key`: the largest that is no
    /// larger than that, or the smallest that is.
    fn surplus_ready(&self, key: PoolKey) -> Option<PoolKey> {
        let credit = self.mixes.get(&key.domain())?.credit;
        let has = |(pool, config): &(PoolKey, &Pool)| {
            let wanted = config.config.ready_high + pool.pages_per_block;
            pool.pages_per_block <= credit
                && self.pages_in(*pool, StateName::Ready) > Pages::ZERO
                && self.coming(*pool) >= wanted
        };
        let surplus = || self.classes(key.domain()).filter(has).map(|(pool, _)| pool);
        surplus().take_while(|pool| *pool < key).last().or_else(|| surplus().next())
    }

    /// The counts of a pool of several sizes, as those of one pool.
    pub(super) fn mix_status(&self, key: PoolKey, kernel: &Counts) -> Option<PoolStatus> {
        let mix = self.mixes.get(&key.domain())?;
        let mut sizes = Vec::new();
        let mut parts = self.classes(key.domain()).map(|(class, pool)| {
            let status = self.status_of(class, &pool.config, kernel);
            let pages_per_block = class.pages_per_block;
            let blocks = |pages: Pages| pages.0 / pages_per_block.0;
            let (wanted_blocks, ready_blocks) =
                (blocks(status.ready_high), blocks(status.ready_pages));
            if wanted_blocks + ready_blocks > 0 {
                sizes.push(BlockSize { pages_per_block, ready_blocks, wanted_blocks });
            }
            status
        });
        let mut all = parts.next()?;
        for one in parts {
            all.zeroing_pages += one.zeroing_pages;
            all.ready_pages += one.ready_pages;
            all.lent_pages += one.lent_pages;
            all.kept_pages += one.kept_pages;
            all.draining_pages += one.draining_pages;
            all.mapped_pages += one.mapped_pages;
            all.pinned_pages += one.pinned_pages;
            all.blocks += one.blocks;
        }
        Some(PoolStatus {
            pages_per_block: Pages::ZERO,
            zeroable_pages: self.zeroable(key),
            ready_low: mix.config.low(),
            ready_high: mix.config.ready_high,
            learnt: mix.asked.learns.map(|_| LearntAmount {
                max_pages: mix.asked.ready_high,
                known_days: mix.day.known_days(self.now) as u64,
            }),
            sizes,
            ..all
        })
    }

    /// What of the classes' counts [`Book::filling`] tells: the whole, while any is being filled.
    pub(super) fn filling_mixes(&self) -> BTreeMap<PoolKey, (Pages, Pages)> {
        let is_filled = |(key, pool): (PoolKey, &Pool)| pool.refilling && !self.reaches_high(key);
        let filled = self.mixes.iter().filter(|(d, _)| self.classes(**d).any(is_filled));
        let levels = |(domain, mix): (&Domain, &Mix)| {
            let ready = self.sum_of(*domain, |key| self.ready(key));
            (PoolKey::mixed(*domain), (ready, mix.config.ready_high))
        };
        filled.map(levels).collect()
    }
}
