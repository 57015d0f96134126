// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waking the pollers.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use units::Domain;

use super::item::FileKind;
use super::notify::{LevelWatch, MIN_POLL_INTERVAL};
use super::session::Session;

/// How often to look when nothing has happened here: others take pages without a word.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl Session {
    /// Looks for changes while there are listeners, and wakes the concerned ones. Never returns.
    pub(super) async fn wake_pollers(self: Rc<Self>) {
        let mut changes = self.shell.borrow().changes.subscribe();
        let mut due = None;
        loop {
            let listened = self.is_listened_to();
            let next = due.unwrap_or_else(|| Instant::now() + POLL_INTERVAL);
            tokio::select! {
                () = sleep_until(next), if listened => {}
                changed = changes.changed(), if listened => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = self.listens.notified() => {}
            }
            changes.mark_unchanged();
            due = self.look();
            sleep_until(Instant::now() + MIN_POLL_INTERVAL).await;
        }
    }

    fn is_listened_to(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state.notifiers.values().any(|notifiers| notifiers.is_armed())
            || state.handles.devices().any(|device| device.watch.is_some())
    }

    /// Notifies whom it concerns, and says when to look again at the latest.
    fn look(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let mut due = Vec::new();
        let domains = self.shell.borrow().domains();
        for domain in domains {
            let watched =
                state.handles.devices().any(|d| d.watch.as_ref().is_some_and(|w| w.0 == domain));
            if !watched
                && !state.notifiers.get(&domain).is_some_and(|notifiers| notifiers.is_armed())
            {
                continue;
            }
            let with_free =
                |watch: &(Domain, LevelWatch)| watch.0 == domain && watch.1.min_free > 0;
            let with_free =
                state.handles.devices().any(|d| d.watch.as_ref().is_some_and(with_free));
            let Some(seen) = self.counts_for(domain, with_free) else { continue };
            let notifiers = state.notifiers(domain, seen);
            let (notified, changed) = (notifiers.notify(now), notifiers.take_changed());
            due.extend(notifiers.due());
            for file in state.handles.files().filter(|file| file.domain == domain) {
                let reported = match file.kind {
                    FileKind::Zeroable => notified.zeroable,
                    FileKind::Zeroed => notified.zeroed,
                    FileKind::Low => false,
                };
                if let Some(waiter) = file.waiter.take_if(|_| reported) {
                    self.device.wake(waiter);
                }
            }
            for device in state.handles.devices() {
                let Some((watched, watch)) = &mut device.watch else { continue };
                if *watched != domain {
                    continue;
                }
                if watch.notify(changed, seen, now)
                    && let Some(waiter) = device.waiter.take()
                {
                    self.device.wake(waiter);
                }
                due.extend(watch.due());
            }
        }
        due.into_iter().min()
    }
}
