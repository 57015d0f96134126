// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a service tells its connection's socket of the answer at hand, past zlink: the text of a
//! long one, and the loan that is in it, as zlink says to nobody whether an answer was sent.

use std::cell::Cell;
use std::rc::Rc;

use units::LeaseId;
use wire::Lent;

use super::long::Long;
use crate::shell::Shared;

/// The answer to the call at hand.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) long: Long,
    shell: Shared,
    /// Granted, and not sent yet.
    loan: Rc<Cell<Option<LeaseId>>>,
}

impl Answer {
    pub(super) fn new(shell: Shared) -> Self {
        Self { long: Long::default(), shell, loan: Rc::default() }
    }

    /// It has the descriptors of this loan. Returns what zlink is to write.
    pub(super) fn hands_over(&self, lent: Lent) -> Lent {
        self.loan.set(Some(LeaseId(lent.lease)));
        self.long.shorten(lent)
    }

    /// It is sent now. Returns what to call, with whether it was, before anything else is done.
    /// That may be cancelled at any moment: then its borrower may have the loan, and nothing of it
    /// is kept.
    pub(super) fn sends(&self) -> impl FnOnce(bool) + use<> {
        let (shell, loan) = (Rc::clone(&self.shell), self.loan.take());
        move |was_sent| {
            let Some(lease) = loan else { return };
            let mut shell = shell.borrow_mut();
            if was_sent { shell.sent(lease) } else { shell.end_lease(lease) }
        }
    }

    /// Another call begins: one that wants no answer has left its own here.
    pub(super) fn forget(&self) {
        self.long.forget();
        self.loan.set(None);
    }
}
