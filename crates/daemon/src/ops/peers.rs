// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What operations know of borrowers: their processes, quotas and waiting loans.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Instant;

use book::config::Config;
use units::{Bytes, Uid};

use super::Waiting;
use crate::peers::borrowers::Borrowers;

/// Looking up the memory of a user's files takes at most 1/20 of the daemon's time: with 4096
/// blocks at 1 us each, the next look is 80 ms later.
pub(super) const MAX_MEASURE_TIME_SHARE: u32 = 20;

/// Borrowers, and what bounds them.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// The processes that asked for loans.
    pub(crate) borrowers: Borrowers,
    /// Loans that wait for pages.
    pub(crate) waiting: Rc<Waiting>,
    /// What users may hold by their groups, as of their last requests.
    by_groups: BTreeMap<Uid, Option<Bytes>>,
    /// When the files of a user are measured again.
    pub(super) next_measure: BTreeMap<Uid, Instant>,
}

impl Peers {
    /// Notes the quota of an account's groups.
    pub(super) fn record_groups(&mut self, account: Uid, quota: Option<Bytes>) {
        self.by_groups.insert(account, quota);
    }

    /// The quota of an account.
    pub(super) fn quota(&self, account: Uid, config: &Config) -> Option<Bytes> {
        let by_groups = self.by_groups.get(&account).copied().unwrap_or(config.quota);
        config.quota_for(account, by_groups)
    }

    /// Forgets the groups of all other accounts.
    pub(super) fn retain(&mut self, accounts: &BTreeSet<Uid>) {
        self.by_groups.retain(|account, _| accounts.contains(account));
    }

    /// Whether an account's files are due for measuring: at most once within moments.
    pub(super) fn is_measure_due(&mut self, account: Uid) -> bool {
        let now = Instant::now();
        self.next_measure.retain(|_, next| *next > now);
        !self.next_measure.contains_key(&account)
    }

    /// A measurement that began at `begin` has ended.
    pub(super) fn record_measured(&mut self, account: Uid, begin: Instant) {
        let pause = begin.elapsed() * MAX_MEASURE_TIME_SHARE;
        self.next_measure.insert(account, Instant::now() + pause);
    }
}
