// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All blocks, with what a loan looks up kept beside them.
//!
//! A loan must look at few blocks: with 4096 of them four scans take 80 us, and 64 clients wait for
//! one another. The same holds for maintenance, which follows every change. Therefore there is an
//! index of the ready blocks of each domain, of the blocks and sums of each state, and of the bytes
//! that each account holds. Every change goes through [`Blocks::change`]: it takes the block out of
//! the index before and puts it back after. The block itself stays where it is.

use std::collections::{BTreeMap, BTreeSet};

use units::{BlockId, Bytes, Domain, Pages, PoolKey, Uid};

use crate::block::{Block, State, StateName};

/// The ready blocks of one domain, by size.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReadyIndex {
    blocks: BTreeSet<(Pages, BlockId)>,
    pages: Pages,
}

impl ReadyIndex {
    /// Their pages together.
    pub(super) fn pages(&self) -> Pages {
        self.pages
    }

    /// The blocks of at least `pages`, the smallest first.
    pub(super) fn from(&self, pages: Pages) -> impl Iterator<Item = (Pages, BlockId)> + '_ {
        self.blocks.range((pages, BlockId(0))..).copied()
    }

    /// The largest block of at most `pages` that comes before `before`, if that is given.
    pub(super) fn fitting(
        &self,
        pages: Pages,
        before: Option<(Pages, BlockId)>,
    ) -> Option<(Pages, BlockId)> {
        let end = (pages + Pages(1), BlockId(0));
        self.blocks.range(..before.map_or(end, |b| b.min(end))).next_back().copied()
    }
}

/// One pool's dirty blocks, by how far they are done and by what they lack.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct DirtyBlocks {
    by_done: BTreeSet<(Pages, BlockId)>,
    by_missing: BTreeSet<(Pages, BlockId)>,
    left: Pages,
    missing: Pages,
}

/// How far a dirty block is done.
fn done(block: &Block) -> Option<Pages> {
    match block.state() {
        State::Zeroable { done } => Some(*done),
        _ => None,
    }
}

/// The part of a dirty block that still needs clearing.
fn left(block: &Block) -> Pages {
    let done = done(block).unwrap_or_default();
    block.pool().pages_per_block.saturating_sub(done)
}

/// Blocks in one state, added up.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) blocks: u64,
    pub(super) pages: Pages,
    /// Those of the pages that have memory for sure.
    pub(super) memory: Pages,
}

impl Sum {
    fn add(&mut self, block: &Block) {
        self.blocks += 1;
        self.pages += block.pages();
        self.memory += block.memory();
    }

    fn subtract(&mut self, block: &Block) {
        self.blocks = self.blocks.saturating_sub(1);
        self.pages = self.pages.saturating_sub(block.pages());
        self.memory = self.memory.saturating_sub(block.memory());
    }
}

/// What counts against one account's quota.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Holding {
    blocks: BTreeSet<BlockId>,
    bytes: Bytes,
}

/// All blocks and their index.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Blocks {
    blocks: BTreeMap<BlockId, Block>,
    index: Index,
}

/// The indexes beside the blocks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Index {
    states: BTreeMap<StateName, BTreeSet<BlockId>>,
    sums: BTreeMap<(PoolKey, StateName), Sum>,
    ready: BTreeMap<Domain, ReadyIndex>,
    dirty: BTreeMap<PoolKey, DirtyBlocks>,
    held: BTreeMap<Uid, Holding>,
}

impl Blocks {
    pub(super) fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    pub(super) fn in_state(&self, state: StateName) -> impl Iterator<Item = &Block> {
        self.index.states.get(&state).into_iter().flatten().filter_map(|id| self.blocks.get(id))
    }

    pub(super) fn sum(&self, pool: PoolKey, state: StateName) -> Sum {
        self.index.sums.get(&(pool, state)).copied().unwrap_or_default()
    }

    /// What the domain's blocks in these states come to.
    pub(super) fn total(&self, domain: Domain, states: &[StateName]) -> Sum {
        let least = PoolKey::mixed(domain);
        let most = PoolKey { pages_per_block: Pages(u64::MAX), ..least };
        let sums = self.index.sums.range((least, StateName::Zeroable)..=(most, StateName::Kept));
        let sums = sums.filter(|((_, state), _)| states.contains(state));
        sums.fold(Sum::default(), |total, (_, sum)| Sum {
            blocks: total.blocks + sum.blocks,
            pages: total.pages + sum.pages,
            memory: total.memory + sum.memory,
        })
    }

    pub(super) fn ready_blocks(&self, domain: Domain) -> Option<&ReadyIndex> {
        self.index.ready.get(&domain)
    }

    /// The pool's dirty block with the most finished work, among blocks that lack at most
    /// `spendable` pages.
    pub(super) fn furthest_dirty(&self, pool: PoolKey, spendable: Pages) -> Option<&Block> {
        let dirty = self.index.dirty.get(&pool)?.by_done.iter().rev();
        dirty.filter_map(|(_, id)| self.get(*id)).find(|block| block.missing() <= spendable)
    }

    /// Bytes to clear in the pool's dirty blocks that lack at most `spendable` pages.
    pub(super) fn left_dirty(&self, pool: PoolKey, spendable: Pages) -> Pages {
        let Some(dirty) = self.index.dirty.get(&pool) else { return Pages::ZERO };
        let lacking = dirty.by_missing.range((spendable + Pages(1), BlockId(0))..);
        let lacking = lacking.filter_map(|(_, id)| self.get(*id)).map(left).sum();
        dirty.left.saturating_sub(lacking)
    }

