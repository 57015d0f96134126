// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans that wait for pages in transit. They look at nothing themselves: maintenance runs for all
//! of them at once, and a change wakes them.

use std::cell::Cell;
use std::rc::Rc;

/// The number of waiting loans.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    loans: Cell<usize>,
    begun: tokio::sync::Notify,
}

impl Waiting {
    /// Maintenance runs for one more loan until the value is dropped.
    pub(crate) fn begin(self: &Rc<Self>) -> Waits {
        self.loans.set(self.loans.get() + 1);
        self.begun.notify_one();
        Waits(Rc::clone(self))
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.loans.get() > 0
    }

    /// Waits until a loan begins to wait.
    pub(crate) async fn begun(&self) {
        self.begun.notified().await;
    }
}

/// One waiting loan.
#[derive(Debug)]
pub(crate) struct Waits(Rc<Waiting>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.loans.set(self.0.loans.get() - 1);
    }
}
