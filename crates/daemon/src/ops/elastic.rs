// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The size of the kernel's pools, where the operator lets the daemon change it.
//!
//! Counts are read off the book, [`Sizing`] says what is to be done, [`Resizing`] does it on a
//! thread of its own, one for each pool at a time. What a restart must know is in a file of the run
//! directory before anything is begun.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use book::config::Elastic;
use book::policy::{Grown, Limits, Move, Seen, Sizing};
use book::{Asked, Refusal};
use linux::Roots;
use serde::{Deserialize, Serialize};
use units::{Domain, Pages, PoolKey};
use wire::ElasticStatus;

use super::{Shell, since_boot};
use crate::storage::resizing::{Order, Outcome, Resizing, Short};

/// How often it is looked whether a size should change: a look goes over all blocks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The shortest time between two lines about changes that come to nothing.
const QUIET: Duration = Duration::from_secs(60);

/// What a restart must know, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    /// The kernel's pools begin anew with each boot.
    boot: String,
    pools: Vec<(Domain, Grown)>,
}

/// One kernel's pool.
#[derive(Debug, Default)]
struct Pool {
    sizing: Sizing,
    /// A change that goes on.
    resizing: Option<Resizing>,
    /// What is written down of it.
    record: Option<Grown>,
    /// Why the last change came to less than it was to.
    short: Option<String>,
    /// When that was told.
    told: Option<Instant>,
}

/// The pools whose size may change, or might before the last reload.
#[derive(Debug)]
pub(crate) struct Sizes {
    path: PathBuf,
    written: Written,
    pools: BTreeMap<Domain, Pool>,
    looked: Option<Instant>,
}

impl Sizes {
    /// What the daemon before this one knew.
    pub(super) fn of(run_dir: &Path, roots: &Roots) -> Self {
        let path = run_dir.join("sizes");
        let boot = linux::boot::id(roots).unwrap_or_else(|error| {
            tracing::debug!(%error, "this boot has no name");
            String::new()
        });
        let unread = |error: &dyn std::fmt::Display| {
            let path = path.display();
            tracing::warn!(%error, %path, "what was added cannot be read: it stays");
            Written::default()
        };
        let read: Written = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| unread(&error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Written::default(),
            Err(error) => unread(&error),
        };
        let pools = if read.boot == boot { read.pools } else { Vec::new() };
        Self { path, written: Written { boot, pools }, pools: BTreeMap::new(), looked: None }
    }

    /// The kernel's pools to which daemons before this one have added pages, or began to, with the
    /// most that they made them.
    pub(crate) fn enlarged(run_dir: &Path, roots: &Roots) -> Vec<(Domain, Pages)> {
        let known = Self::of(run_dir, roots).written.pools.into_iter();
        let ours = known.filter(|(_, of)| of.ours > Pages::ZERO || of.from != of.to);
        ours.map(|(domain, of)| (domain, of.from.max(of.to))).collect()
    }

    fn pool(&mut self, domain: Domain, total: Pages) -> &mut Pool {
        let before = self.written.pools.iter().find(|(of, _)| *of == domain);
        self.pools.entry(domain).or_insert_with(|| Pool {
            sizing: before
                .map_or_else(Sizing::default, |(_, record)| Sizing::resume(record, total)),
            record: before.map(|(_, record)| *record),
            ..Pool::default()
        })
    }

