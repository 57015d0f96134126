// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The size of the kernel's pools, where the operator lets the daemon change it.
//!
//! Counts are read off the book, [`ResizePolicy`] gives the next change, [`ResizeJob`] makes it on
//! a thread of its own, one for each pool at a time. The state that a restart needs is in a file of
//! the run directory before anything is begun.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use book::config::PoolSize;
use book::policy::{PoolCounts, ResizeLimits, ResizePolicy, ResizeRecord, ResizeStep};
use book::{Asked, Refusal};
use linux::Roots;
use serde::{Deserialize, Serialize};
use units::{Domain, Pages, PoolKey};
use wire::ResizeStatus;

use super::{Shell, since_boot};
use crate::storage::resize_job::{ResizeJob, ResizeOrder, ResizeOutcome, Shortfall};

/// How often it is looked whether a size should change: a look goes over all blocks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest time between two lines about changes that come to nothing.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// What a restart must know, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SizesFile {
    /// The kernel's pools begin anew with each boot.
    boot: String,
    pools: Vec<(Domain, ResizeRecord)>,
}

/// One kernel's pool.
#[derive(Debug, Default)]
struct ResizedPool {
    resize_policy: ResizePolicy,
    /// A change that goes on.
    resize_job: Option<ResizeJob>,
    /// The recorded part of it.
    record: Option<ResizeRecord>,
    /// Why the last change came to less than it was to.
    short: Option<String>,
    /// When that was told.
    logged: Option<Instant>,
}

/// The pools that may change their size, or might before the last reload.
#[derive(Debug)]
pub(crate) struct PoolSizes {
    path: PathBuf,
    written: SizesFile,
    pools: BTreeMap<Domain, ResizedPool>,
    looked: Option<Instant>,
}

impl PoolSizes {
    /// What the daemon before this one knew.
    pub(super) fn load(run_dir: &Path, roots: &Roots) -> Self {
        let path = run_dir.join("sizes");
        let boot = linux::boot::id(roots).unwrap_or_else(|error| {
            tracing::debug!(%error, "this boot has no name");
            String::new()
        });
        let unread = |error: &dyn std::fmt::Display| {
            let path = path.display();
            tracing::warn!(%error, %path, "what was added cannot be read: it stays");
            SizesFile::default()
        };
        let read: SizesFile = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| unread(&error)),
            Err(error) if error.kind() == ErrorKind::NotFound => SizesFile::default(),
            Err(error) => unread(&error),
        };
        let pools = if read.boot == boot { read.pools } else { Vec::new() };
        Self { path, written: SizesFile { boot, pools }, pools: BTreeMap::new(), looked: None }
    }

    /// The kernel's pools to which daemons before this one have added pages, or began to, with the
    /// most that they made them.
    pub(crate) fn enlarged(run_dir: &Path, roots: &Roots) -> Vec<(Domain, Pages)> {
        let known = Self::load(run_dir, roots).written.pools.into_iter();
        let ours = known.filter(|(_, of)| of.ours > Pages::ZERO || of.from != of.to);
        ours.map(|(domain, of)| (domain, of.from.max(of.to))).collect()
    }

    fn pool(&mut self, domain: Domain, total: Pages) -> &mut ResizedPool {
        let before = self.written.pools.iter().find(|(of, _)| *of == domain);
        self.pools.entry(domain).or_insert_with(|| ResizedPool {
            resize_policy: before.map_or_else(ResizePolicy::default, |(_, record)| {
                ResizePolicy::resume(record, total)
            }),
            record: before.map(|(_, record)| *record),
            ..ResizedPool::default()
        })
    }

    /// Records changes: 50 us.
    fn write(&mut self) {
        let mut pools: BTreeMap<_, _> = self.written.pools.iter().copied().collect();
        let known = self.pools.iter().filter_map(|(of, pool)| Some((*of, pool.record?)));
        pools.extend(known);
        let new = SizesFile { boot: self.written.boot.clone(), pools: pools.into_iter().collect() };
        if new == self.written {
            return;
        }
        let written = || crate::base::files::replace(&self.path, &serde_json::to_vec(&new)?);
        if let Err(error) = written() {
            let path = self.path.display();
            tracing::warn!(%error, %path, "what is added cannot be written: it stays after a crash");
        }
        self.written = new;
    }
}

fn limits(of: &PoolSize) -> Option<ResizeLimits> {
    Some(ResizeLimits { min: of.size_min, max: of.size_max?, idle: of.size_idle })
}

impl Shell {
    /// Checks the sizes of the kernel's pools, begins due changes, and reports finished ones.
    ///
    /// Returns whether a change goes on.
    pub(crate) fn resize_pools(&mut self) -> bool {
        self.look_at_sizes();
        self.sizes.pools.values().any(|pool| pool.resize_job.is_some())
    }

