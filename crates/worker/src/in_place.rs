// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clearing a block where it lies, by one thread or several.
//!
//! # Safety
//!
//! The one unsafe call turns the mapping of a job into an [`Extent`]. The daemon hands out a block
//! for clearing only after it has proven that no other process has it, and to one worker at a time.
//! The job's mapping is this value's own until `finish`, which takes it after every thread has
//! ended.
#![expect(unsafe_code, reason = "clears memory that a job mapped")]

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use clear::parallel::{Share, clear_shares};
use clear::{Clearer, Extent, Fault, Outcome};

use crate::error::{Error, Result};
use crate::job::{Done, InPlace};

/// Between two moves of the bar.
const TICK_BYTES: usize = 16 << 20;

/// Clears up to `length` bytes of the job's extent. Asks `stopped` after every chunk, and tells
/// `tick` the bytes as they are done.
///
/// The result counts the pages from the start that are all clear. An unwritable page ends it, with
/// the fault.
pub(crate) fn clear(
    task: InPlace,
    length: u64,
    (clearer, threads): (Clearer, usize),
    stopped: &(dyn Fn() -> bool + Sync),
    tick: &(dyn Fn(u64) + Sync),
) -> Result<(Done, Option<Fault>)> {
    let (start, available) = task.extent();
    let length = usize::try_from(length).map_or(available, |length| length.min(available));
    let page = usize::try_from(task.job().page_size().bytes()).ok().and_then(NonZeroUsize::new);
    let (Some(start), Some(page)) = (NonNull::new(start).filter(|_| length > 0), page) else {
        return Ok((task.finish(0), None));
    };
    // SAFETY: `start` is valid for writes of `length` bytes: the job's mapping, which lives until
    // `finish` below; the daemon gave the block to this job alone, and it has the only mapping; a
    // mapping neither wraps nor exceeds isize::MAX; `Worker::run` installed the guard against bad
    // pages.
    let extent = unsafe { Extent::from_raw_parts(start, length) };
    let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
    let share = Share { extent, threads, cpus: Vec::new() };
    // The largest sum that was told: threads may overtake each other between adding and telling.
    let reported = AtomicUsize::new(0);
    let outcomes = clear_shares(&clearer, page, vec![share], |progress| {
        // An atomic change waits for all stores under way, so it is made less often than after each
        // chunk.
        let more = progress.cleared_bytes.saturating_sub(reported.load(Ordering::Relaxed));
        if more >= TICK_BYTES || progress.cleared_bytes == progress.total_bytes {
            let before = reported.fetch_max(progress.cleared_bytes, Ordering::Relaxed);
            tick(progress.cleared_bytes.saturating_sub(before) as u64);
        }
        if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let outcome = outcomes.map_err(|error| Error::Clearing(error.to_string()))?.pop();
    let (cleared, fault) = match outcome {
        Some(Outcome::Complete(zeroed)) => (zeroed.len(), None),
        Some(Outcome::Stopped { cleared_bytes, .. }) => (cleared_bytes, None),
        Some(Outcome::Poisoned { fault, cleared_bytes, .. }) => (cleared_bytes, Some(fault)),
        None => (0, None),
    };
    Ok((task.finish(cleared), fault))
}
