// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whom to wake when: the kernel series' rules (mm/hugetlb_zero_notify.c) for its files and
//! watches.
//!
//! A reader *arms* its file before it takes the value. A later change finds it armed and makes the
//! file *pending*; it *notifies*, at once or when its interval is over, and is disarmed: all its
//! pollers are woken and must read again. Hence bursts notify a few times, and their last state
//! always. A watch is a level: every poll returns the state; notifying only wakes sleepers.
//!
//! Unlike the kernel's, changes are looked for, not reported: up and down again between two looks
//! ([`MIN_POLL_INTERVAL`]) is no change.

use std::time::Duration;

use linux::hugepagectl::WATCH_INTERVAL_DEFAULT_MS;
use tokio::time::Instant;
use units::{Counts, Pages};

/// The shortest time between two looks.
pub(super) const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The shortest time between two notifications of a file.
const NOTIFICATION_INTERVAL: Duration = Duration::from_millis(WATCH_INTERVAL_DEFAULT_MS as u64);

/// One file of a domain that can be polled.
#[derive(Debug)]
pub(super) struct Notifier {
    /// How often it notified, from 1. A reader with an older last read must read again.
    notified: u64,
    armed: bool,
    pending: bool,
    not_before: Instant,
}

impl Notifier {
    fn new(now: Instant) -> Self {
        Self { notified: 1, armed: false, pending: false, not_before: now }
    }

    /// A read is about to happen. Returns the value to compare with [`notified`](Self::notified)
    /// later.
    pub(super) fn arm(&mut self) -> u64 {
        self.armed = true;
        self.notified
    }

    pub(super) fn notified(&self) -> u64 {
        self.notified
    }

    fn change(&mut self) {
        self.pending |= self.armed;
    }

    /// Whether it notifies now.
    fn notify(&mut self, now: Instant) -> bool {
        let now_due = self.pending && now >= self.not_before;
        if now_due {
            *self = Self { notified: self.notified + 1, ..Self::new(now + NOTIFICATION_INTERVAL) };
        }
        now_due
    }

    /// When it has to be looked at again at the latest.
    fn due(&self) -> Option<Instant> {
        self.pending.then_some(self.not_before)
    }
}

/// The files of a domain.
#[derive(Debug)]
pub(super) struct Notifiers {
    pub(super) zeroable: Notifier,
    pub(super) zeroed: Notifier,
    counts: Counts,
    /// Pollers of the zeroed count are woken when it falls below; 0: when it changes.
    low: u64,
    below: bool,
    changed: bool,
}

/// Which files notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Notified {
    pub(super) zeroable: bool,
    pub(super) zeroed: bool,
}

impl Notifiers {
    pub(super) fn new(counts: Counts, now: Instant) -> Self {
        let (zeroable, zeroed) = (Notifier::new(now), Notifier::new(now));
        Self { zeroable, zeroed, counts, low: 0, below: false, changed: false }
    }

    pub(super) fn low(&self) -> u64 {
        self.low
    }

    pub(super) fn set_low(&mut self, low: u64) {
        self.low = low;
        self.weigh(true);
    }

    /// Takes in what the counts are now.
    pub(super) fn record(&mut self, counts: Counts) {
        let before = std::mem::replace(&mut self.counts, counts);
        let watched = |counts: Counts| (counts.ready, counts.zeroable, counts.free);
        self.changed |= watched(before) != watched(counts);
        if before.zeroable != counts.zeroable {
            self.zeroable.change();
        }
        if before.ready != counts.ready {
            self.weigh(true);
        }
    }

    /// Whether the number of zeroed pages concerns its pollers.
    fn weigh(&mut self, changed: bool) {
        let below = self.counts.ready.0 < self.low;
        if changed && (self.low == 0 || (below && !self.below)) {
            self.zeroed.change();
        }
        self.below = below;
    }

    /// Notifies pending changes that are due.
    pub(super) fn notify(&mut self, now: Instant) -> Notified {
        Notified { zeroable: self.zeroable.notify(now), zeroed: self.zeroed.notify(now) }
    }

    /// Whether anything changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        [self.zeroable.due(), self.zeroed.due()].into_iter().flatten().min()
    }

    /// Whether a reader has read and waits for a notification.
    pub(super) fn is_armed(&self) -> bool {
        self.zeroable.armed || self.zeroed.armed
    }
}

/// An open `hugepagectl` that waits for pages to run low.
#[derive(Debug)]
pub(super) struct LevelWatch {
    /// Below how many zeroed pages.
    pub(super) min_zeroed: u64,
    /// And only while something can be zeroed.
    pub(super) only_zeroable: bool,
    /// Or below how many free pages.
    pub(super) min_free: u64,
    pub(super) interval: Duration,
    pub(super) pending: bool,
    pub(super) not_before: Instant,
}

