// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The invariants of every state of the world.

use std::collections::{BTreeMap, BTreeSet};

use units::{Counts, Pages, PoolKey, Uid};
use wire::{Counters, Level, LoanStatus, PoolStatus};

use super::kernel::{Actor, Content, File};
use super::world::{Client, World, shape};
use crate::block::{Block, Part, State, StateName};
use crate::book::JobOrder;
use crate::journal;

/// Everything that a caller can see of a book, except its counters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct View {
    pools: Vec<Option<PoolStatus>>,
    levels: Vec<Level>,
    loans: Vec<LoanStatus>,
    places: Vec<Option<(StateName, String)>>,
    available: Vec<Pages>,
}

impl World {
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Block> {
        StateName::ALL.into_iter().flat_map(|state| self.book.in_state(state))
    }

    pub(super) fn view(&self) -> View {
        View {
            pools: self
                .book
                .pool_keys()
                .map(|k| self.book.pool_status(k, &Counts::default()))
                .collect(),
            levels: self.book.levels(),
            loans: self.book.loans(),
            places: self.blocks().map(|b| self.book.place(b.id())).collect(),
            available: self.book.available.values().copied().collect(),
        }
    }

    /// A call that did nothing: what can be seen is as before, and no counter moved but that of
    /// refusals.
    pub(super) fn assert_unchanged(&self, before: &View, counters: Counters, why: &str) {
        assert_eq!(self.view(), *before, "{why} changed something");
        let refusals = self.book.counters().refusals;
        assert_eq!(self.book.counters(), Counters { refusals, ..counters }, "{why} counted");
    }

    pub(super) fn check(&self) {
        self.kernel.assert_conserved();
        self.assert_book_and_files_agree();
        for block in self.blocks() {
            self.assert_content(block);
        }
        self.assert_no_content_leaks();
        assert!(self.book.blocks.is_consistent(), "the index differs from the blocks");
        self.assert_sums();
        self.assert_nothing_is_promised_twice();
    }

    /// One truth: the directories and names of the files are the states of the blocks.
    fn assert_book_and_files_agree(&self) {
        let mut of_book = BTreeSet::new();
        for block in self.blocks() {
            let no = self.kernel.find(block.id()).expect("a block of the book has a file");
            let file = self.kernel.file(no);
            let place = Some((block.state_name(), journal::name_of(block)));
            assert_eq!(file.place, place, "{}", block.id());
            // Clients may change the length, and a crash in the middle of a loan leaves it open.
            let open = matches!(block.state_name(), StateName::Lent | StateName::Draining);
            assert!(open || file.len() == block.pages().0, "length of {}", block.id());
            assert_eq!(file.shape, shape(block.pool()), "{}", block.id());
            of_book.insert(no);
        }
        let linked: BTreeSet<_> = self.kernel.linked().map(|(no, _)| no).collect();
        let known: BTreeSet<_> = of_book.union(&self.orphans).copied().collect();
        assert!(of_book.is_disjoint(&self.orphans), "a forgotten block is in the book");
        assert_eq!(linked, known, "files that the book does not know");
    }

    fn assert_content(&self, block: &Block) {
        let id = block.id();
        let file = self.kernel.file(self.kernel.find(id).expect("checked before"));
        let zero = |n: Pages| count_zero(file) >= n.0;
        match block.state() {
            State::Ready(_) => {
                let all = block.pool().pages_per_block;
                assert!(zero(all), "{id} is ready and not zero: {file:?}");
                assert!(!file.is_reachable(), "{id} is ready and held: {file:?}");
                assert!(file.pinners.is_empty(), "{id} is ready and pinned: {file:?}");
            }
            State::Zeroable { done } => {
                let missing = block.missing().0;
                assert!(file.missing() <= missing, "{id} misses more than {missing}: {file:?}");
                assert!(zero(*done), "{id} is not zero up to {done}: {file:?}");
                assert!(!file.is_reachable(), "{id} is zeroable and held: {file:?}");
            }
            State::Zeroing { done, .. } => {
                assert!(zero(*done), "{id} is not zero up to {done}: {file:?}");
            }
            State::Lent(_) | State::Kept { .. } => {
                let worker = file.holders.iter().find(|h| matches!(h, Actor::Worker(_)));
                assert_eq!(worker, None, "a worker still has {id}: {file:?}");
            }
            State::Draining(_) => {}
        }
    }

