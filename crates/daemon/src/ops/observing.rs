// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looking at the kernel's counts, and saying that something has changed.

use std::time::{Duration, Instant};

use book::block::StateName;
use tokio::sync::watch;
use units::{Counts, Domain, Pages};

use super::Shell;

/// How old the kernel's counts may be when a loan or job relies on them. A read is three files of
/// sysfs, about 10 us; a loan from ready memory needs none.
const OBSERVE_EVERY: Duration = Duration::from_millis(20);

/// So often the counts are read until no page was taken meanwhile: one that was is missing twice,
/// and a loan may be refused for it.
const LOOKS: u32 = 8;

impl Shell {
    /// Wakes whenever a count changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Wakes everybody who watches, and the housekeeping.
    pub(crate) fn wake(&self) {
        self.changed.send_modify(|generation| *generation += 1);
    }

    /// Looks at the kernel's counts now, and tells whoever watches if they have changed.
    pub(crate) fn look_again(&mut self) {
        self.observed = None;
        self.observe();
    }

    /// Looks at the kernel's counts, unless that was done a moment ago.
    pub(crate) fn observe(&mut self) {
        let freed = self.store.has_freed();
        if !freed && self.observed.is_some_and(|at| at.elapsed() < OBSERVE_EVERY) {
            return;
        }
        self.observed = Some(Instant::now());
        let domains: Vec<_> = self.book.domains().collect();
        for domain in domains {
            let (promised, seen) = self.look(domain);
            self.holes.promised(domain.page_size, seen.reserved);
            let waiting = self.holes.waiting(domain);
            let left = Counts {
                available: seen.available.saturating_sub(promised).saturating_sub(waiting),
                ready: seen.ready.saturating_sub(promised),
                ..seen
            };
            if self.book.observe(domain, &left) {
                self.wake();
            }
        }
    }

    /// What is promised of a domain, and what the kernel has there besides: of one instant, unless
    /// it changes all the time.
    fn look(&mut self, domain: Domain) -> (Pages, Counts) {
        let mut promised = self.promised(domain);
        let mut looks = LOOKS;
        loop {
            // Promises before counts: a page that a job takes in between is counted as taken twice,
            // and never as free.
            let seen = match self.provider.look(&mut self.meters, domain) {
                Ok(seen) => seen,
                Err(error) => {
                    tracing::warn!(%error, "cannot see the kernel's free pages");
                    self.kernel.remove(&domain);
                    return (promised, Counts::default());
                }
            };
            self.kernel.insert(domain, seen);
            looks -= 1;
            let now = self.promised(domain);
            if now == promised || looks == 0 {
                return (promised, seen);
            }
            promised = now;
        }
    }

    /// Pages that jobs in workers' hands, and loans' new files, have yet to take from the kernel.
    pub(super) fn promised(&self, domain: Domain) -> Pages {
        let taken = |block| self.store.allocated(block, domain.page_size).unwrap_or_default();
        let here = |b: &&book::block::Block| b.pool().domain() == domain;
        let zeroing = self.book.in_state(StateName::Zeroing).filter(here);
        let filling = self.filling.iter().filter_map(|(id, pages)| {
            self.book.block(*id).filter(here).map(|b| pages.saturating_sub(taken(b.id())))
        });
        zeroing.map(|b| b.pages().saturating_sub(taken(b.id()))).chain(filling).sum()
    }
}
