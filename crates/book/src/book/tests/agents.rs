// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What agents do: loans by name, and what must become of them.

use units::{LeaseId, Pages};

use super::borrowing::{is_owned, owner_of};
use super::kernel::{Actor, Content};
use super::world::{Client, Fate, World, split};
use crate::block::{Block, State, StateName};
use crate::book::{Asked, Effect, HeldByName, Named, Refusal};

impl World {
    /// An agent asks for a loan by name, as the daemon serves it: made, filled, held by its name.
    pub(super) fn lend_by_name(&mut self, ask: &Asked, whole: bool, fate: Fate) {
        let named = ask.named.as_ref().expect("a name");
        if let Some(found) = self.book.named(&named.name) {
            assert!(!found.is_pending, "nothing is left half done: {found:?}");
            return self.lend_again(ask, named, &found);
        }
        let (view, counters) = (self.view(), self.book.counters());
        let held = self.book.held_by_tenant(named.name.tenant());
        let waits = self.own_content_waits(ask);
        let (loan, effects) = match self.book.lend(ask) {
            Ok(granted) => granted,
            Err(refusal) => {
                self.assert_unchanged(&view, counters, "a refused loan");
                return self.record_refusal(ask, named, &refusal);
            }
        };
        assert!(self.leases_seen.insert(loan.lease), "{} was used before", loan.lease);
        assert_eq!(loan.kept, waits, "{loan:?} for {ask:?}");
        if loan.kept {
            self.had.insert(loan.lease);
        }
        // Kept content counts already.
        let quota = named.quota.map_or(u64::MAX, |quota| quota.0);
        assert!(
            loan.kept || held.0 + ask.request.bytes.0 <= quota,
            "{held:?} and more than {quota}"
        );
        let [part] = loan.parts.as_slice() else { panic!("{loan:?} is no file") };
        // An agent that lists its loans finds it, and sees that it is not done.
        let pending = self.book.named(&named.name).expect("the name is taken at once");
        assert!(pending.is_pending && matches!(self.book.lend(ask), Err(Refusal::NameTaken)));
        assert!(self.book.named_loans("", None).any(|loan| loan == pending));
        let (first, second) = split(fate, effects.len());
        if !self.execute(&effects, first) {
            self.record("crash before a loan has its name");
            self.take_back(loan.lease);
            return;
        }
        let no = self.kernel.find(part.block).expect("a lent block has a file");
        if whole && part.ready < part.pages {
            if !self.fill_unbacked(no) {
                // Others took the pages: refused, with nothing left of it.
                self.take_back(loan.lease);
                return;
            }
            self.book.record_whole(loan.lease);
            self.record("lent by name, whole");
        }
        let effects = self.book.hold_by_name(loan.lease);
        assert_eq!(effects, [Effect::Move(part.block)]);
        if !self.execute(&effects, second) {
            match self.book.named(&named.name) {
                // A daemon that lives takes the loan back.
                Some(found) if found.is_pending => {
                    unreachable!("a name is there or not: {found:?}")
                }
                Some(found) => {
                    assert!(matches!(fate, Fate::Crash { .. }), "{found:?}");
                    // An earlier loan with a failed return comes back when this one is gone.
                    let is_new = found.lease == loan.lease;
                    self.had.insert(found.lease);
                    self.unclaimed.insert(found.name, is_new);
                }
                None => {
                    self.take_back(loan.lease);
                }
            }
            return;
        }
        let found = self.book.named(&named.name).expect("it is held by its name");
        assert!(!found.is_pending && found.fits(ask), "{found:?} for {ask:?}");
        self.had.insert(loan.lease);
        self.record("lent by name");
        if loan.kept {
            self.record("lent kept by name");
        }
        let ready = if loan.kept { Pages::ZERO } else { part.ready };
        self.give_to_client(ask, &found, ready);
    }

    /// The loan never reaches its borrower: kept content that it found stays kept, and new memory
    /// has no owner.
    fn take_back(&mut self, lease: LeaseId) {
        let effects = self.book.end_lease(lease);
        self.execute(&effects, Fate::Fine);
    }

    /// The same name again: the same loan, or nothing.
    fn lend_again(&mut self, ask: &Asked, named: &Named, found: &HeldByName) {
        let (view, counters) = (self.view(), self.book.counters());
        assert_eq!(self.book.lend(ask), Err(Refusal::NameTaken));
        self.assert_unchanged(&view, counters, "a name that is taken");
        self.record("refused: name");
        if !found.fits(ask) {
            return self.record("a name for a loan of another kind");
        }
        match self.unclaimed.get(&named.name) {
            Some(true) => {
                self.unclaimed.remove(&named.name);
                self.record("lent by a name whose caller never heard of it");
                let no = self.kernel.find(found.block).expect("a lent block has a file");
                let file = self.kernel.file(no);
                let (at, there) = (file.shape, Pages(file.allocated()));
                if file.missing() > 0 {
                    // It was still unmapped: other loans may have the pages meant for its unbacked
                    // part.
                    self.stale.insert(at);
                }
                self.give_to_client(ask, found, there);
            }
            // Its agent knows that a return of it failed, and returns it first.
            Some(false) => {}
            None => self.record("lent by the same name again"),
        }
    }

