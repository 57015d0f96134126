// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asked for a loan, as an operator knows it: process, command, control group, since when.
//!
//! A number is noted when a loan is granted, which costs nothing; what it stands for is looked up
//! when somebody asks. Who asked for a loan before a restart is not known.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use linux::holders::Identity;
use units::{Domain, LeaseId, Pages, Uid};
use wire::LoanStatus;

/// So many lines about loans in each of these.
const LINES: usize = 8;
const QUIET: Duration = Duration::from_secs(10);

/// A block's file that somebody may have.
#[derive(Debug)]
pub(crate) struct LentFile {
    pub(crate) lease: Option<LeaseId>,
    /// Its borrower.
    pub(crate) uid: Option<Uid>,
    pub(crate) lingers: bool,
    /// Whether nothing but pins holds it.
    pub(crate) is_pinned: bool,
    pub(crate) domain: Domain,
    pub(crate) pages: Pages,
    pub(crate) identity: Identity,
}

/// Who asked for a loan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Borrower {
    pub(crate) pid: Option<u32>,
    /// When, since the machine started.
    pub(crate) since: Duration,
}

/// The borrowers of this daemon's loans.
#[derive(Debug, Default)]
pub(crate) struct Borrowers {
    of: BTreeMap<LeaseId, Borrower>,
    /// When the latest lines about loans were written.
    told: VecDeque<Instant>,
    untold: u64,
}

impl Borrowers {
    pub(crate) fn insert(&mut self, lease: LeaseId, pid: Option<u32>, since: Duration) {
        self.of.insert(lease, Borrower { pid, since });
    }

    pub(crate) fn remove(&mut self, lease: LeaseId) {
        self.of.remove(&lease);
    }

    pub(crate) fn get(&self, lease: LeaseId) -> Option<Borrower> {
        self.of.get(&lease).copied()
    }

    /// What is known without a look at anything.
    pub(crate) fn tell(&self, loans: &mut [LoanStatus], now: Duration) {
        for loan in loans {
            let Some(borrower) = self.of.get(&LeaseId(loan.lease)) else { continue };
            loan.pid = borrower.pid;
            loan.age_seconds = Some(now.saturating_sub(borrower.since).as_secs());
        }
    }

    /// Whether there is room for another line about a loan, and how many had none since the last.
    pub(crate) fn may_tell(&mut self) -> Option<u64> {
        self.told.retain(|at| at.elapsed() < QUIET);
        if self.told.len() >= LINES {
            self.untold += 1;
            return None;
        }
        self.told.push_back(Instant::now());
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_loans_are_bounded_and_those_left_out_are_counted() {
        let mut borrowers = Borrowers::default();
        let told = (0..20).filter(|_| borrowers.may_tell().is_some()).count();
        assert_eq!(told, LINES);
        borrowers.told.clear();
        assert_eq!(borrowers.may_tell(), Some(12));
    }
}
