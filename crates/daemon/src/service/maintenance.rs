// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeping house: what is looked after for as long as the daemon lives.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::ops::watchers::kernel::Events;
use crate::ops::{Shared, boot_seconds};
use crate::service::control::Control;
use crate::tasks::workers::Workers;

/// How often the house is kept when nothing happens: the kernel's free counts have no event.
const IDLE_TICK: Duration = Duration::from_millis(250);
/// The same where the kernel tells of its pool: CPU pressure, and workers that achieved nothing,
/// are looked at again then, and whatever an event did not reach us for.
const TOLD_TICK: Duration = Duration::from_secs(1);
/// The same while the size of the kernel's pool changes: what was added is zeroed meanwhile.
const RESIZING_TICK: Duration = Duration::from_millis(20);
/// The first look at a lingering block after its return; doubles up to [`IDLE_TICK`].
const FIRST_LOOK: Duration = Duration::from_millis(2);
/// Blocks, loans and files that are looked at in one go, each 10 us. Whoever leaves more of them
/// waits for them, and nobody else.
const LOOKS: usize = 64;
/// Keeping house takes at most one part of so many of the daemon's time.
const SHARE: u32 = 5;

/// After so many changes the allocator has kept memory of them that is worth giving back: 1.5 MiB
/// after 4096 jobs.
const WORTH_TRIMMING: u64 = 1000;

/// Gives memory back once a lot has happened and no more does.
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

/// Looks after lingering blocks, kept content, other users of the kernel's pool, and workers.
pub(crate) async fn keep(shell: &Shared, workers: &mut Workers, control: &Control) {
    let mut changes = shell.borrow().changes();
    let mut events = Events::default();
    let mut trimming = Trimming { trimmed: 0, seen: 0 };
    let idle = if shell.borrow().is_told() { TOLD_TICK } else { IDLE_TICK };
    let waiting = shell.borrow().waiting();
    let mut look = FIRST_LOOK;
    let mut next = Instant::now();
    // Not before this is there another look, whatever happens.
    let mut earliest = next;
    loop {
        // A change is worth a look at once, but a burst of them no more than one each 2 ms.
        tokio::select! {
            () = sleep_until(next) => {}
            // For all that wait at once: each of them is woken when something comes of it.
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
