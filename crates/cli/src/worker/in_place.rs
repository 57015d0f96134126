// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clearing a block where it lies, by one thread or several.
//!
//! # Safety
//!
//! The one unsafe call turns the mapping of a job into an [`Extent`]. The daemon hands out a block
//! for clearing only after it has proven that nobody else has it, and to one worker at a time; the
//! job's mapping is this value's own until `finish`, which takes it after every thread has ended.
#![expect(unsafe_code, reason = "clears memory that a job mapped")]

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use clear::{Clearer, Extent, Fault, Outcome};
use client::{Done, InPlace};

/// Clears up to `length` bytes of the job's extent, page by page, the threads taking pages in turn.
/// Asks `stopped` after every chunk (256 KiB), and tells `tick` the bytes as they are done.
///
/// The result counts the pages from the start that are all clear. A page that can not be written
/// ends it, with the fault.
pub(crate) fn clear(
    task: InPlace,
    length: u64,
    page_bytes: u64,
    threads: usize,
    stopped: &(dyn Fn() -> bool + Sync),
    tick: &(dyn Fn(u64) + Sync),
) -> (Done, Option<Fault>) {
    let (start, available) = task.extent();
    let length = usize::try_from(length).map_or(available, |length| length.min(available));
    let page = usize::try_from(page_bytes).unwrap_or(usize::MAX);
    let Some(start) = NonNull::new(start).filter(|_| length > 0) else {
        return (task.finish(0), None);
    };
    // SAFETY: `start` is valid for writes of `length` bytes, the job's mapping, which lives until
    // `finish` below; the daemon gave the block to this job alone and nobody else maps it; a mapping
    // neither wraps nor exceeds isize::MAX; `worker::run` installed the guard against bad pages.
    let extent = unsafe { Extent::from_raw_parts(start, length) };
    let pages = split(extent, page);
    let (cleared, fault) = all(pages, threads, stopped, tick);
    (task.finish(cleared.saturating_mul(page).min(length)), fault)
}

fn split(mut rest: Extent<'_>, page: usize) -> VecDeque<Extent<'_>> {
    let mut pages = VecDeque::new();
    while !rest.is_empty() {
        let (first, tail) = rest.split_at(page);
        pages.push_back(first);
        rest = tail;
    }
    pages
}

/// Clears the pages; returns how many from the first on are clear, without a gap.
fn all(
    pages: VecDeque<Extent<'_>>,
    threads: usize,
    stopped: &(dyn Fn() -> bool + Sync),
    tick: &(dyn Fn(u64) + Sync),
) -> (usize, Option<Fault>) {
    let clear: Vec<AtomicBool> = pages.iter().map(|_| AtomicBool::new(false)).collect();
    let queue = Mutex::new(pages.into_iter().enumerate());
    let bad: Mutex<Option<Fault>> = Mutex::new(None);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let ended = AtomicBool::new(false);
    let work = || {
        let clearer = Clearer::default();
        while let Some((index, page)) = next() {
            let mut before = 0;
            let outcome = clearer.clear(page, |progress| {
                tick((progress.cleared_bytes - before) as u64);
                before = progress.cleared_bytes;
                let stop = ended.load(Ordering::Relaxed) || stopped();
                if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            match outcome {
                Outcome::Complete(_zeroed) => clear[index].store(true, Ordering::Release),
                Outcome::Stopped { .. } => return,
                Outcome::Poisoned { fault, .. } => {
                    *bad.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
                    ended.store(true, Ordering::Relaxed);
                    return;
                }
            }
            if ended.load(Ordering::Relaxed) || stopped() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(clear.len()) {
            scope.spawn(work);
        }
        work();
    });
    let whole = clear.iter().take_while(|page| page.load(Ordering::Acquire)).count();
    (whole, bad.into_inner().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    const PAGE: usize = 1 << 20;

    fn run(bytes: &mut [u8], threads: usize, stop_at: u64) -> (usize, u64) {
        let done = AtomicU64::new(0);
        let pages = split(Extent::from(bytes), PAGE);
        let stopped = || done.load(Ordering::Relaxed) >= stop_at;
        let tick = |bytes| {
            done.fetch_add(bytes, Ordering::Relaxed);
        };
        let (pages, fault) = all(pages, threads, &stopped, &tick);
        assert_eq!(fault, None);
        (pages, done.into_inner())
    }

    #[test]
    fn any_number_of_threads_clears_every_page() {
        for threads in [1, 2, 3, 16] {
            let mut bytes = vec![0xa5; 5 * PAGE];
            assert_eq!(run(&mut bytes, threads, u64::MAX), (5, 5 * PAGE as u64), "{threads}");
            assert!(clear::is_zero(&bytes), "{threads}");
        }
    }

    #[test]
    fn a_stopped_clear_counts_only_whole_pages_without_a_gap() {
        for threads in [1, 2, 3] {
            let mut bytes = vec![0xa5; 8 * PAGE];
            let (pages, _) = run(&mut bytes, threads, 3 * PAGE as u64);
            assert!(pages < 8, "{threads} threads cleared {pages} pages");
            assert!(clear::is_zero(&bytes[..pages * PAGE]), "{threads}");
        }
    }
}
