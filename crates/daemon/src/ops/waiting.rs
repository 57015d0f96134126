// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loans that wait for pages on their way to them. They look at nothing themselves: the house
//! is kept for all of them at once, and whoever waits is woken when something came of it.

use std::cell::Cell;
use std::rc::Rc;

/// How many wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    loans: Cell<usize>,
    begun: tokio::sync::Notify,
}

impl Waiting {
    /// Until the value is dropped, the house is kept for one more loan.
    pub(crate) fn begin(self: &Rc<Self>) -> Waits {
        self.loans.set(self.loans.get() + 1);
        self.begun.notify_one();
        Waits(Rc::clone(self))
    }

    pub(crate) fn is_anybody(&self) -> bool {
        self.loans.get() > 0
    }

    /// Waits until a loan begins to wait.
    pub(crate) async fn begun(&self) {
        self.begun.notified().await;
    }
}

/// One that waits.
#[derive(Debug)]
pub(crate) struct Waits(Rc<Waiting>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.loans.set(self.0.loans.get() - 1);
    }
}
