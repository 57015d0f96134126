// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watches: what of the levels is worth a report, and when.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use wire::{Level, Watch, WatchReply};

use crate::ops::Shared;
use crate::peers::users::Place;

/// The shortest time between two reports of one watch, unless the client asks for more.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// The parts of `now` that are worth a report after `before`.
fn changed(watch: &Watch, before: &[Level], now: Vec<Level>) -> Vec<Level> {
    let low = |level: &Level| watch.below.is_some_and(|below| level.ready_pages < below);
    let is_new = |level: &Level| {
        let old =
            before.iter().find(|old| (old.node, old.page_size) == (level.node, level.page_size));
        match (watch.below, old) {
            (Some(_), Some(old)) => low(level) && !low(old),
            (Some(_), None) => low(level),
            (None, Some(old)) => old != level,
            (None, None) => true,
        }
    };
    now.into_iter().filter(|level| watch.fits(level) && is_new(level)).collect()
}

/// One report, of everything as it is.
pub(super) fn once(shell: &Shared, watch: Watch) -> WatchReply {
    let all = Watch { below: None, ..watch };
    WatchReply { levels: changed(&all, &[], shell.borrow().book().levels()) }
}

/// The reports of one watch.
pub(super) struct Reports {
    shell: Shared,
    place: Rc<Place>,
    changes: tokio::sync::watch::Receiver<u64>,
    watch: Watch,
    before: Vec<Level>,
    next: Instant,
    interval: Duration,
}

impl Reports {
    pub(super) fn new(shell: &Shared, place: &Rc<Place>, watch: Watch) -> Self {
        let interval = watch
            .interval_ms
            .map_or(MIN_REPORT_INTERVAL, Duration::from_millis)
            .max(MIN_REPORT_INTERVAL);
        let (changes, next) = (shell.borrow().changes.subscribe(), Instant::now());
        let (shell, place) = (Rc::clone(shell), Rc::clone(place));
        Self { shell, place, changes, watch, before: Vec::new(), next, interval }
    }

    /// The next report; `None` at the daemon's end.
    pub(super) async fn next(&mut self) -> Option<WatchReply> {
        loop {
            // The rate limit comes before the look, so that the last state of a burst is seen.
            sleep_until(self.next).await;
            self.place.turn().await;
            self.changes.mark_unchanged();
            let now = self.shell.borrow().book().levels();
            let levels = changed(&self.watch, &self.before, now.clone());
            self.before = now;
            self.next = Instant::now() + self.interval;
            if !levels.is_empty() {
                return Some(WatchReply { levels });
            }
            self.changes.changed().await.ok()?;
        }
    }
}
