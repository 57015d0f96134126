// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports: the present state, for every api.

use std::collections::{BTreeMap, BTreeSet};

use book::block::StateName;
use units::{Counts, Domain, Pages, PoolKey, Uid};
use wire::{LoanStatus, PoolStatus, Status, UserStatus};

use super::health::Examined;
use super::{Shell, since_boot};
use crate::base::error::Result;

impl Shell {
    pub(crate) fn status(&mut self) -> Status {
        self.observed.expire();
        self.observe();
        let accounts: BTreeSet<_> = self.book.accounts().collect();
        self.peers.retain(&accounts);
        accounts.into_iter().for_each(|account| self.measure(account));
        let kernel = |key: &PoolKey| self.observed.counts(key.domain());
        let pool = |key| {
            let status = self.book.pool_status(key, &kernel(&key))?;
            Some(PoolStatus { resize: self.resize_status(key), ..status })
        };
        let pools = self.book.pool_keys().filter_map(pool);
        let mut loans = self.book.loans();
        self.peers.borrowers.fill_in(&mut loans, since_boot());
        let users = self.users(&loans);
        let pools: Vec<_> = pools.collect();
        let unknown_files = self.store.unknown().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot see what is on the mounts");
            0
        });
        let fresh_reason = self.fresh_reason();
        let (health, ailments) = self.health(Examined {
            pools: &pools,
            config: &self.config,
            totals: &self.totals(),
            drained: self.drain_mode.is_on(),
            paused: self.workers.paused,
            fresh_reason: fresh_reason.as_deref(),
            unknown_files,
        });
        Status {
            provider: self.provider.name(),
            kernel: self.provider.kernel(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            pools,
            levels: self.book.levels(),
            loans,
            users,
            workers: self.workers.running,
            paused_by_pressure: self.workers.paused,
            fresh_reason,
            drained: self.drain_mode.is_on(),
            tree: self.tree.as_ref().map(|path| path.display().to_string()),
            unknown_files,
            health,
            ailments,
            counters: self.book.counters(),
        }
    }

    /// The sizes of the kernel's pools, where they limit the daemon's.
    fn totals(&self) -> BTreeMap<Domain, Pages> {
        let total = |domain: Domain| (domain, self.observed.counts(domain).total);
        match self.provider.owns_pages() {
            true => self.book.domains().map(total).collect(),
            false => BTreeMap::new(),
        }
    }

    /// All users that hold memory.
    fn users(&self, loans: &[LoanStatus]) -> Vec<UserStatus> {
        let of = |account: Uid| UserStatus {
            uid: account,
            loans: loans.iter().filter(|loan| loan.account == account).count() as u64,
            held_bytes: self.book.held_by(account),
            quota_bytes: self.peers.quota(account, &self.config),
        };
        self.book.accounts().map(of).collect()
    }

    /// Why pools recycle fresh that are to recycle as is best, in one line.
    fn fresh_reason(&self) -> Option<String> {
        if !self.provider.recycles() {
            return None;
        }
        let mut missing = self.book.misses_pins_of();
        if !self.provable {
            let size = missing.next()?;
            return Some(format!("{size}: this kernel grants no leases on hugetlbfs"));
        }
        missing
            .find_map(|size| self.store.proofs().why_not(size).map(|why| format!("{size}: {why}")))
    }

    /// The domains that have a pool.
    pub(crate) fn domains(&self) -> Vec<Domain> {
        self.book.domains().collect()
    }

    /// The counts of a domain that has a pool, looked up now.
    pub(crate) fn domain(&mut self, domain: Domain) -> Option<Counts> {
        self.observed.expire();
        self.domain_lately(domain)
    }

    /// The same from counts seen a moment ago: for frequent callers.
    pub(crate) fn domain_lately(&mut self, domain: Domain) -> Option<Counts> {
        self.observe();
        self.book.domain(domain)
    }

    /// A domain's counts with those of the kernel around them: `free` counts unused pages, ours
    /// among them.
    pub(crate) fn domain_in_kernel(&mut self, domain: Domain) -> Result<Option<Counts>> {
        let Some(ours) = self.domain(domain) else { return Ok(None) };
        let seen = self.observed.read(&self.provider, domain)?;
        let here = |b: &&book::block::Block| b.pool().domain() == domain;
        let taken = self.book.in_state(StateName::Zeroing).filter(here);
        let taken = taken.map(|b| self.store.allocated(b.id(), domain.page_size));
        let taken: Pages = taken.map(Result::unwrap_or_default).sum();
        // What others do between the looks must not make a part larger than its whole.
        let parts = ours.ready + ours.zeroable + ours.zeroing;
        let free = (seen.free + ours.free + taken).max(parts);
        let total = self.provider.total(&seen, ours.lent).max(free);
        Ok(Some(Counts { free, reserved: seen.reserved, total, ..ours }))
    }
}
