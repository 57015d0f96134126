// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maintenance: the checks that run as long as the daemon.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::ops::watchers::kernel::Events;
use crate::ops::{Shared, boot_seconds};
use crate::service::control::Control;
use crate::tasks::workers::Workers;

/// Poll interval when idle: the kernel does not signal changes of its free counts.
const IDLE_TICK: Duration = Duration::from_millis(250);
/// The same where the kernel signals changes of its pool. CPU pressure, failed workers and lost
/// events remain to be polled.
const TOLD_TICK: Duration = Duration::from_secs(1);
/// The same while the kernel's pool changes its size: new pages are zeroed meanwhile.
const RESIZING_TICK: Duration = Duration::from_millis(20);
/// First check of a draining block after its return. The interval doubles up to [`IDLE_TICK`].
const FIRST_LOOK: Duration = Duration::from_millis(2);
/// Blocks, loans and files that one pass checks, each 10 us. A user with more of them waits for its
/// own, and delays no other user.
const LOOKS: usize = 64;
/// Maintenance takes at most one part in this many of the daemon's time.
const SHARE: u32 = 5;

/// Changes after which the allocator holds memory that is worth releasing: 1.5 MiB after 4096 jobs.
const WORTH_TRIMMING: u64 = 1000;

/// Releases the allocator's memory after a burst of changes.
struct Trimming {
    trimmed: u64,
    seen: u64,
}

impl Trimming {
    fn tend(&mut self, changes: u64) {
        if changes == self.seen && changes - self.trimmed >= WORTH_TRIMMING {
            linux::heap::give_back();
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
    let idle = if shell.borrow().provider().is_told() { TOLD_TICK } else { IDLE_TICK };
    let waiting = shell.borrow().peers.waiting.clone();
    let mut look = FIRST_LOOK;
    let mut next = Instant::now();
    // The earliest time of the next pass.
    let mut earliest = next;
    loop {
        // A change deserves a pass at once. A burst of changes gets one pass each 2 ms.
        tokio::select! {
            () = sleep_until(next) => {}
            // For all waiting loans at once: each wakes when a change concerns it.
            () = waiting.begun() => sleep_until(earliest).await,
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                look = FIRST_LOOK;
                sleep_until(earliest.max(Instant::now() + FIRST_LOOK)).await;
            }
        }
        let begin = Instant::now();
        let (lingering, expiry, is_resizing) = {
            let mut shell = shell.borrow_mut();
            let lingering = shell.settle_some(LOOKS);
            let expiry = shell.expire();
            shell.observe();
            shell.relieve();
            let is_resizing = shell.tend_sizes();
            shell.keep_learnt(false);
            (lingering, expiry, is_resizing)
        };
        events.tend(shell);
        workers.tend(shell);
        control.tick();
        trimming.tend(*changes.borrow_and_update());
        let mut wait = idle;
        if lingering > 0 {
            wait = look;
            look = (look * 2).min(IDLE_TICK);
        }
        if is_resizing {
            wait = wait.min(RESIZING_TICK);
        }
        if let Some(second) = expiry {
            wait = wait
                .min(Duration::from_secs(second.saturating_sub(boot_seconds())).max(FIRST_LOOK));
        }
        if waiting.is_anybody() {
            wait = FIRST_LOOK;
        }
        earliest = Instant::now() + FIRST_LOOK.max(begin.elapsed() * (SHARE - 1));
        next = earliest.max(Instant::now() + wait);
    }
}
