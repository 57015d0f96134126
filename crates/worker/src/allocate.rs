// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Having the kernel make and zero a block's pages, by one thread or several.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use units::Pages;

use crate::error::{Error, Result};
use crate::job::{Allocate, Done, MappedJob};

/// What a thread takes at a time, at least a page: 30 us or more of work, against 1 us for taking.
const BATCH_BYTES: u64 = 2 << 20;

/// Allocates the pages from `first` up to `end`, numbered from the block's start. Asks `stopped`
/// after every batch and tells `tick` the bytes as they are done.
///
/// # Errors
/// The kernel's, as when the node has run out of free pages; the job's finished pages are lost
/// then.
pub(crate) fn allocate(
    task: Allocate,
    (first, end): (u64, u64),
    page_bytes: u64,
    threads: usize,
    stopped: &(dyn Fn() -> bool + Sync),
    tick: &(dyn Fn(u64) + Sync),
) -> Result<Done> {
    let task = if threads > 1 && end - first > 1 {
        match task.share() {
            Ok(shared) => return share(shared, (first, end), page_bytes, threads, stopped, tick),
            // Too few free pages for the whole block: one thread takes what there is.
            Err(task) => task,
        }
    } else {
        task
    };
    let mut last = first;
    let done = task.run(&mut |pages| {
        tick((pages.0 - last) * page_bytes);
        last = pages.0;
        let enough = pages.0 >= end || stopped();
        if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(done)
}

fn share(
    task: MappedJob,
    (first, end): (u64, u64),
    page_bytes: u64,
    threads: usize,
    stopped: &(dyn Fn() -> bool + Sync),
    tick: &(dyn Fn(u64) + Sync),
) -> Result<Done> {
    let batch = (BATCH_BYTES / page_bytes).max(1);
    let batches = (end - first).div_ceil(batch);
    let pages = |index: u64| (first + index * batch)..(first + (index + 1) * batch).min(end);
    let done: Vec<AtomicBool> = (0..batches).map(|_| AtomicBool::new(false)).collect();
    let next = AtomicU64::new(0);
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let work = || {
        while !stopped() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(mark) = usize::try_from(index).ok().and_then(|index| done.get(index)) else {
                return;
            };
            let pages = pages(index);
            let bytes = (pages.end - pages.start) * page_bytes;
            if let Err(error) = task.fill(pages) {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                // The range is exhausted.
                next.store(batches, Ordering::Relaxed);
                return;
            }
            mark.store(true, Ordering::Relaxed);
            tick(bytes);
        }
    };
    thread::scope(|scope| {
        let others = usize::try_from(batches).unwrap_or(usize::MAX).min(threads) - 1;
        for _ in 0..others {
            scope.spawn(work);
        }
        work();
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    // The threads have ended, which publishes their marks.
    let whole = done.iter().take_while(|mark| mark.load(Ordering::Relaxed)).count() as u64;
    let filled = if whole == 0 { first } else { pages(whole - 1).end };
    task.finish(Pages(filled))
}