    /// What the domain's dirty blocks lack.
    pub(super) fn missing(&self, domain: Domain) -> Pages {
        let least = PoolKey::mixed(domain);
        let most = PoolKey { pages_per_block: Pages(u64::MAX), ..least };
        self.index.dirty.range(least..=most).map(|(_, dirty)| dirty.missing).sum()
    }

    pub(super) fn held(&self, account: Uid) -> Bytes {
        self.index.held.get(&account).map(|held| held.bytes).unwrap_or_default()
    }

    pub(super) fn held_blocks(&self, account: Uid) -> impl Iterator<Item = &Block> {
        let blocks = self.index.held.get(&account).into_iter().flat_map(|held| &held.blocks);
        blocks.filter_map(|id| self.blocks.get(id))
    }

    pub(super) fn accounts(&self) -> impl Iterator<Item = Uid> + '_ {
        self.index.held.keys().copied()
    }

    pub(super) fn insert(&mut self, block: Block) {
        self.index.add(&block);
        self.blocks.insert(block.id(), block);
    }

    pub(super) fn remove(&mut self, id: BlockId) -> Option<Block> {
        let block = self.blocks.remove(&id)?;
        self.index.subtract(&block);
        Some(block)
    }

    /// Changes one block; `None` if there is none of that id.
    pub(super) fn change<R>(&mut self, id: BlockId, f: impl FnOnce(&mut Block) -> R) -> Option<R> {
        let block = self.blocks.get_mut(&id)?;
        self.index.subtract(block);
        let result = f(block);
        self.index.add(block);
        Some(result)
    }

    /// Whether the index says what a scan of the blocks says. For tests.
    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        let mut again = Index::default();
        for block in self.blocks.values() {
            again.add(block);
        }
        self.index.says_what(&again)
    }
}

impl Index {
    fn add(&mut self, block: &Block) {
        let pool = block.pool();
        let state = block.state_name();
        self.states.entry(state).or_default().insert(block.id());
        self.sums.entry((pool, state)).or_default().add(block);
        if let State::Ready(_) = block.state() {
            let ready = self.ready.entry(pool.domain()).or_default();
            if ready.blocks.insert((block.pages(), block.id())) {
                ready.pages += block.pages();
            }
        }
        if let Some(done) = done(block) {
            let dirty = self.dirty.entry(pool).or_default();
            dirty.by_done.insert((done, block.id()));
            dirty.by_missing.insert((block.missing(), block.id()));
            dirty.left += left(block);
            dirty.missing += block.missing();
        }
        if let Some((account, pages)) = block.held() {
            let held = self.held.entry(account).or_default();
            held.blocks.insert(block.id());
            held.bytes.0 = held.bytes.0.saturating_add(pages.bytes(pool.page_size).0);
        }
    }

    fn subtract(&mut self, block: &Block) {
        let pool = block.pool();
        let state = block.state_name();
        if let Some(ids) = self.states.get_mut(&state) {
            ids.remove(&block.id());
        }
        if let Some(sum) = self.sums.get_mut(&(pool, state)) {
            sum.subtract(block);
        }
        if let State::Ready(_) = block.state()
            && let Some(ready) = self.ready.get_mut(&pool.domain())
            && ready.blocks.remove(&(block.pages(), block.id()))
        {
            ready.pages = ready.pages.saturating_sub(block.pages());
        }
        if let Some(done) = done(block)
            && let Some(dirty) = self.dirty.get_mut(&pool)
        {
            dirty.by_done.remove(&(done, block.id()));
            dirty.by_missing.remove(&(block.missing(), block.id()));
            dirty.left = dirty.left.saturating_sub(left(block));
            dirty.missing = dirty.missing.saturating_sub(block.missing());
        }
        if let Some((account, pages)) = block.held()
            && let Some(held) = self.held.get_mut(&account)
        {
            held.blocks.remove(&block.id());
            held.bytes.0 = held.bytes.0.saturating_sub(pages.bytes(pool.page_size).0);
            if held.blocks.is_empty() {
                self.held.remove(&account);
            }
        }
    }

    /// Whether both indexes agree, empty entries aside. For tests.
    #[cfg(test)]
    fn says_what(&self, again: &Self) -> bool {
        let full = |index: &Self| {
            let ready = index.ready.iter().filter(|(_, s)| !s.blocks.is_empty());
            ready.map(|(k, s)| (*k, s.blocks.clone(), s.pages)).collect::<Vec<_>>()
        };
        let states = |index: &Self| {
            let states = index.states.iter().filter(|(_, ids)| !ids.is_empty());
            states.map(|(state, ids)| (*state, ids.clone())).collect::<Vec<_>>()
        };
        let sums = |index: &Self| {
            let sums = index.sums.iter().filter(|(_, sum)| sum.blocks > 0);
            sums.map(|(key, sum)| (*key, *sum)).collect::<Vec<_>>()
        };
        let dirty = |index: &Self| {
            let dirty = index.dirty.iter().filter(|(_, dirty)| !dirty.by_done.is_empty());
            dirty.map(|(key, dirty)| (*key, dirty.clone())).collect::<Vec<_>>()
        };
        full(self) == full(again)
            && dirty(self) == dirty(again)
            && states(self) == states(again)
            && sums(self) == sums(again)
            && self.held == again.held
    }
}
