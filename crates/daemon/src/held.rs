// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans that are held by their memory.
//!
//! Such a loan lasts as long as somebody has a block of it open or mapped: the kernel's count of
//! descriptions is the lease, and the client holds no descriptor that it could lose or leak. The
//! lease's own descriptor says only that the client is done with setting up. There is no event
//! for the last mapping's end, so it is looked for: a lease proof per loan and look, 2 us.
//!
//! A restarted daemon does not know these loans for what they are: it finds blocks whose lease
//! nobody holds, and they linger until nobody reaches them. Nothing is lost but a word in
//! `status`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use units::LeaseId;

/// The loans, and since when their lease has no holder.
#[derive(Debug, Default)]
pub(crate) struct Held(BTreeMap<LeaseId, Option<Instant>>);

impl Held {
    pub(crate) fn insert(&mut self, lease: LeaseId) {
        self.0.insert(lease, None);
    }

    /// Notes that the lease's last descriptor is closed; `false` if the loan is an ordinary one.
    pub(crate) fn close(&mut self, lease: LeaseId) -> bool {
        let held = self.0.get_mut(&lease);
        held.map(|since| *since = Some(Instant::now())).is_some()
    }

    /// The loans whose lease was closed so long ago.
    pub(crate) fn due(&self, age: Duration) -> Vec<LeaseId> {
        let is_due = |since: &Option<Instant>| since.is_some_and(|at| at.elapsed() >= age);
        self.0.iter().filter(|(_, since)| is_due(since)).map(|(lease, _)| *lease).collect()
    }

    pub(crate) fn remove(&mut self, lease: LeaseId) {
        self.0.remove(&lease);
    }
}