    /// Invariant 1, from the clients' side: a process that can read a page finds zero, its own
    /// bytes, or bytes of an earlier life of the same owner and user.
    fn assert_no_content_leaks(&self) {
        for (no, file) in &self.kernel.files {
            for reader in file.holders.iter().chain(&file.pinners) {
                let Actor::Client(reader) = *reader else { continue };
                for page in file.pages.iter().flatten() {
                    let own = self.may_read(reader, *page);
                    assert!(own, "client {reader} reads {page:?} in file {no}: {file:?}");
                }
            }
        }
    }

    pub(super) fn may_read(&self, reader: usize, page: Content) -> bool {
        let me = &self.clients[reader];
        match page {
            Content::Zero => true,
            Content::Of(Actor::Worker(_)) => false,
            Content::Of(Actor::Client(writer)) => {
                writer == reader || same_owner(me, &self.clients[writer])
            }
        }
    }

    /// Every sum in the book's reports is the sum over its blocks, and its leases and jobs are the
    /// live ones.
    fn assert_sums(&self) {
        let mut held: BTreeMap<Uid, u64> = BTreeMap::new();
        for block in self.blocks() {
            if let State::Lent(part) | State::Draining(Some(part)) | State::Kept { part, .. } =
                block.state()
            {
                let Part { account, pages, .. } = part;
                let pages = *pages + block.grown();
                *held.entry(*account).or_default() += pages.bytes(block.pool().page_size).0;
            }
        }
        for account in (0..4).map(Uid) {
            let expected = held.get(&account).copied().unwrap_or_default();
            assert_eq!(self.book.held_by(account).0, expected, "held by user {account}");
        }
        let mut of_pools = 0;
        for key in self.book.pool_keys() {
            let pool = self.book.pool_status(key, &Counts::default()).expect("a key has its pool");
            let sum = |state| {
                let blocks = self.book.in_state(state).filter(|b| self.reported(b.pool()) == key);
                blocks.map(Block::pages).sum::<Pages>().0
            };
            assert_eq!(pool.ready_pages, Pages(sum(StateName::Ready)));
            assert_eq!(pool.zeroing_pages, Pages(sum(StateName::Zeroing)));
            assert_eq!(pool.lent_pages, Pages(sum(StateName::Lent)));
            assert_eq!(pool.kept_pages, Pages(sum(StateName::Kept)));
            assert_eq!(pool.draining_pages, Pages(sum(StateName::Draining)));
            of_pools += pool.blocks;
        }
        assert_eq!(of_pools, super::kernel::count(self.blocks()), "blocks without a pool");
        let leases: BTreeSet<_> = self.book.leases().collect();
        let open = self.clients.iter().filter(|c| c.open).map(|c| c.lease);
        let named = self.book.named_loans("", None);
        let nobodys: Vec<_> =
            named.filter(|loan| self.unclaimed.contains_key(&loan.name)).collect();
        assert_eq!(nobodys.len(), self.unclaimed.len(), "a loan by name was lost");
        let open: BTreeSet<_> = open.chain(nobodys.iter().map(|loan| loan.lease)).collect();
        assert_eq!(leases, open, "leases in the book and in clients' hands");
        self.assert_names();
        for client in self.clients.iter().filter(|c| c.open) {
            let files = client.files.iter().map(|no| self.kernel.file(*no).block);
            let (files, blocks): (BTreeSet<_>, BTreeSet<_>) =
                (files.collect(), self.book.lease_blocks(client.lease).into_iter().collect());
            assert_eq!(blocks, files, "blocks of {}", client.lease);
        }
        for block in self.book.in_state(StateName::Lent) {
            let State::Lent(part) = block.state() else { continue };
            assert!(leases.contains(&part.lease), "{} outlives {}", block.id(), part.lease);
        }
        for worker in &self.workers {
            if let Some(job) = worker.job {
                let block = self.kernel.file(worker.file).block;
                assert_eq!(self.book.job(job).and_then(JobOrder::block), Some(block), "{job}");
            }
        }
    }

