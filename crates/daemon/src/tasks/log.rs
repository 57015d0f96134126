// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an operator finds in the log without asking for more: pools at start, fillings begun and
//! done, refusals, lost workers, pages given back.
//!
//! All of it is read off the counts between two looks, so that no operation pays for it, and a
//! thousand refusals in a second are one line.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use units::{Bytes, PageSize, Pages, PoolKey};
use wire::{Ailment, AilmentCause, Counters, PoolStatus};

use crate::ops::{LoggedIncident, Shared};

/// The shortest time between two lines about the same kind of trouble.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct Log {
    logged: Counters,
    filling: BTreeMap<PoolKey, Instant>,
    /// When a filling of a pool was told of last, and how many were not since.
    fillings: BTreeMap<PoolKey, (Instant, u64)>,
    refusals_at: Option<Instant>,
    incidents_at: Option<Instant>,
    given_back_at: Option<Instant>,
}

fn key_of(pool: &PoolStatus) -> PoolKey {
    PoolKey { node: pool.node, page_size: pool.page_size, pages_per_block: pool.pages_per_block }
}

impl Log {
    /// The pools as they are configured, at start and after each reload.
    pub(crate) fn begin(&mut self, shell: &Shared) {
        let status = shell.borrow_mut().status();
        for pool in &status.pools {
            let max = pool.max_pages.map_or_else(|| "none".to_owned(), |max| max.to_string());
            tracing::info!(
                pool = %key_of(pool),
                recycle = %pool.recycle,
                ready_low = pool.ready_low.0,
                ready_high = pool.ready_high.0,
                leave_free = pool.leave_free.0,
                %max,
                ready = pool.ready_pages.0,
                lent = pool.lent_pages.0,
                kept = pool.kept_pages.0,
                free_in_kernel = pool.kernel_free_pages.0,
                reserved_in_kernel = pool.kernel_reserved_pages.0,
                "a pool"
            );
            if let Some(resize) = &pool.resize {
                let wire::ResizeStatus { min_pages, max_pages, total_pages, .. } = resize;
                tracing::info!(
                    pool = %key_of(pool),
                    min = min_pages.0,
                    max = max_pages.0,
                    now = total_pages.0,
                    "the kernel's pool grows and shrinks"
                );
                continue;
            }
            let owned = pool.ready_pages + pool.lent_pages + pool.kept_pages;
            let page = pool.page_size;
            let is_empty = pool.kernel_free_pages + owned == Pages::ZERO;
            if is_empty && pool.kernel_reserved_pages > Pages::ZERO {
                tracing::warn!(
                    pool = %key_of(pool),
                    reserved = pool.kernel_reserved_pages.0,
                    "all free {page} pages of the kernel are promised to programs that have mapped them: \
                     `prezero doctor` says how to reserve more"
                );
            } else if is_empty {
                tracing::warn!(
                    pool = %key_of(pool),
                    "the kernel has no free {page} pages for it: `prezero doctor` says how to reserve some"
                );
            }
        }
        if status.pools.is_empty() {
            tracing::warn!("no pool is configured: there is nothing to lend");
        }
        for Ailment { found, remedy, .. } in &status.ailments {
            tracing::warn!(%found, %remedy, "the service is {}", status.health);
        }
    }

