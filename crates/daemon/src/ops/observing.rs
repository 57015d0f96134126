// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the kernel's counts, and reports changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use book::block::StateName;
use linux::Roots;
use linux::meminfo::NodeMemory;
use tokio::sync::watch;
use units::{Counts, Domain, Node, Pages};

use super::Shell;
use super::unbacked::UnbackedParts;
use crate::base::error::Result;
use crate::storage::provider::{Meters, PoolProvider};

/// How old the kernel's counts may be when a loan or job relies on them. A read is three files of
/// sysfs, about 10 us; a loan from ready memory needs none.
const MAX_COUNTS_AGE_PERIOD: Duration = Duration::from_millis(20);

/// How often the counts are read until no page was taken meanwhile. A page that was taken counts as
/// missing twice, and a loan may be refused for it.
const MAX_READS: u32 = 8;

/// An event for each change of a count: watchers, waiting calls and maintenance subscribe to it.
#[derive(Debug, Clone)]
pub(crate) struct Changes(watch::Sender<u64>);

impl Changes {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Wakes at each change from now on.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }

    /// Wakes all subscribers.
    pub(crate) fn wake(&self) {
        self.0.send_modify(|generation| *generation += 1);
    }
}

/// The kernel's counts at the last look.
#[derive(Debug)]
pub(crate) struct Observed {
    meters: Meters,
    /// When the counts of all domains were read.
    pub(super) at: Option<Instant>,
    /// The counts of each domain, from its last read that succeeded.
    counts: BTreeMap<Domain, Counts>,
    /// Pages of loans that the kernel has not promised yet.
    pub(super) unbacked: UnbackedParts,
}

impl Observed {
    pub(super) fn new(roots: Roots) -> Self {
        let (meters, unbacked) = (Meters::new(roots), UnbackedParts::default());
        Self { meters, at: None, counts: BTreeMap::new(), unbacked }
    }

    /// Has the next [`Shell::observe`] read the counts, however young they are.
    pub(super) fn expire(&mut self) {
        self.at = None;
    }

    /// Whether the counts are young enough to rely on.
    pub(super) fn is_recent(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < MAX_COUNTS_AGE_PERIOD)
    }

    /// A domain's counts at the last look; empty after a failure.
    pub(super) fn counts(&self, domain: Domain) -> Counts {
        self.counts.get(&domain).copied().unwrap_or_default()
    }

    /// Reads a domain's counts, without remembering them.
    pub(super) fn read(&mut self, provider: &PoolProvider, domain: Domain) -> Result<Counts> {
        provider.look(&mut self.meters, domain)
    }

    /// The CPUs of a node, for workers without CPUs of their own.
    pub(crate) fn cpus_of(&mut self, node: Node) -> Option<String> {
        self.meters.cpus_of(node).ok()
    }

    /// A node's memory, as the kernel reports it.
    pub(crate) fn node_memory(&mut self, node: Node) -> Result<NodeMemory> {
        self.meters.node_memory(node)
    }
}

impl Shell {
    /// Reads the kernel's counts now, and wakes subscribers if they have changed.
    pub(crate) fn look_again(&mut self) {
        self.observed.expire();
        self.observe();
    }

    /// Reads the kernel's counts, unless they are recent.
    pub(crate) fn observe(&mut self) {
        let freed = self.store.has_freed();
        if !freed && self.observed.is_recent() {
            return;
        }
        self.observed.at = Some(Instant::now());
        let domains: Vec<_> = self.book.domains().collect();
        for domain in domains {
            let (promised, seen) = self.look(domain);
            self.observed.unbacked.promised(domain.page_size, seen.reserved);
            let waiting = self.observed.unbacked.waiting(domain);
            let left = Counts {
                available: seen.available.saturating_sub(promised).saturating_sub(waiting),
                ready: seen.ready.saturating_sub(promised),
                ..seen
            };
            if self.book.observe(domain, &left) {
                self.changes.wake();
            }
        }
    }

    /// The promised pages of a domain, and the kernel's counts: of one instant, unless they change
    /// all the time.
    fn look(&mut self, domain: Domain) -> (Pages, Counts) {
        let mut promised = self.promised(domain);
        let mut looks = MAX_READS;
        loop {
            // Promises before counts: a page that a job takes in between counts as taken twice, and
            // never as free.
            let seen = match self.observed.read(&self.provider, domain) {
                Ok(seen) => seen,
                Err(error) => {
                    tracing::warn!(%error, "cannot see the kernel's free pages");
                    self.observed.counts.remove(&domain);
                    return (promised, Counts::default());
                }
            };
            self.observed.counts.insert(domain, seen);
            looks -= 1;
            let now = self.promised(domain);
            if now == promised || looks == 0 {
                return (promised, seen);
            }
            promised = now;
        }
    }

    /// Pages that jobs and the new files of loans have yet to take from the kernel.
    pub(super) fn promised(&self, domain: Domain) -> Pages {
        let taken = |block| self.store.allocated(block, domain.page_size).unwrap_or_default();
        let here = |b: &&book::block::Block| b.pool().domain() == domain;
        let zeroing = self.book.in_state(StateName::Zeroing).filter(here);
        let filling = self.loans.filling().filter_map(|(id, pages)| {
            self.book.block(id).filter(here).map(|b| pages.saturating_sub(taken(b.id())))
        });
        zeroing.map(|b| b.pages().saturating_sub(taken(b.id()))).chain(filling).sum()
    }
}
