// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several threads on several extents, each page by one thread.
//!
//! The caller says which memory belongs to which CPUs, one [`Share`] per NUMA node: the place of
//! memory is the caller's to know. Within a share the threads take the next pages from a common
//! queue, so that a delayed thread delays the others by at most the pages that it has in hand.

use std::io;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{Clearer, Extent, Fault, Outcome, Progress, Zeroed};

/// What a thread takes from the queue at least and, of pages up to that size, at most. The queue's
/// lock and the fence at a batch's end wait three times until all stores that bypass the cache are
/// in memory: 2 of 24 us for 2 MiB on a Zen 5, 0.6 % for 32 MiB.
const MIN_BATCH_BYTES: usize = 2 << 20;
const MAX_BATCH_BYTES: usize = 32 << 20;
/// How many batches there should be for each thread.
const FAIR_BATCHES: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");

/// Memory, and who clears it.
#[derive(Debug)]
pub struct Share<'a> {
    /// The memory.
    pub extent: Extent<'a>,
    /// How many threads clear it. At most one per page is started.
    pub threads: NonZeroUsize,
    /// The CPUs that they may run on; empty: wherever the caller may.
    pub cpus: Vec<usize>,
}

/// The threads could not be set up. What had been cleared by then is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TeamError {
    /// A thread is kept from its CPUs.
    #[error(
        "cannot run on CPUs {cpus:?}: give CPUs that are online and allowed by this process's cpuset"
    )]
    Affinity {
        /// The requested list.
        cpus: Vec<usize>,
        /// Why not.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a clearing thread: give fewer threads or raise the process's task limit")]
    Spawn(#[source] io::Error),
}

/// Clears all shares at the same time and says how each ended, in the order given.
///
/// Pages lie at multiples of `page_bytes`; one page is cleared by one thread. `progress` is called
/// after every chunk, by any of the threads, with the sum over all shares. Of the pages that other
/// threads have in hand the sum has only whole batches, 32 MiB or a page. Where it breaks, every
/// thread ends after its chunk. A share with an unwritable page ends alone. The `cleared_bytes` of
/// an incomplete share are the zero bytes from its first byte up to the first gap. The rest may be
/// cleared in part.
///
/// Blocks until all threads have ended; one share with one thread and no CPUs is cleared by the
/// calling thread.
///
/// # Errors
///
/// [`TeamError`] where a thread cannot be started or cannot run on its CPUs.
pub fn clear_shares<'a>(
    clearer: &Clearer,
    page_bytes: NonZeroUsize,
    mut shares: Vec<Share<'a>>,
    progress: impl Fn(Progress) -> ControlFlow<()> + Sync,
) -> Result<Vec<Outcome<'a>>, TeamError> {
    let total_bytes = shares.iter().map(|share| share.extent.len()).sum();
    let run = Run {
        clearer,
        progress,
        total_bytes,
        cleared_bytes: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };

    let done = if let [Share { extent, threads: NonZeroUsize::MIN, cpus }] = &mut shares[..]
        && cpus.is_empty()
    {
        let queue = Queue::new(extent.reborrow(), page_bytes, NonZeroUsize::MIN);
        run.work(&queue);
        vec![queue.into_result()]
    } else {
        let mut queues = Vec::new();
        for Share { extent, threads, cpus } in &mut shares {
            let queue = Queue::new(extent.reborrow(), page_bytes, *threads);
            queues.push((queue, *threads, &cpus[..]));
        }
        thread::scope(|scope| {
            let mut team = Vec::new();
            for (queue, threads, cpus) in &queues {
                for _ in 0..threads.get().min(queue.batches) {
                    let member = thread::Builder::new().name("prezero-clear".into()).spawn_scoped(
                        scope,
                        || {
                            run.pin(cpus)?;
                            run.work(queue);
                            Ok(())
                        },
                    );
                    team.push(member.map_err(|error| run.give_up(TeamError::Spawn(error)))?);
                }
            }
            team.into_iter().try_for_each(|member| match member.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        queues.into_iter().map(|(queue, _, _)| queue.into_result()).collect()
    };
    let outcomes = shares.into_iter().zip(done).map(|(share, (cleared_bytes, fault))| {
        let extent = share.extent;
        match fault {
            Some(fault) => Outcome::Poisoned { fault, cleared_bytes, extent },
            None if cleared_bytes == extent.len() => {
                Outcome::Complete(Zeroed::claim(extent).verified())
            }
            None => Outcome::Stopped { cleared_bytes, extent },
        }
    });
    Ok(outcomes.collect())
}

/// What all threads share.
struct Run<'c, P> {
    clearer: &'c Clearer,
    progress: P,
    total_bytes: usize,
    cleared_bytes: AtomicUsize,
    stop: AtomicBool,
}

impl<P: Fn(Progress) -> ControlFlow<()> + Sync> Run<'_, P> {
    /// Takes pages from the queue until it is empty or a callback has asked to stop.
    fn work(&self, queue: &Queue<'_>) {
        while !self.stop.load(Ordering::Relaxed)
            && let Some((at_bytes, pages)) = queue.take()
        {
            let batch_bytes = pages.len();
            let outcome = self.clearer.clear_unverified(pages, |here| {
                let cleared_bytes = here.cleared_bytes
                    + if here.cleared_bytes == batch_bytes {
                        self.cleared_bytes.fetch_add(batch_bytes, Ordering::Relaxed)
                    } else {
                        // An atomic addition after each chunk would wait until all stores that
                        // bypass the cache are in memory: 0.7 us of the 3 that 256 KiB take (Zen
                        // 5).
                        self.cleared_bytes.load(Ordering::Relaxed)
                    };
                let sum = Progress { cleared_bytes, total_bytes: self.total_bytes };
                if (self.progress)(sum).is_break() {
                    self.stop.store(true, Ordering::Relaxed);
                }
                if self.stop.load(Ordering::Relaxed) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            match outcome {
                Outcome::Complete(_) => {}
                Outcome::Stopped { cleared_bytes, .. } => queue.leave_gap(at_bytes + cleared_bytes),
                Outcome::Poisoned { fault, cleared_bytes, .. } => {
                    queue.leave_gap(at_bytes + cleared_bytes);
                    queue.close(fault);
                }
            }
        }
    }

    /// Confines the calling thread.
    fn pin(&self, cpus: &[usize]) -> Result<(), TeamError> {
        if cpus.is_empty() {
            return Ok(());
        }
        let mut set = CpuSet::new();
        let known = cpus.iter().all(|cpu| *cpu < CpuSet::MAX_CPU);
        cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        let pinned =
            if known { sched_setaffinity(None, &set) } else { Err(rustix::io::Errno::INVAL) };
        pinned.map_err(|errno| {
            self.give_up(TeamError::Affinity { cpus: cpus.to_vec(), source: errno.into() })
        })
    }

    /// Lets the other threads end soon.
    fn give_up(&self, error: TeamError) -> TeamError {
        self.stop.store(true, Ordering::Relaxed);
        error
    }
}

/// The untaken part of a share, and what became of the rest.
struct Queue<'a> {
    rest: Mutex<Rest<'a>>,
    batch_bytes: NonZeroUsize,
    /// How often there is something to take.
    batches: usize,
    /// Bytes from the start of the share on that are known to be cleared.
    gap_at_bytes: AtomicUsize,
    fault: Mutex<Option<Fault>>,
}

/// The untaken pages.
struct Rest<'a> {
    /// Its offset in the share.
    at_bytes: usize,
    /// `None` once the queue is empty.
    extent: Option<Extent<'a>>,
}

