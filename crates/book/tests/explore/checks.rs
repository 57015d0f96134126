// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What holds in every state.

use std::collections::BTreeSet;

use book::block::{HeldBy, State as Life, StateName};
use units::{Counts, LeaseId, Pages};

use super::scene::Scene;
use super::steps::{State, Step, loan_name};
use super::world::{ByName, File, Held, PAGE, Page, USERS, Worker, World, pool_key, uid};

impl State {
    /// Safety: see SPECIFICATION.md, P6, P23, P28, P103, P105, P146.
    pub(crate) fn check(&self, scene: &Scene) {
        let memory: u64 = self.world.files.iter().map(File::memory).sum();
        assert_eq!(self.world.free + memory, self.world.total, "a page is lost");
        self.assert_one_place_each();
        self.world.files.iter().for_each(Self::assert_no_content_leaks);
        self.world.files.iter().for_each(Self::assert_nothing_of_anothers_is_there);
        for file in self.world.files.iter().filter(|f| World::is_known(f)) {
            self.assert_content(file);
        }
        self.assert_sums(scene);
        self.assert_leases();
        self.assert_names(scene);
    }

    /// A block is in one state, its file in that directory under the name that says all of it, and
    /// there are no files besides.
    fn assert_one_place_each(&self) {
        let mut blocks = BTreeSet::new();
        for state in StateName::ALL {
            for block in self.book.in_state(state) {
                assert!(blocks.insert(block.id()), "{} is in two places", block.id());
                assert_eq!(block.state_name(), state);
            }
        }
        for file in self.world.files.iter().filter(|f| World::is_known(f)) {
            assert!(blocks.remove(&file.block), "a file that the book does not know: {file:?}");
            let (state, name) = self.book.place(file.block).expect("it is in the book");
            let entry = book::journal::parse(&name, PAGE);
            let (directory, of_file) = file.place.as_ref().expect("it is linked");
            assert_eq!((*directory, Some(of_file.as_ref())), (state, entry.as_ref()));
        }
        assert!(blocks.is_empty(), "blocks without a file: {blocks:?}");
    }

    /// A process that has a file finds zeros and its own bytes there, and is the only one.
    fn assert_no_content_leaks(file: &File) {
        let has = |user: &usize| file.held[*user] != Held::Not;
        let mut readers = (0..USERS).filter(has);
        let Some(reader) = readers.next() else { return };
        assert_eq!(readers.next(), None, "two users have {file:?}");
        let own = |page: &Page| match page {
            Page::Unbacked | Page::Zero => true,
            Page::Of { user, owner } => (*user, *owner) == (reader, file.owner[reader]),
            Page::Worker => false,
        };
        assert!(file.pages().iter().all(own), "user {reader} reads another's: {file:?}");
    }

    /// What a user has left with a file is there for no other.
    fn assert_nothing_of_anothers_is_there(file: &File) {
        let Some(left) = file.left else { return };
        let other = (0..USERS).find(|user| *user != left && file.held[*user] != Held::Not);
        assert_eq!(other, None, "user {left} has left something: {file:?}");
        let is_over = matches!(&file.place, Some((StateName::Lent | StateName::Draining, _)));
        assert!(is_over || file.place.is_none(), "user {left} has left something: {file:?}");
    }

    fn assert_content(&self, file: &File) {
        let block = self.book.block(file.block).expect("a file that is known");
        let by_worker = file.workers.contains(&true);
        let draining = matches!(block.state(), Life::Draining(_));
        assert!(draining || block.held_by() == HeldBy::Open, "what held it before: {block:?}");
        match block.state() {
            Life::Ready(_) => {
                let all = block.pool().pages_per_block.0;
                assert_eq!(file.zero(), all, "it is ready and not zero: {file:?}");
                assert_eq!(file.most_held(), Held::Not, "it is ready and held: {file:?}");
            }
            Life::Zeroable { done } => {
                assert!(file.zero() >= done.0, "less is zero than {done}: {file:?}");
                assert!(file.missing() <= block.missing().0, "it misses more: {file:?}");
                assert_eq!(file.most_held(), Held::Not, "it is zeroable and held: {file:?}");
            }
            Life::Zeroing { done, .. } => {
                assert!(file.zero() >= done.0, "less is zero than {done}: {file:?}");
                assert_eq!(file.held, [Held::Not; USERS], "it is cleared and held: {file:?}");
            }
            Life::Lent(part) | Life::Kept { part, .. } => {
                assert!(!by_worker, "a worker has it: {file:?}");
                let other = (0..USERS).find(|user| uid(*user) != part.uid).expect("two users");
                assert_eq!(file.held[other], Held::Not, "another has it: {file:?}");
            }
            Life::Draining(_) => {}
        }
    }

    fn assert_sums(&self, scene: &Scene) {
        let of = |state| self.book.in_state(state).map(|b| b.pages()).sum::<Pages>().0;
        let pool = self.book.pool_status(pool_key(scene.pages_per_block), &Counts::default());
        if let Some(pool) = &pool {
            assert_eq!(pool.ready_pages, Pages(of(StateName::Ready)));
            assert_eq!(pool.zeroing_pages, Pages(of(StateName::Zeroing)));
            assert_eq!(pool.lent_pages, Pages(of(StateName::Lent)));
            assert_eq!(pool.kept_pages, Pages(of(StateName::Kept)));
            assert_eq!(pool.draining_pages, Pages(of(StateName::Draining)));
        }
        let blocks = || StateName::ALL.into_iter().flat_map(|state| self.book.in_state(state));
        assert_eq!(pool.map_or(0, |pool| pool.blocks), blocks().count() as u64);
        for user in 0..USERS {
            let held = blocks().filter_map(|b| b.held()).filter(|(of, _)| *of == uid(user));
            let held: Pages = held.map(|(_, pages)| pages).sum();
            assert_eq!(self.book.held_by(uid(user)), held.bytes(PAGE));
        }
    }

