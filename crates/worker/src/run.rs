// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes jobs, does them, reports them.
//!
//! # Theory of operation
//!
//! The threads of a worker are split into *groups*, each with a connection of its own: one for each
//! block to zero, and at most one for each thread. A group takes one job at a time; its threads
//! share the pages of it. Small blocks are zeroed side by side, and one large block by all threads;
//! each page belongs to one thread.
//!
//! A bound on the pages is a [`Budget`] that all groups draw from, and they draw *before* they take
//! a job. A taken job is worked on and reported, never dropped, since a dropped one tells the
//! daemon that its content is unknown.
//!
//! Over a kernel that knows its zeroed pages a job is a number of pages, and each thread has its
//! own: the kernel keeps their pages apart.
//!
//! When a job stops (at the bound, a signal, an error), the finished pages from the block's start
//! on are reported and kept. A worker that is killed loses the job it was at.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use client::Client;
use wire::{PoolStatus, TakeZeroing};

use crate::budget::Budget;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::interrupt::Interrupts;
use crate::job::{Job, Task, take_zeroing};
use crate::stop::Stop;
use crate::which::Which;
use crate::{allocate, in_kernel, in_place};

/// How long a worker that waits for pages does not look whether it has to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// What a worker is to do.
#[derive(Debug)]
pub struct Worker<'a> {
    /// The daemon's socket.
    pub socket: &'a Path,
    /// Which pages.
    pub which: Which,
    /// Only what thresholds ask for.
    pub background: bool,
    /// For how long to wait for more pages once there are none.
    pub idle_timeout: Duration,
    /// How many zero at the same time, at least 1.
    pub threads: usize,
    /// The most pages; `None` is all there are.
    pub limit: Option<u64>,
    /// What clears in place.
    pub engine: Engine,
    /// Take a job even if `stop` is set by then: a caller that asks again and again, and is
    /// interrupted each time before a worker has started, would get nowhere.
    pub at_least_one: bool,
    /// Ends it at the next page or chunk.
    pub stop: &'a Stop,
}

/// What it has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkDone {
    /// Pages zeroed.
    pub pages: u64,
    /// The same in bytes.
    pub bytes: u64,
    /// Blocks worked on, finished or not.
    pub blocks: u64,
    /// From its start to its end, waiting included.
    pub took: Duration,
    /// How many worked on it.
    pub threads: usize,
}

/// Why a worker ended early, and its work before that.
#[derive(Debug)]
pub struct Unfinished {
    /// The work done before that.
    pub work: WorkDone,
    /// The first error.
    pub error: Error,
}

impl Worker<'_> {
    /// Works until all pages are zeroed, the limit is reached, or `stop` is set. `tick` is told
    /// bytes as they are done, by any thread. Blocks for all of it.
    ///
    /// # Errors
    /// The first error of any thread, which ends the others at their next page or chunk.
    pub fn run(&self, tick: &(dyn Fn(u64) + Sync)) -> Result<WorkDone, Unfinished> {
        let begin = Instant::now();
        let mut sum = WorkDone { threads: self.threads, ..WorkDone::default() };
        let ended = work(self, tick, &mut sum);
        sum.took = begin.elapsed();
        match ended {
            Ok(()) => Ok(sum),
            Err(error) => Err(Unfinished { work: sum, error }),
        }
    }
}

fn work(worker: &Worker<'_>, tick: &(dyn Fn(u64) + Sync), sum: &mut WorkDone) -> Result<()> {
    // A SIGBUS of a poisoned page ends one job, and the worker goes on.
    clear::guard::install()?;
    let groups = groups(worker)?;
    let budget = Budget::new(worker.limit);
    let failed = Stop::default();
    let interrupts = Interrupts::new([worker.stop.clone(), failed.clone()])?;
    let results = thread::scope(|scope| {
        let group = |index: usize| {
            // The first groups have one thread more where the division leaves a rest.
            let threads = worker.threads / groups + usize::from(index < worker.threads % groups);
            let group = Group {
                worker,
                threads,
                budget: &budget,
                failed: &failed,
                interrupts: &interrupts,
                tick,
            };
            scope.spawn(move || {
                let mut work = WorkDone::default();
                let ended = group.run(&mut work).inspect_err(|_| group.failed.set());
                (work, ended)
            })
        };
        let groups: Vec<_> = (0..groups).map(group).collect();
        groups
            .into_iter()
            .map(|group| group.join().expect("a worker's thread does not panic"))
            .collect::<Vec<_>>()
    });
    let mut ended = Ok(());
    for (work, result) in results {
        sum.pages += work.pages;
        sum.bytes += work.bytes;
        sum.blocks += work.blocks;
        ended = ended.and(result);
    }
    ended
}