    /// Writes down what has changed: 50 us.
    fn write(&mut self) {
        let mut pools: BTreeMap<_, _> = self.written.pools.iter().copied().collect();
        let known = self.pools.iter().filter_map(|(of, pool)| Some((*of, pool.record?)));
        pools.extend(known);
        let new = Written { boot: self.written.boot.clone(), pools: pools.into_iter().collect() };
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

fn limits(of: &Elastic) -> Option<Limits> {
    Some(Limits { min: of.reserve_min, max: of.reserve_max?, idle: of.reserve_idle })
}

impl Shell {
    /// Looks whether the kernel's pools have the sizes that they should, begins what is to change,
    /// and tells what came of it.
    ///
    /// Returns whether a change goes on.
    pub(crate) fn tend_sizes(&mut self) -> bool {
        self.look_at_sizes();
        self.sizes.pools.values().any(|pool| pool.resizing.is_some())
    }

    /// The same before a drained daemon ends, which is to leave nothing behind.
    pub(crate) fn gives_sizes_back(&mut self) -> bool {
        if !self.draining.is_on() || self.book.elastic().is_empty() {
            return false;
        }
        self.sizes.looked = None;
        self.tend_sizes() || *self.queues().ours().borrow() > 0
    }

    fn look_at_sizes(&mut self) {
        let elastic = self.book.elastic();
        let ended = self.end_resizings();
        if elastic.is_empty() {
            // Whoever goes on is not wanted any more.
            self.sizes.pools.values_mut().for_each(|pool| {
                pool.resizing.iter().for_each(Resizing::stop);
            });
            return;
        }
        let is_due = self.sizes.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
        // Pages on their way to the kernel are nobody's, and nowhere to be seen.
        if !is_due && !ended || *self.queues().ours().borrow() > 0 {
            return;
        }
        self.sizes.looked = Some(Instant::now());
        for (domain, elastic) in elastic {
            if let Some(limits) = limits(&elastic) {
                self.tend_size(domain, &elastic, &limits);
            }
        }
        self.sizes.write();
    }

    /// What there is of a domain now, and what jobs have yet to take of it. Counts before promises:
    /// a page that a job has taken in between is counted as nobody's twice, and never as a demand.
    fn seen(&mut self, domain: Domain) -> Option<(Seen, Pages)> {
        let kernel = self.observed.read(&self.provider, domain).ok()?;
        let jobs = self.promised(domain);
        let missing = |b: &book::block::Block| {
            let taken = self.store.allocated(b.id(), domain.page_size).unwrap_or_default();
            b.pages().saturating_sub(taken)
        };
        // The kernel promises a hole's pages only once it is mapped.
        let holes: Pages = self.book.holes(domain).map(missing).sum();
        let available = kernel.available.saturating_sub(self.observed.unbacked.waiting(domain));
        let available = available.min(kernel.free.saturating_sub(holes)).saturating_sub(jobs);
        let is_drained = self.draining.is_on();
        let wanted = if is_drained { Pages::ZERO } else { self.book.wanted(domain) };
        let seen = Seen {
            now: since_boot(),
            total: kernel.total.saturating_sub(kernel.surplus),
            spare: available + self.book.idle(domain),
            wanted,
            keeps: !is_drained,
        };
        Some((seen, jobs))
    }

    fn tend_size(&mut self, domain: Domain, elastic: &Elastic, limits: &Limits) {
        let Some((seen, _)) = self.seen(domain) else { return };
        let is_drained = !seen.keeps;
        let pool = self.sizes.pool(domain, seen.total);
        if let Some(resizing) = &pool.resizing {
            if is_drained && matches!(resizing.change, Move::Grow(_)) {
                resizing.stop();
            }
            return;
        }
        let held = pool.sizing.held();
        let mut next = pool.sizing.next(limits, &seen);
        if pool.sizing.held() != held
            && let Some(total) = pool.sizing.held()
        {
            tracing::info!(
                %domain,
                %total,
                "somebody made the kernel's pool smaller: it does not grow until pages are added, \
                 or the configuration is read again"
            );
        }
        if !matches!(next, Move::Wait(_)) {
            // The counts are no snapshot: what somebody changed between two of them looks like a
            // demand. What is there twice is true.
            let Some((seen, jobs)) = self.seen(domain) else { return };
            next = self.sizes.pool(domain, seen.total).sizing.next(limits, &seen);
            // A page that the kernel clears for a job is neither free nor in the job's file, and
            // missing twice. What else is missing is found when the jobs are done.
            if let Move::Grow(pages) = next {
                let pages = pages.saturating_sub(jobs);
                next = if pages > Pages::ZERO { Move::Grow(pages) } else { Move::Wait(None) };
            }
        }
        if let Move::Shrink(pages) = next {
            self.look_again();
            self.apply(|book| book.release(domain, pages));
            if *self.queues().ours().borrow() > 0 {
                // Taken away once they are there.
                return;
            }
        }
        self.begin(domain, elastic, next);
    }

    fn begin(&mut self, domain: Domain, elastic: &Elastic, next: Move) {
        let pool = self.sizes.pools.entry(domain).or_default();
        pool.record = Some(pool.sizing.record(next));
        self.sizes.write();
        if matches!(next, Move::Wait(_)) {
            return;
        }
        let nice = self.config.workers.nice;
        let order = Order { domain, change: next, free: elastic.reserve_free, nice };
        let changes = self.changes.clone();
        let tell = move || changes.wake();
        let begun = Resizing::begin(order, self.roots.clone(), tell);
        let pool = self.sizes.pools.entry(domain).or_default();
        match begun {
            Ok(resizing) => pool.resizing = Some(resizing),
            Err(error) => {
                tracing::error!(%error, "a thread cannot be started: the kernel's pool stays");
                pool.sizing.note_done(since_boot(), next, Pages::ZERO);
            }
        }
    }

    /// Books changes that are over. Returns whether any was.
    fn end_resizings(&mut self) -> bool {
        let mut ended = false;
        for (domain, pool) in &mut self.sizes.pools {
            let Some(resizing) = &mut pool.resizing else { continue };
            let Some(outcome) = resizing.outcome() else { continue };
            let (change, took) = (resizing.change, resizing.since.elapsed());
            pool.resizing = None;
            pool.sizing.note_done(since_boot(), change, outcome.done);
            pool.tell(*domain, change, &outcome, took);
            pool.record = Some(pool.sizing.record(Move::Wait(None)));
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
    pub(super) fn note_refusal(&mut self, asked: &Asked, refusal: &Refusal) {
        if !matches!(refusal, Refusal::NotEnough { .. }) || self.draining.is_on() {
            return;
        }
        let elastic = self.book.elastic();
        let domains: Vec<_> = elastic.keys().copied().collect();
        let Some((domain, pages)) = self.book.served_if_larger(asked, &domains) else { return };
        let (Some(limits), Some((seen, _))) = (limits(&elastic[&domain]), self.seen(domain)) else {
            return;
        };
        self.sizes.pool(domain, seen.total).sizing.ask(&limits, &seen, pages);
        self.changes.wake();
    }

    /// A loan was granted: what was refused for want of its pages has them.
    pub(super) fn note_grant(&mut self, loan: &book::Loan) {
        let mut taken: BTreeMap<Domain, Pages> = BTreeMap::new();
        for part in loan.parts.iter().filter(|_| !loan.kept) {
            let domain = Domain { node: part.node, page_size: loan.page_size };
            *taken.entry(domain).or_default() += part.pages;
        }
        for (domain, pages) in taken {
            if let Some(pool) = self.sizes.pools.get_mut(&domain) {
                pool.sizing.note_granted(pages);
            }
        }
    }

    /// The operator has said anew what is to be.
    pub(super) fn let_sizes_go(&mut self) {
        self.sizes.pools.values_mut().for_each(|pool| pool.sizing.let_go());
    }

    /// What a status says of the kernel's pool, if it changes for this pool.
    pub(super) fn elastic_status(&self, key: PoolKey) -> Option<ElasticStatus> {
        let limits = limits(&self.book.pool_config(key)?.elastic)?;
        let kernel = self.observed.counts(key.domain());
        let pool = self.sizes.pools.get(&key.domain());
        let growing = pool.and_then(|pool| match pool.resizing.as_ref()?.change {
            Move::Grow(pages) => Some(pages),
            _ => None,
        });
        Some(ElasticStatus {
            min_pages: limits.min,
            max_pages: limits.max,
            total_pages: kernel.total.saturating_sub(kernel.surplus),
            grown_pages: pool.map_or(Pages::ZERO, |pool| pool.sizing.ours()),
            growing_pages: growing.unwrap_or_default(),
            held_pages: pool.and_then(|pool| pool.sizing.held()),
            short_because: pool.and_then(|pool| pool.short.clone()),
        })
    }
}

impl Pool {
    /// One line for each change, and for what comes to nothing one in [`QUIET`].
    fn tell(&mut self, domain: Domain, change: Move, outcome: &Outcome, took: Duration) {
        let Outcome { done, short } = outcome;
        let why = short.as_ref().map(ToString::to_string);
        let grows = matches!(change, Move::Grow(_));
        // What others do with their pages is nothing that an operator can change.
        let is_trouble = grows && !matches!(short, None | Some(Short::Stopped | Short::Others));
        let before = std::mem::replace(&mut self.short, why.clone().filter(|_| is_trouble));
        let record = self.sizing.record(Move::Wait(None));
        let (pages, total, ours) = (*done, record.to, record.ours);
        let seconds = format!("{:.1}", took.as_secs_f64());
        if pages > Pages::ZERO {
            let size = if grows { "larger" } else { "smaller" };
            tracing::info!(%domain, %pages, %total, %ours, %seconds, "made the kernel's pool {size}");
        }
        let is_new = before.is_none() || self.told.is_none_or(|at| at.elapsed() >= QUIET);
        if let Some(why) = self.short.as_ref().filter(|_| is_new) {
            tracing::warn!(%domain, %total, %why, "the kernel's pool is smaller than it is wanted");
            self.told = Some(Instant::now());
        }
    }
}
