// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maintenance: the checks that run as long as the daemon.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::ops::watchers::kernel::Events;
use crate::ops::{Shared, boot_seconds};
use crate::service::control::Control;
use crate::tasks::workers::Workers;

/// Poll interval when idle: the kernel does not signal changes of its free counts.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The same where the kernel signals changes of its pool. CPU pressure, failed workers and lost
/// events remain to be polled.
const NOTIFIED_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The same while the kernel's pool changes its size: new pages are zeroed meanwhile.
const RESIZE_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// First check of a draining block after its return. The interval doubles up to
/// [`IDLE_POLL_INTERVAL`].
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long a pass waits for further changes where no block drains and no loan waits.
const BURST_PERIOD: Duration = Duration::from_millis(10);
/// Blocks, loans and files that one pass checks, each 10 us. A user with more of them waits for its
/// own, and delays no other user.
const MAX_CHECKS_PER_TURN: usize = 64;
/// Maintenance takes at most one part in this many of the daemon's time.
const MAX_TIME_SHARE: u32 = 5;

/// Changes after which the allocator holds memory that is worth releasing: 1.5 MiB after 4096 jobs.
const MIN_CHANGES_TO_TRIM: u64 = 1000;

/// Releases the allocator's memory after a burst of changes.
struct Trimming {
    trimmed: u64,
    seen: u64,
}

impl Trimming {
    fn tend(&mut self, changes: u64) {
        if changes == self.seen && changes - self.trimmed >= MIN_CHANGES_TO_TRIM {
            linux::heap::trim();
            self.trimmed = changes;
        }
        self.seen = changes;
    }
}

/// Checks draining blocks, kept content, other users of the kernel's pool, and workers.
pub(crate) async fn keep(shell: &Shared, workers: &mut Workers, control: &Control) {
    let mut changes = shell.borrow().changes.subscribe();
    let mut events = Events::default();
    let mut trimming = Trimming { trimmed: 0, seen: 0 };
    let idle = if shell.borrow().provider().is_notified() {
        NOTIFIED_POLL_INTERVAL
    } else {
        IDLE_POLL_INTERVAL
    };
    let waiting = shell.borrow().peers.waiting.clone();
    let mut look = MIN_POLL_INTERVAL;
    let mut is_calm = false;
    let mut next = Instant::now();
    // The earliest time of the next pass.
    let mut earliest = next;
    loop {
        // A burst of changes gets one pass.
        tokio::select! {
            () = sleep_until(next) => {}
            // For all waiting loans at once: each wakes when a change concerns it.
            () = waiting.begun() => sleep_until(earliest).await,
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                look = MIN_POLL_INTERVAL;
                let burst = if is_calm { BURST_PERIOD } else { MIN_POLL_INTERVAL };
                sleep_until(earliest.max(Instant::now() + burst)).await;
            }
        }
        let begin = Instant::now();
        let (draining, expiry, is_resizing) = {
            let mut shell = shell.borrow_mut();
            let draining = shell.settle_some(MAX_CHECKS_PER_TURN);
            let expiry = shell.expire();
            shell.observe();
            shell.relieve();
            let is_resizing = shell.resize_pools();
            shell.keep_learnt(false);
            (draining, expiry, is_resizing)
        };
        events.tend(shell);
        workers.tend();
        control.tick();
        trimming.tend(*changes.borrow_and_update());
        is_calm = draining == 0 && !waiting.has_waiters();
        let mut wait = idle;
        if draining > 0 {
            wait = look;
            look = (look * 2).min(IDLE_POLL_INTERVAL);
        }
        if is_resizing {
            wait = wait.min(RESIZE_POLL_INTERVAL);
        }
        if let Some(second) = expiry {
            wait = wait.min(
                Duration::from_secs(second.saturating_sub(boot_seconds())).max(MIN_POLL_INTERVAL),
            );
        }
        if waiting.has_waiters() {
            wait = MIN_POLL_INTERVAL;
        }
        earliest = Instant::now() + MIN_POLL_INTERVAL.max(begin.elapsed() * (MAX_TIME_SHARE - 1));
        next = earliest.max(Instant::now() + wait);
    }
}
