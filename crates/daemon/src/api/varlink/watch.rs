// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watches: what of the levels is worth a report, and when.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::time::{Instant, sleep_until};
use wire::{Error, Level, Watch, WatchReply};
use zlink::Reply;

use crate::ops::Shared;
use crate::peers::users::Place;

/// The shortest time between two reports of one watch, unless the client asks for more.
const INTERVAL: Duration = Duration::from_millis(50);

/// The reports of one watch.
pub(super) type Reports = Pin<Box<dyn Stream<Item = Result<Reply<WatchReply>, Error>>>>;

/// Of `now`, what is worth a report after `before`.
fn changed(watch: &Watch, before: &[Level], now: Vec<Level>) -> Vec<Level> {
    let low = |level: &Level| watch.below.is_some_and(|below| level.ready_pages < below.0);
    let is_new = |level: &Level| {
        let old =
            before.iter().find(|old| (old.node, old.page_bytes) == (level.node, level.page_bytes));
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
pub(super) fn once(shell: &Shared, watch: Watch) -> Reports {
    let all = Watch { below: None, ..watch };
    let levels = changed(&all, &[], shell.borrow().levels());
    let report = Reply::new(Some(WatchReply { levels })).set_continues(Some(false));
    Box::pin(futures_util::stream::once(std::future::ready(Ok(report))))
}

/// A report whenever there is one, until the client is gone.
pub(super) fn reports(shell: &Shared, place: &Rc<Place>, watch: Watch) -> Reports {
    let interval = watch.interval_ms.map_or(INTERVAL, Duration::from_millis).max(INTERVAL);
    let (changes, next) = (shell.borrow().changes(), Instant::now());
    let (shell, place) = (Rc::clone(shell), Rc::clone(place));
    let state = Watching { shell, place, changes, watch, before: Vec::new(), next, interval };
    Box::pin(unfold(state, async |mut state| {
        let levels = state.levels().await?;
        let report = Reply::new(Some(WatchReply { levels })).set_continues(Some(true));
        Some((Ok(report), state))
    }))
}

/// A watch between two reports.
struct Watching {
    shell: Shared,
    place: Rc<Place>,
    changes: tokio::sync::watch::Receiver<u64>,
    watch: Watch,
    before: Vec<Level>,
    next: Instant,
    interval: Duration,
}

impl Watching {
    /// The next levels that are worth a report; `None` at the daemon's end.
    async fn levels(&mut self) -> Option<Vec<Level>> {
        loop {
            // The rate limit comes before the look, so that the last state of a burst is seen.
            sleep_until(self.next).await;
            self.place.turn().await;
            self.changes.mark_unchanged();
            let now = self.shell.borrow().levels();
            let levels = changed(&self.watch, &self.before, now.clone());
            self.before = now;
            self.next = Instant::now() + self.interval;
            if !levels.is_empty() {
                return Some(levels);
            }
            self.changes.changed().await.ok()?;
        }
    }
}