    /// The leases of the book have holders, and loans share no block.
    fn assert_leases(&self) {
        let leases: BTreeSet<LeaseId> = self.book.leases().collect();
        let open = self.world.leases.iter().flatten().copied();
        let named = (0..self.world.names.len()).filter_map(|n| self.book.named(&loan_name(n)));
        let known: BTreeSet<_> = open.chain(named.map(|loan| loan.lease)).collect();
        let nobodys: Vec<_> = leases.difference(&known).collect();
        let without = |lease: &&&LeaseId| !self.book.lease_blocks(***lease).is_empty();
        assert_eq!(nobodys.iter().find(without), None, "a lease that nobody has");
        for lease in leases {
            for id in self.book.lease_blocks(lease) {
                let block = self.book.block(id).expect("a lease's block");
                let is_its = matches!(block.state(), Life::Lent(part) if part.lease == lease);
                assert!(is_its, "{lease} has {block:?}");
            }
        }
    }

    /// A name is one loan, and lasts until it is returned.
    fn assert_names(&self, scene: &Scene) {
        for (nth, by_name) in self.world.names.iter().enumerate().take(scene.names) {
            let name = loan_name(nth);
            let is_its = |part: &book::block::Part| part.name.as_ref() == Some(&name);
            let lent = self.book.in_state(StateName::Lent);
            let lent = lent.filter(|b| matches!(b.state(), Life::Lent(part) if is_its(part)));
            assert!(lent.count() <= 1, "`{name}` is two loans");
            match *by_name {
                ByName::Nothing => {}
                ByName::Pending { lease, .. } => {
                    let found = self.book.named(&name).expect("the name is taken");
                    assert!(found.is_pending && found.lease == lease, "{found:?}");
                }
                ByName::Reported { block, user } => {
                    let found = self.book.named(&name).expect("a loan by name was lost");
                    assert!(!found.is_pending, "{found:?}");
                    assert_eq!((found.block, found.uid), (block, uid(user)));
                }
            }
        }
    }

    /// Liveness: once every process lets go, the daemon's own steps bring every page back, and
    /// unheld blocks come back before. Spends the state.
    pub(crate) fn assert_comes_back(mut self, scene: &Scene) {
        for nth in 0..self.world.workers.len() {
            if let Worker::Busy { .. } = self.world.workers[nth] {
                let worker = u8::try_from(nth).expect("two workers");
                self.run(scene, Step::Lose { worker, dies: true });
            }
            self.world.workers[nth] = Worker::Idle;
            self.world.lets_go(nth);
        }
        for file in &mut self.world.files {
            file.held = [Held::Not; USERS];
        }
        self.world.reap();
        for user in 0..USERS {
            if let Some(lease) = self.world.leases[user].take() {
                self.end(lease);
            }
        }
        for nth in 0..self.world.names.len() {
            self.world.names[nth] = ByName::Nothing;
            if let Some(found) = self.book.named(&loan_name(nth)) {
                self.end(found.lease);
            }
        }
        // The daemon's next start takes over forgotten files.
        if self.world.files.iter().any(|f| f.is_orphan) {
            let (mut next, effects) = Self::start(scene, self.world, false);
            for effect in &effects {
                next.world.carry_out(&next.book, effect, true);
            }
            next.started();
            self = next;
            // An earlier loan of a name can have come back: its agent finds it listed.
            for nth in 0..self.world.names.len() {
                if let Some(found) = self.book.named(&loan_name(nth)) {
                    self.end(found.lease);
                }
            }
        }
        self.settle_all(scene);
        // Kept content is given up once, at any time after it expires.
        for _ in 0..scene.files {
            if self.book.next_expiry().is_some() {
                self.run(scene, Step::Expire);
                self.settle_all(scene);
            }
        }
        for state in [StateName::Lent, StateName::Draining, StateName::Kept, StateName::Zeroing] {
            let left = self.book.in_state(state).next();
            assert!(left.is_none(), "{left:?} never comes back");
        }
        let idle = [StateName::Ready, StateName::Zeroable].into_iter();
        let idle: u64 = idle
            .flat_map(|state| self.book.in_state(state))
            .map(|block| self.world.file(block.id()).memory())
            .sum();
        assert_eq!(self.world.free + idle, self.world.total, "a page is lost for good");
    }

    fn end(&mut self, lease: LeaseId) {
        for effect in self.book.end_lease(lease) {
            self.world.carry_out(&self.book, &effect, false);
        }
    }

    fn settle_all(&mut self, scene: &Scene) {
        let draining: Vec<_> =
            self.book.in_state(StateName::Draining).map(|block| block.id()).collect();
        for block in draining {
            let file = self.world.find(block).expect("a block of the book has a file");
            let file = u8::try_from(file).expect("few files");
            self.run(scene, Step::Settle { file });
        }
    }

    fn run(&mut self, scene: &Scene, step: Step) {
        let (effects, then) = self.call(scene, step);
        for effect in &effects {
            self.world.carry_out(&self.book, effect, false);
        }
        self.finish_call(then, true);
    }
}