    /// The pool, as it is configured, that a block belongs to.
    pub(super) fn reported(&self, pool: PoolKey) -> PoolKey {
        let mixed = PoolKey::mixed(pool.domain());
        if self.book.is_mixed(pool.domain()) { mixed } else { pool }
    }

    /// A name is one loan of one file, on disk and in the book, and it has a user.
    fn assert_names(&self) {
        let mut on_disk = BTreeSet::new();
        for (no, file) in self.kernel.linked() {
            if self.orphans.contains(&no) {
                continue;
            }
            let Some((StateName::Lent, name)) = &file.place else { continue };
            let part = journal::parse(name, file.shape.page_size).and_then(|entry| entry.part);
            if let Some(name) = part.and_then(|part| part.name) {
                assert!(on_disk.insert(name.clone()), "{name} is two loans");
            }
        }
        let listed: BTreeSet<_> = self.book.named_loans("", None).map(|loan| loan.name).collect();
        assert_eq!(listed, on_disk, "in the book and in the names of files");
        let of_clients =
            self.clients.iter().filter(|c| c.open).filter_map(|c| c.ask.named.as_ref());
        let known: BTreeSet<_> =
            of_clients.map(|n| &n.name).chain(self.unclaimed.keys()).cloned().collect();
        assert_eq!(listed, known, "loans by name, and who knows of them");
        for block in self.book.in_state(StateName::Kept) {
            let State::Kept { part, .. } = block.state() else { continue };
            assert!(self.had.contains(&part.lease), "nobody ever had {block:?}");
            if part.scope().is_some() {
                assert_eq!(
                    block.missing(),
                    Pages::ZERO,
                    "an unbacked part is kept for a name: {block:?}"
                );
            }
        }
        for scope in [Some("a"), Some("b"), None] {
            let kept = |part: &Part| part.keep.as_ref().and_then(|keep| keep.scope.clone());
            let of = |part: &Part| match &part.name {
                Some(name) => name.scope() == scope,
                None => scope.is_some() && kept(part).as_deref() == scope,
            };
            let held = self.blocks().filter(|b| match b.state() {
                State::Lent(part) | State::Draining(Some(part)) | State::Kept { part, .. } => {
                    of(part)
                }
                _ => false,
            });
            let bytes = |b: &Block| (b.pages() + b.grown()).bytes(b.pool().page_size).0;
            let held: u64 = held.map(bytes).sum();
            assert_eq!(self.book.held_by_tenant(scope).0, held, "held in {scope:?}");
        }
    }

    /// The book never believes in pages that the kernel does not have, unless others took them
    /// since it was told.
    fn assert_nothing_is_promised_twice(&self) {
        for (at, believed) in &self.book.available {
            let there = u64::try_from(self.available(*at)).unwrap_or_default();
            let fresh = !self.stale.contains(at);
            assert!(!fresh || believed.0 <= there, "{at:?}: {believed} believed of {there}");
        }
    }
}

fn same_owner(a: &Client, b: &Client) -> bool {
    a.uid == b.uid && a.owner.is_some() && a.owner == b.owner
}

/// The zero pages from a file's start.
pub(super) fn count_zero(file: &File) -> u64 {
    super::kernel::count(file.pages.iter().take_while(|p| **p == Some(Content::Zero)))
}