    fn give_to_client(&mut self, ask: &Asked, found: &HeldByName, ready: Pages) {
        let nth = self.clients.len();
        let no = self.kernel.find(found.block).expect("a lent block has a file");
        let file = self.kernel.file(no);
        assert_eq!(file.len(), found.pages.0, "{file:?}");
        assert!(!file.is_reachable(), "it is lent while it is held: {file:?}");
        assert!(file.allocated() >= ready.0, "{file:?} has less than {ready}");
        if file.missing() > 0 && owner_of(ask).is_some() {
            // Nothing kept pages for the unbacked parts in its content: others may have them.
            self.stale.insert(file.shape);
        }
        self.kernel.file_mut(no).holders.insert(Actor::Client(nth));
        self.clients.push(Client {
            lease: found.lease,
            uid: ask.uid,
            owner: owner_of(ask),
            ask: ask.clone(),
            files: vec![no],
            open: true,
        });
        let file = self.kernel.file(no);
        let own = |page: &Content| self.may_read(nth, *page);
        assert!(file.pages.iter().flatten().all(own), "client {nth}: {file:?}");
        let (at, left) = (file.shape, self.available(file.shape));
        if left < 0 {
            assert!(self.stale.contains(&at), "{at:?}: over-promised {}", -left);
            self.leave(Actor::Client(nth));
            self.end_lease(nth, Fate::Fine);
        }
    }

    /// The daemon fills a file. Whether there were pages for it.
    fn fill_unbacked(&mut self, no: usize) -> bool {
        let file = self.kernel.file(no);
        let (at, missing) = (file.shape, file.missing());
        if self.available(at) < i64::try_from(missing).expect("a simulation is small") {
            assert!(self.stale.contains(&at), "{at:?}: promised {missing} that were not there");
            return false;
        }
        for page in 0..self.kernel.file(no).len() {
            if !self.kernel.has_memory(no, page) {
                self.kernel.write(no, page, Content::Zero);
            }
        }
        true
    }

    /// After a start: lent by name, and unclaimed.
    pub(super) fn find_unclaimed(&mut self) {
        let listed: Vec<_> = self.book.named_loans("", None).map(|loan| loan.name).collect();
        for name in listed {
            let has = |c: &Client| c.open && c.ask.named.as_ref().is_some_and(|n| n.name == name);
            if !self.clients.iter().any(has) {
                self.unclaimed.entry(name).or_insert(false);
            }
        }
    }

    /// Loans by name that no agent claims are returned.
    pub(super) fn reconcile(&mut self, fate: Fate) {
        let listed: Vec<_> = self.book.named_loans("", None).collect();
        let nobodys: Vec<_> =
            listed.into_iter().filter(|loan| self.unclaimed.contains_key(&loan.name)).collect();
        for loan in nobodys {
            self.record("returned: a loan of nobody's");
            let effects = self.book.end_unkept(loan.lease);
            self.execute(&effects, fate);
            let is_kept = |b: &Block| {
                matches!(b.state(), State::Draining(Some(part)) if part.lease == loan.lease
                    && part.keep.is_some())
            };
            assert!(!self.blocks().any(is_kept), "nothing of it was to be kept");
            // The outcome is unknown: the agent lists again.
            let is_there = self.book.named(&loan.name).is_some();
            if !is_there {
                self.unclaimed.remove(&loan.name);
            }
        }
    }

    fn record_refusal(&mut self, ask: &Asked, named: &Named, refusal: &Refusal) {
        self.record(match refusal {
            Refusal::TooManyNames => {
                assert!(self.book.names() >= named.most, "{refusal:?}");
                "refused: too many names"
            }
            Refusal::ScopeQuota { held, quota } => {
                assert!(held.0.saturating_add(ask.request.bytes.0) > quota.0, "{refusal:?}");
                "refused: quota of a scope"
            }
            Refusal::OwnerDraining => {
                let mine = |b: &Block| {
                    matches!(b.state(), State::Draining(Some(part)) if is_owned(part, ask))
                };
                let mut draining = self.book.in_state(StateName::Draining);
                assert!(ask.await_owner && draining.any(mine), "{refusal:?}");
                "refused: content on its way to a name"
            }
            Refusal::NameTaken | Refusal::NameBusy | Refusal::Quota { .. } => {
                unreachable!("{refusal:?} of {ask:?}")
            }
            Refusal::Size(_) | Refusal::NoSuchPool | Refusal::NotEnough { .. } => {
                "refused: no memory for a name"
            }
        });
    }
}
