// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans that their memory holds.
//!
//! A loan held by memory lasts while any process has a block of it open or mapped. The kernel's
//! count of descriptions is the lease, and the client has no descriptor to lose or leak. The
//! lease's own descriptor says only that the client has set up its memory. From then on the daemon
//! watches the blocks ([`crate::storage::unmap_events`]). Each time that a description of a block
//! ends, it checks whether there are others: a lease proof, 2 us. It also checks by the clock, for
//! lost events.
//!
//! A restarted daemon does not recognize these loans: it finds blocks without a lease holder, which
//! drain until no process reaches them. Only a word in `status` is lost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use units::LeaseId;

/// The loans, with the time at which their lease lost its holder.
#[derive(Debug, Default)]
pub(crate) struct MemoryHeld {
    leases: BTreeMap<LeaseId, Option<Instant>>,
    /// The last that [`MemoryHeld::due`] named.
    last: Option<LeaseId>,
}

impl MemoryHeld {
    pub(crate) fn insert(&mut self, lease: LeaseId) {
        self.leases.insert(lease, None);
    }

    /// Notes that the lease's last descriptor is closed; `false` for a loan by descriptor.
    pub(crate) fn close(&mut self, lease: LeaseId) -> bool {
        let held = self.leases.get_mut(&lease);
        held.map(|since| *since = Some(Instant::now())).is_some()
    }

    /// Whether only its memory holds a loan.
    pub(crate) fn is_closed(&self, lease: LeaseId) -> bool {
        self.leases.get(&lease).is_some_and(Option::is_some)
    }

    /// Closed leases of loans that their memory may still hold.
    pub(crate) fn closed(&self) -> Vec<LeaseId> {
        let closed = self.leases.iter().filter(|(_, since)| since.is_some());
        closed.map(|(lease, _)| *lease).collect()
    }

    /// Loans with a lease that has been closed for `age`: `most` at most, others each time.
    pub(crate) fn due(&mut self, age: Duration, most: usize) -> Vec<LeaseId> {
        let is_due = |since: &Option<Instant>| since.is_some_and(|at| at.elapsed() >= age);
        let due = self.leases.iter().filter(|(_, since)| is_due(since));
        let due: Vec<_> = due.map(|(lease, _)| *lease).collect();
        let due = rotate(&due, self.last, most);
        self.last = due.last().copied();
        due
    }

    pub(crate) fn remove(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
    }
}

/// At most `most` elements of a sorted list, starting after `last` and wrapping around.
pub(crate) fn rotate<T: Copy + Ord>(all: &[T], last: Option<T>, most: usize) -> Vec<T> {
    let begin = last.map_or(0, |last| all.partition_point(|id| *id <= last));
    all[begin..].iter().chain(&all[..begin]).copied().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loan_is_due_after_its_lease_was_closed_for_its_delay() {
        let mut held = MemoryHeld::default();
        (1..=3).for_each(|id| held.insert(LeaseId(id)));
        assert!(!held.close(LeaseId(4)), "it is an ordinary one");
        assert!(held.close(LeaseId(1)) && held.close(LeaseId(3)));
        let closed = [1, 2, 3, 4].map(|id| held.is_closed(LeaseId(id)));
        assert_eq!(closed, [true, false, true, false]);
        assert_eq!(held.closed(), [LeaseId(1), LeaseId(3)]);
        let turns = [held.due(Duration::ZERO, 1), held.due(Duration::ZERO, 1)];
        assert_eq!(turns, [[LeaseId(1)], [LeaseId(3)]], "each in its turn");
        assert!(held.due(Duration::from_secs(3600), 9).is_empty(), "none is so old");
        held.remove(LeaseId(1));
        assert_eq!(held.due(Duration::ZERO, 9), [LeaseId(3)]);
        assert!(!held.close(LeaseId(1)), "it is over");
    }

    // Promise P96.
    #[test]
    fn a_bounded_look_comes_round_to_everything() {
        let all = [1, 3, 5, 7];
        assert_eq!(rotate(&all, None, 3), [1, 3, 5]);
        assert_eq!(rotate(&all, Some(5), 3), [7, 1, 3]);
        assert_eq!(rotate(&all, Some(4), 9), [5, 7, 1, 3], "what was named last is gone");
        assert!(rotate::<u8>(&[], Some(4), 9).is_empty());
    }
}