impl<'a> Queue<'a> {
    fn new(extent: Extent<'a>, page_bytes: NonZeroUsize, threads: NonZeroUsize) -> Self {
        // Whole pages; small ones by the batch, several batches for each thread, so that a delayed
        // one leaves work to the rest.
        let fair = extent.len() / threads.saturating_mul(FAIR_BATCHES);
        let batch_bytes = fair.clamp(MIN_BATCH_BYTES, MAX_BATCH_BYTES) / MIN_BATCH_BYTES;
        let batch_bytes = (batch_bytes * MIN_BATCH_BYTES).next_multiple_of(page_bytes.get());
        let batch_bytes = NonZeroUsize::new(batch_bytes).unwrap_or(page_bytes);
        let into_batch = extent.as_ptr().addr() % batch_bytes;
        let batches = if extent.is_empty() {
            0
        } else {
            (into_batch + extent.len()).div_ceil(batch_bytes.get())
        };
        Self {
            gap_at_bytes: AtomicUsize::new(extent.len()),
            rest: Mutex::new(Rest {
                at_bytes: 0,
                extent: Some(extent).filter(|extent| !extent.is_empty()),
            }),
            batch_bytes,
            batches,
            fault: Mutex::new(None),
        }
    }

    /// The next pages and their offset in the share, up to a border between two batches in the
    /// address space.
    fn take(&self) -> Option<(usize, Extent<'a>)> {
        // The callback runs outside the lock, so a panic leaves the queue sound.
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let extent = rest.extent.take()?;
        let at_bytes = rest.at_bytes;
        let to_border = self.batch_bytes.get() - extent.as_ptr().addr() % self.batch_bytes;
        let (pages, later) = extent.split_at(to_border);
        *rest = Rest {
            at_bytes: at_bytes + pages.len(),
            extent: Some(later).filter(|later| !later.is_empty()),
        };
        Some((at_bytes, pages))
    }

    /// A thread ended early: the byte at this offset may be nonzero.
    fn leave_gap(&self, at_bytes: usize) {
        self.gap_at_bytes.fetch_min(at_bytes, Ordering::Relaxed);
    }

    /// The share has ended at an unwritable page.
    fn close(&self, fault: Fault) {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner).extent = None;
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
    }

    /// The zero bytes up to the first gap, and the unwritable page.
    fn into_result(self) -> (usize, Option<Fault>) {
        let untaken = self.rest.into_inner().unwrap_or_else(PoisonError::into_inner).at_bytes;
        let fault = self.fault.into_inner().unwrap_or_else(PoisonError::into_inner);
        (self.gap_at_bytes.into_inner().min(untaken), fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_end_at_page_borders_and_cover_the_extent() {
        let mut bytes = vec![0_u8; 9 << 20];
        for (page_bytes, batch_bytes) in
            [(4096, 2 << 20), (2 << 20, 2 << 20), (3 << 20, 3 << 20), (1 << 30, 1 << 30)]
        {
            let queue = Queue::new(
                Extent::from(&mut bytes[..]),
                NonZeroUsize::new(page_bytes).unwrap(),
                NonZeroUsize::MIN,
            );
            let mut taken = 0;
            let mut turns = 0;
            while let Some((at_bytes, pages)) = queue.take() {
                assert_eq!(at_bytes, taken);
                taken += pages.len();
                turns += 1;
                let end = pages.as_ptr().addr() + pages.len();
                assert!(
                    taken == 9 << 20 || end.is_multiple_of(batch_bytes),
                    "{page_bytes}: ends at {end:#x}"
                );
            }
            assert_eq!((taken, turns), (9 << 20, queue.batches), "{page_bytes}");
        }
    }
}