    /// The same before a drained daemon ends, which is to leave nothing behind.
    pub(crate) fn restores_sizes(&mut self) -> bool {
        if !self.drain_mode.is_on() || self.book.pool_sizes().is_empty() {
            return false;
        }
        self.sizes.looked = None;
        self.resize_pools() || *self.queues().ours().borrow() > 0
    }

    fn look_at_sizes(&mut self) {
        let resize = self.book.pool_sizes();
        let ended = self.end_resize_jobs();
        if resize.is_empty() {
            // A thread that goes on is no longer wanted.
            self.sizes.pools.values_mut().for_each(|pool| {
                pool.resize_job.iter().for_each(ResizeJob::stop);
            });
            return;
        }
        let is_due = self.sizes.looked.is_none_or(|at| at.elapsed() >= POLL_INTERVAL);
        // Pages on their way to the kernel are in no count.
        if !is_due && !ended || *self.queues().ours().borrow() > 0 {
            return;
        }
        self.sizes.looked = Some(Instant::now());
        for (domain, resize) in resize {
            if let Some(limits) = limits(&resize) {
                self.tend_size(domain, &resize, &limits);
            }
        }
        self.sizes.write();
    }

    /// The counts of a domain now, and the pages that jobs have yet to take of it. Counts before
    /// promises: a page that a job has taken in between is counted as unused twice, and never as a
    /// demand.
    fn seen(&mut self, domain: Domain) -> Option<(PoolCounts, Pages)> {
        let kernel = self.observed.read(&self.provider, domain).ok()?;
        let jobs = self.promised(domain);
        let missing = |b: &book::block::Block| {
            let taken = self.store.allocated(b.id(), domain.page_size).unwrap_or_default();
            b.pages().saturating_sub(taken)
        };
        // The kernel promises an unbacked part's pages only once it is mapped.
        let unbacked: Pages = self.book.unbacked(domain).map(missing).sum();
        let available = kernel.available.saturating_sub(self.observed.unbacked.waiting(domain));
        let available = available.min(kernel.free.saturating_sub(unbacked)).saturating_sub(jobs);
        let is_drained = self.drain_mode.is_on();
        let wanted = if is_drained { Pages::ZERO } else { self.book.wanted(domain) };
        let seen = PoolCounts {
            now: since_boot(),
            total: kernel.total.saturating_sub(kernel.surplus),
            spare: available + self.book.idle(domain),
            wanted,
            keeps: !is_drained,
        };
        Some((seen, jobs))
    }

    fn tend_size(&mut self, domain: Domain, resize: &PoolSize, limits: &ResizeLimits) {
        let Some((seen, _)) = self.seen(domain) else { return };
        let is_drained = !seen.keeps;
        let pool = self.sizes.pool(domain, seen.total);
        if let Some(resize_job) = &pool.resize_job {
            if is_drained && matches!(resize_job.change, ResizeStep::Grow(_)) {
                resize_job.stop();
            }
            return;
        }
        let held = pool.resize_policy.held();
        let mut next = pool.resize_policy.next(limits, &seen);
        if pool.resize_policy.held() != held
            && let Some(total) = pool.resize_policy.held()
        {
            tracing::info!(
                %domain,
                %total,
                "somebody made the kernel's pool smaller: it does not grow until pages are added, \
                 or the configuration is read again"
            );
        }
        if !matches!(next, ResizeStep::Wait(_)) {
            // The counts are no snapshot: a change between two of them looks like a demand. A value
            // read twice is true.
            let Some((seen, jobs)) = self.seen(domain) else { return };
            next = self.sizes.pool(domain, seen.total).resize_policy.next(limits, &seen);
            // A page that the kernel clears for a job is neither free nor in the job's file, and
            // missing twice. What else is missing is found when the jobs are done.
            if let ResizeStep::Grow(pages) = next {
                let pages = pages.saturating_sub(jobs);
                next = if pages > Pages::ZERO {
                    ResizeStep::Grow(pages)
                } else {
                    ResizeStep::Wait(None)
                };
            }
        }
        if let ResizeStep::Shrink(pages) = next {
            self.look_again();
            self.apply(|book| book.free_up(domain, pages));
            if *self.queues().ours().borrow() > 0 {
                // Taken away once they are there.
                return;
            }
        }
        self.begin(domain, resize, next);
    }

    fn begin(&mut self, domain: Domain, resize: &PoolSize, next: ResizeStep) {
        let pool = self.sizes.pools.entry(domain).or_default();
        pool.record = Some(pool.resize_policy.record(next));
        self.sizes.write();
        if matches!(next, ResizeStep::Wait(_)) {
            return;
        }
        let nice = self.config.workers.nice;
        let order = ResizeOrder { domain, change: next, free: resize.size_free, nice };
        let changes = self.changes.clone();
        let notify = move || changes.wake();
        let begun = ResizeJob::begin(order, self.roots.clone(), notify);
        let pool = self.sizes.pools.entry(domain).or_default();
        match begun {
            Ok(resize_job) => pool.resize_job = Some(resize_job),
            Err(error) => {
                tracing::error!(%error, "a thread cannot be started: the kernel's pool stays");
                pool.resize_policy.record_done(since_boot(), next, Pages::ZERO);
            }
        }
    }