    /// What happened since the last look.
    pub(crate) fn log_changes(&mut self, shell: &Shared) {
        let (counters, filling) = {
            let shell = shell.borrow();
            (shell.book().counters(), shell.filling())
        };
        self.log_filling(&filling);
        let lost = counters.lost_workers - self.logged.lost_workers;
        if lost > 0 {
            tracing::warn!(workers = lost, "lost workers: they ended without a report");
            self.logged.lost_workers = counters.lost_workers;
        }
        let due = |at: Option<Instant>| at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        let refused = counters.refusals - self.logged.refusals;
        if refused > 0 && due(self.refusals_at) {
            let granted = counters.loans - self.logged.loans;
            tracing::warn!(
                refused,
                granted,
                "refused loans; `prezero doctor` has causes and remedies"
            );
            (self.logged.refusals, self.logged.loans) = (counters.refusals, counters.loans);
            self.refusals_at = Some(Instant::now());
        }
        if due(self.incidents_at) {
            self.log_incidents(shell);
        }
        let given = counters.released_bytes.saturating_sub(self.logged.released_bytes);
        if given > Bytes(0) && due(self.given_back_at) {
            tracing::info!(bytes = %given, "gave pages back to the kernel for others");
            self.logged.released_bytes = counters.released_bytes;
            self.given_back_at = Some(Instant::now());
        }
    }

    /// The last incident of each kind: with its user, size and reason.
    fn log_incidents(&mut self, shell: &Shared) {
        let incidents = shell.borrow_mut().incidents.take_unlogged();
        if !incidents.is_empty() {
            self.incidents_at = Some(Instant::now());
        }
        for LoggedIncident { cause, uid, pid, bytes, what, count } in incidents {
            match cause {
                AilmentCause::Stranger => {
                    let group = shell.borrow().config().lend_group.clone().unwrap_or_default();
                    tracing::warn!(%uid, ?pid, lend_group = %group, count, "a user may not borrow: it {what}");
                }
                AilmentCause::Blocks => {
                    tracing::warn!(%uid, %bytes, count, "a loan is larger than every ready block: it {what}");
                }
                _ => tracing::warn!(%uid, %bytes, count, "refused a loan: {what}"),
            }
        }
    }

    fn log_filling(&mut self, now: &BTreeMap<PoolKey, (Pages, Pages)>) {
        for (pool, (ready, high)) in now {
            if self.filling.contains_key(pool) {
                continue;
            }
            let begin = Instant::now();
            self.filling.insert(*pool, begin);
            // Under churn a pool is filled after each loan: a line in LOG_INTERVAL says how often.
            let (logged, others) = self.fillings.get(pool).copied().unwrap_or((begin, 0));
            if logged != begin && logged.elapsed() < LOG_INTERVAL {
                self.fillings.insert(*pool, (logged, others + 1));
                continue;
            }
            tracing::info!(%pool, %ready, %high, others, "fills a pool");
            self.fillings.insert(*pool, (begin, 0));
        }
        let fillings = &self.fillings;
        self.filling.retain(|pool, since| {
            let goes_on = now.contains_key(pool);
            // Those with a logged beginning, or a long duration.
            let logged = fillings.get(pool).is_some_and(|(logged, _)| logged == since);
            if !goes_on && (logged || since.elapsed() >= LOG_INTERVAL) {
                let seconds = since.elapsed().as_secs_f64();
                tracing::info!(%pool, seconds = %format_args!("{seconds:.1}"), "a pool is full");
            }
            goes_on
        });
    }

    /// One line for `systemctl status`.
    pub(crate) fn status(&self, shell: &Shared) -> String {
        let shell = shell.borrow();
        let mut sums: BTreeMap<PageSize, [Pages; 3]> = BTreeMap::new();
        for level in shell.book().levels() {
            let sum = sums.entry(level.page_size).or_default();
            sum[0] += level.ready_pages;
            sum[1] += level.zeroing_pages;
            sum[2] += level.lent_pages;
        }
        let sizes: Vec<_> = sums
            .into_iter()
            .map(|(page, [ready, zeroing, lent])| {
                let of = |pages: Pages| pages.bytes(page);
                let (ready, zeroing, lent) = (of(ready), of(zeroing), of(lent));
                format!("{page} pages: {ready} ready, {zeroing} zeroing, {lent} lent")
            })
            .collect();
        let paused = if shell.workers.paused { "; paused by CPU pressure" } else { "" };
        if sizes.is_empty() { "no pools".to_owned() } else { sizes.join("; ") + paused }
    }
}
