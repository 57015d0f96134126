// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result of carrying out the effects of a call: the caller gets the requested block, which
//! must belong to no other process.

use book::{Effect, Loan};
use units::BlockId;

use super::steps::{State, Then, loan_name};
use super::world::{ByName, Held, Page, USERS, Whose, Worker, index};

impl State {
    /// The result of carrying out all effects, or all but a failed one. The effects after it may
    /// fail as if they had not been asked for.
    pub(crate) fn finish_call(&mut self, then: Then, is_done: bool) -> Vec<Effect> {
        match then {
            Then::Nothing => {}
            Then::HandOver { user, loan, owner } if is_done => {
                self.world.leases[user] = Some(loan.lease);
                let owner = if owner { Whose::Owners } else { Whose::Nobodys };
                self.hand_over(user, &loan, owner);
                return self.book.sent(loan.lease);
            }
            Then::Begun { name, user, lease, owner, kept } if is_done => {
                self.world.names[name] = ByName::Pending { lease, user, owner, kept };
            }
            Then::Held { name, user, lease, owner, kept } if is_done => {
                if let Some(found) = self.book.named(&loan_name(name))
                    && found.lease == lease
                    && !found.is_pending
                {
                    match kept {
                        true => self.assert_own(found.block, user, owner),
                        false => self.assert_fresh(found.block, 0),
                    }
                    self.world.names[name] = ByName::Reported { block: found.block, user };
                    self.world.give_to(found.block, user, owner);
                }
            }
            Then::Taken { worker, order } => match order.block() {
                Some(block) if is_done => {
                    let job = order.job;
                    self.world.workers[worker] =
                        Worker::Busy { job, block, cleared: order.first.0 };
                    self.world.file_mut(block).workers[worker] = true;
                }
                _ => {
                    let effects = self.book.lose_job(order.job);
                    self.carry_out_all(&effects);
                }
            },
            Then::HandOver { loan: Loan { lease, .. }, .. }
            | Then::Begun { lease, .. }
            | Then::Held { lease, .. } => {
                let effects = self.book.end_lease(lease);
                self.carry_out_all(&effects);
            }
        }
        Vec::new()
    }

    fn carry_out_all(&mut self, effects: &[Effect]) {
        for effect in effects {
            self.world.carry_out(&self.book, effect, false);
        }
    }

    /// The file is free, and its memory is zero, at least this number of pages.
    fn assert_fresh(&self, block: BlockId, ready: u64) {
        let file = self.world.file(block);
        assert_eq!(file.most_held(), Held::Not, "{block} is lent while it is held");
        let zero = file.zero();
        assert!(zero >= ready && zero == file.memory(), "{block} is lent and not zero: {file:?}");
    }

    /// It holds the content of that owner of the user, and it is free.
    fn assert_own(&self, block: BlockId, user: usize, owner: Whose) {
        let file = self.world.file(block);
        let own = |page: &Page| match page {
            Page::Unbacked => true,
            // Whether only the agent knows that its user has had the memory of a name.
            Page::Zero => matches!(owner, Whose::Scoped(_)),
            page => *page == Page::Of { user, owner },
        };
        let is_owned = owner != Whose::Nobodys;
        assert!(is_owned && file.pages().iter().all(own), "another's content: {file:?}");
        let others = (0..USERS).filter(|other| *other != user);
        for other in others {
            assert_eq!(file.held[other], Held::Not, "{file:?}");
        }
        if let Whose::Scoped(_) = owner {
            assert_eq!(file.missing(), 0, "an unbacked part is kept for a name: {file:?}");
            assert_eq!(file.most_held(), Held::Not, "{block} is lent while it is held");
        }
    }

    fn hand_over(&mut self, user: usize, loan: &Loan, owner: Whose) {
        for part in &loan.parts {
            let file = self.world.file(part.block);
            assert_eq!(file.pages().len(), index(part.pages), "{part:?}");
            if loan.kept {
                self.assert_own(part.block, user, owner);
            } else {
                self.assert_fresh(part.block, part.ready.0);
            }
            self.world.give_to(part.block, user, owner);
        }
    }
}