impl LevelWatch {
    /// Whether the open file is readable.
    pub(super) fn is_ready(&self, counts: Counts) -> bool {
        let low = counts.ready.0 < self.min_zeroed
            && (!self.only_zeroable || counts.zeroable > Pages::ZERO);
        low || counts.free.0 < self.min_free
    }

    /// Whether to wake who sleeps on it, given that something has `changed` or not.
    pub(super) fn notify(&mut self, changed: bool, counts: Counts, now: Instant) -> bool {
        self.pending |= changed;
        self.pending &= self.is_ready(counts);
        let now_due = self.pending && now >= self.not_before;
        if now_due {
            self.pending = false;
            self.not_before = now + self.interval;
        }
        now_due
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.pending.then_some(self.not_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(zeroed: u64, zeroable: u64) -> Counts {
        Counts { ready: Pages(zeroed), zeroable: Pages(zeroable), ..Counts::default() }
    }

    const BOTH: Notified = Notified { zeroable: true, zeroed: true };
    const NONE: Notified = Notified { zeroable: false, zeroed: false };

    // Promise P44 (tree): Pollers are woken as in sysfs: re-armed by reading, at most every 100
    // ms, the last state always; a thousand at once.
    #[test]
    fn a_burst_rings_once_at_its_begin_and_once_for_its_end() {
        let start = Instant::now();
        let mut notifiers = Notifiers::new(counts(0, 16), start);
        let mut notified = Vec::new();
        for step in 0..30 {
            let now = start + MIN_POLL_INTERVAL * step;
            notifiers.zeroable.arm();
            notifiers.zeroed.arm();
            // 16 changes, one each 10 ms.
            let done = u64::from(step.min(16));
            notifiers.record(counts(done, 16 - done));
            let what = notifiers.notify(now);
            assert_eq!(what.zeroable, what.zeroed);
            if what == BOTH {
                notified.push(step);
            }
        }
        assert_eq!(notified, [1, 11, 21], "at once, 100 ms later, and for the last state");
        assert_eq!(notifiers.due(), None);
    }

    #[test]
    fn unread_value_does_not_notify() {
        let now = Instant::now();
        let mut notifiers = Notifiers::new(counts(0, 4), now);
        notifiers.record(counts(1, 3));
        assert_eq!((notifiers.notify(now), notifiers.due()), (NONE, None));
    }

    // Promise P44.
    #[test]
    fn with_a_low_mark_only_a_fall_below_it_rings() {
        let mut now = Instant::now();
        let mut notifiers = Notifiers::new(counts(5, 0), now);
        notifiers.set_low(3);
        let mut reported = |zeroed| {
            now += NOTIFICATION_INTERVAL;
            notifiers.zeroed.arm();
            notifiers.record(counts(zeroed, 0));
            notifiers.notify(now).zeroed
        };
        assert_eq!([4, 3, 2, 1, 4, 2].map(&mut reported), [false, false, true, false, false, true]);
        notifiers.zeroed.arm();
        notifiers.set_low(0);
        assert!(
            notifiers.notify(now + NOTIFICATION_INTERVAL).zeroed,
            "0 is every change, itself among them"
        );
        notifiers.zeroed.arm();
        notifiers.set_low(100);
        assert!(notifiers.notify(now + NOTIFICATION_INTERVAL * 2).zeroed, "it is below at once");
    }

    #[test]
    fn a_watch_rings_in_its_interval_while_it_is_ready() {
        let start = Instant::now();
        let mut watch = LevelWatch {
            min_zeroed: 2,
            only_zeroable: true,
            min_free: 0,
            interval: Duration::from_millis(50),
            pending: false,
            not_before: start,
        };
        assert!(!watch.notify(true, counts(2, 9), start), "not below");
        assert!(!watch.notify(true, counts(1, 0), start), "nothing to be done about it");
        assert!(watch.notify(true, counts(1, 1), start));
        assert!(!watch.notify(true, counts(0, 1), start + Duration::from_millis(20)));
        let due = watch.due().expect("it is told later");
        assert_eq!(due, start + Duration::from_millis(50));
        assert!(watch.notify(false, counts(0, 1), due));
        assert_eq!(watch.due(), None);
    }

    #[test]
    fn watch_on_free_pages_reads_no_zeroed_count() {
        let now = Instant::now();
        let watch = LevelWatch {
            min_zeroed: 0,
            only_zeroable: true,
            min_free: 3,
            interval: Duration::ZERO,
            pending: false,
            not_before: now,
        };
        let ready = |free| watch.is_ready(Counts { free: Pages(free), ..counts(9, 0) });
        assert_eq!([2, 3].map(ready), [true, false]);
    }
}