    /// Books changes that are over. Returns whether any was.
    fn end_resize_jobs(&mut self) -> bool {
        let mut ended = false;
        for (domain, pool) in &mut self.sizes.pools {
            let Some(resize_job) = &mut pool.resize_job else { continue };
            let Some(outcome) = resize_job.outcome() else { continue };
            let (change, took) = (resize_job.change, resize_job.since.elapsed());
            pool.resize_job = None;
            pool.resize_policy.record_done(since_boot(), change, outcome.done);
            pool.log_outcome(*domain, change, &outcome, took);
            pool.record = Some(pool.resize_policy.record(ResizeStep::Wait(None)));
            ended = true;
        }
        if ended {
            self.observed.expire();
            self.observe();
            self.sizes.write();
        }
        ended
    }

    /// A loan was refused: if a larger pool of the kernel's could serve it, it grows.
    pub(super) fn record_refusal(&mut self, asked: &Asked, refusal: &Refusal) {
        if !matches!(refusal, Refusal::NotEnough { .. }) || self.drain_mode.is_on() {
            return;
        }
        let resize = self.book.pool_sizes();
        let domains: Vec<_> = resize.keys().copied().collect();
        let Some((domain, pages)) = self.book.growth_needed(asked, &domains) else { return };
        let (Some(limits), Some((seen, _))) = (limits(&resize[&domain]), self.seen(domain)) else {
            return;
        };
        self.sizes.pool(domain, seen.total).resize_policy.ask(&limits, &seen, pages);
        self.changes.wake();
    }

    /// A loan was granted: earlier refusals for lack of its pages are settled.
    pub(super) fn record_grant(&mut self, loan: &book::Loan) {
        let mut taken: BTreeMap<Domain, Pages> = BTreeMap::new();
        for part in loan.parts.iter().filter(|_| !loan.kept) {
            let domain = Domain { node: part.node, page_size: loan.page_size };
            *taken.entry(domain).or_default() += part.pages;
        }
        for (domain, pages) in taken {
            if let Some(pool) = self.sizes.pools.get_mut(&domain) {
                pool.resize_policy.record_granted(pages);
            }
        }
    }

    /// The operator has configured the pools anew.
    pub(super) fn lift_size_limits(&mut self) {
        self.sizes.pools.values_mut().for_each(|pool| pool.resize_policy.lift_limit());
    }

    /// What a status says of the kernel's pool, if it changes for this pool.
    pub(super) fn resize_status(&self, key: PoolKey) -> Option<ResizeStatus> {
        let limits = limits(&self.book.pool_config(key)?.resize)?;
        let kernel = self.observed.counts(key.domain());
        let pool = self.sizes.pools.get(&key.domain());
        let growing = pool.and_then(|pool| match pool.resize_job.as_ref()?.change {
            ResizeStep::Grow(pages) => Some(pages),
            _ => None,
        });
        Some(ResizeStatus {
            min_pages: limits.min,
            max_pages: limits.max,
            total_pages: kernel.total.saturating_sub(kernel.surplus),
            added_pages: pool.map_or(Pages::ZERO, |pool| pool.resize_policy.ours()),
            adding_pages: growing.unwrap_or_default(),
            held_pages: pool.and_then(|pool| pool.resize_policy.held()),
            short_because: pool.and_then(|pool| pool.short.clone()),
        })
    }
}

impl ResizedPool {
    /// One line for each change, and for what comes to nothing one in [`LOG_INTERVAL`].
    fn log_outcome(
        &mut self,
        domain: Domain,
        change: ResizeStep,
        outcome: &ResizeOutcome,
        took: Duration,
    ) {
        let ResizeOutcome { done, short } = outcome;
        let why = short.as_ref().map(ToString::to_string);
        let grows = matches!(change, ResizeStep::Grow(_));
        // What others do with their pages is nothing that an operator can change.
        let is_trouble =
            grows && !matches!(short, None | Some(Shortfall::Stopped | Shortfall::Others));
        let before = std::mem::replace(&mut self.short, why.clone().filter(|_| is_trouble));
        let record = self.resize_policy.record(ResizeStep::Wait(None));
        let (pages, total, ours) = (*done, record.to, record.ours);
        let seconds = format!("{:.1}", took.as_secs_f64());
        if pages > Pages::ZERO {
            let size = if grows { "larger" } else { "smaller" };
            tracing::info!(%domain, %pages, %total, %ours, %seconds, "made the kernel's pool {size}");
        }
        let is_new = before.is_none() || self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        if let Some(why) = self.short.as_ref().filter(|_| is_new) {
            tracing::warn!(%domain, %total, %why, "the kernel's pool is smaller than it is wanted");
            self.logged = Some(Instant::now());
        }
    }
}