fn groups(worker: &Worker<'_>) -> Result<usize> {
    if worker.threads == 1 {
        return Ok(1);
    }
    let pools = Client::connect(worker.socket)?.status()?.pools;
    let fitting = || pools.iter().filter(|pool| worker.which.fits(pool.node, pool.page_size));
    let size = |pool: &PoolStatus| pool.pages_per_block.0.max(1);
    let blocks: u64 = fitting().map(|pool| pool.zeroable_pages.0 / size(pool)).sum();
    let least = fitting().map(size).min().unwrap_or(1);
    let most = worker.limit.map_or(u64::MAX, |limit| limit.div_ceil(least));
    Ok(usize::try_from(blocks.min(most)).unwrap_or(usize::MAX).clamp(1, worker.threads))
}

struct Group<'a> {
    worker: &'a Worker<'a>,
    threads: usize,
    budget: &'a Budget,
    failed: &'a Stop,
    interrupts: &'a Interrupts,
    tick: &'a (dyn Fn(u64) + Sync),
}

impl Group<'_> {
    /// Adds to `work` what it does.
    fn run(&self, work: &mut WorkDone) -> Result<()> {
        let mut client = Client::connect(self.worker.socket)?;
        let anyway = |work: &WorkDone| self.worker.at_least_one && work.blocks == 0;
        while anyway(work) || !self.stopped() {
            let turn = self.budget.turn();
            if self.budget.draw(1) == 0 {
                break;
            }
            let Some(job) = self.next_job(&mut client)? else {
                self.budget.put_back(1);
                break;
            };
            let (first, page_bytes) = (job.first().0, job.page_size().bytes());
            let missing = job.pages().0.saturating_sub(first);
            let drawn = 1 + self.budget.draw(missing.saturating_sub(1));
            drop(turn);
            let stopped = || self.stopped();
            let (done, fault) = match job.begin()? {
                Task::Allocate(task) => {
                    let range = (first, first + drawn);
                    let threads = self.threads;
                    let done =
                        allocate::allocate(task, range, page_bytes, threads, &stopped, self.tick)?;
                    (done, None)
                }
                Task::InPlace(task) => {
                    let length = drawn.saturating_mul(page_bytes);
                    let clearer = self.worker.engine.clearer(self.worker.stop)?;
                    in_place::clear(task, length, (clearer, self.threads), &stopped, self.tick)?
                }
                Task::InKernel(task) => {
                    (in_kernel::zero(task, drawn, self.interrupts, &stopped, self.tick)?, None)
                }
            };
            let pages = done.pages.0.saturating_sub(first);
            done.report(&mut client)?;
            self.budget.put_back(drawn.saturating_sub(pages));
            work.pages += pages;
            work.bytes += pages * page_bytes;
            work.blocks += 1;
            if let Some(fault) = fault {
                return Err(Error::Poisoned(fault));
            }
        }
        Ok(())
    }

    /// Takes a job, or waits for it for `idle_timeout`. `None` where there is none by then.
    fn next_job(&self, client: &mut Client) -> Result<Option<Job>> {
        let Worker { which, background, idle_timeout, .. } = *self.worker;
        let end = Instant::now() + idle_timeout;
        loop {
            let wait = end.saturating_duration_since(Instant::now()).min(STOP_POLL_INTERVAL);
            let request = TakeZeroing {
                node: which.node(),
                page_size: which.page_size,
                background,
                wait_ms: u64::try_from(wait.as_millis()).ok().filter(|wait| *wait > 0),
            };
            match take_zeroing(client, &request) {
                Ok(job) => return Ok(Some(job)),
                Err(Error::Client(client::Error::Refused(wire::Error::NothingToZero))) => {}
                Err(error) => return Err(error),
            }
            if request.wait_ms.is_none() || self.stopped() {
                return Ok(None);
            }
        }
    }

    fn stopped(&self) -> bool {
        self.worker.stop.is_set() || self.failed.is_set()
    }
}
