// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asked for a loan, as an operator knows it: process, command, control group, since when.
//!
//! A number is noted when a loan is granted, which costs nothing; what it stands for is looked up
//! when somebody asks. Who asked for a loan before a restart is not known.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use linux::holders::Identity;
use linux::process::Process;
use units::{Domain, LeaseId, Pages, Uid};
use wire::LoanStatus;

/// So many lines about loans in each of these.
const LINES: usize = 8;
const QUIET: Duration = Duration::from_secs(10);
/// The most processes that are looked up, those of the youngest loans: 80 us each.
const MOST: usize = 1024;
/// Looking them up takes at most one part in so many of a CPU's time.
const SHARE: u32 = 5;

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
struct Borrower {
    pid: Option<u32>,
    /// When, since the machine started.
    since: Duration,
}

/// The borrowers of this daemon's loans.
#[derive(Debug, Default)]
pub(crate) struct Borrowers {
    of: BTreeMap<LeaseId, Borrower>,
    /// The processes of them, as of the last look.
    known: BTreeMap<u32, Process>,
    is_looking: bool,
    /// When they may be looked up again.
    next_look: Option<Instant>,
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

    /// The process that asked for a loan.
    pub(crate) fn pid(&self, lease: LeaseId) -> Option<u32> {
        self.of.get(&lease)?.pid
    }

    /// The same as it was at the last look. One that began after the loan has got the number of one
    /// that has ended.
    pub(crate) fn process(&self, lease: LeaseId) -> Option<&Process> {
        let borrower = self.of.get(&lease)?;
        self.known.get(&borrower.pid?).filter(|process| process.began <= borrower.since)
    }

    /// The processes to look up, for [`end_look`](Self::end_look) to be told of; none while that is
    /// being done, or was a moment ago.
    pub(crate) fn begin_look(&mut self) -> Option<BTreeSet<u32>> {
        if self.is_looking || self.next_look.is_some_and(|at| Instant::now() < at) {
            return None;
        }
        let pids: BTreeSet<_> =
            self.of.values().rev().filter_map(|borrower| borrower.pid).take(MOST).collect();
        self.is_looking = !pids.is_empty();
        self.is_looking.then_some(pids)
    }

    /// What a look that took so long has found.
    pub(crate) fn end_look(&mut self, known: BTreeMap<u32, Process>, took: Duration) {
        (self.known, self.is_looking) = (known, false);
        self.next_look = Some(Instant::now() + took * (SHARE - 1));
    }

    /// What is known without a look at anything.
    pub(crate) fn tell(&self, loans: &mut [LoanStatus], now: Duration) {
        for loan in loans {
            let Some(borrower) = self.of.get(&loan.lease) else { continue };
            loan.pid = borrower.pid;
            loan.age = Some(now.saturating_sub(borrower.since));
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

    #[test]
    fn processes_are_looked_up_once_for_all_who_ask() {
        let mut borrowers = Borrowers::default();
        assert_eq!(borrowers.begin_look(), None, "nobody has borrowed");
        let at = Duration::from_secs;
        borrowers.insert(LeaseId(1), Some(7), at(10));
        borrowers.insert(LeaseId(2), Some(7), at(30));
        assert_eq!(borrowers.begin_look(), Some(BTreeSet::from([7])));
        assert_eq!(borrowers.begin_look(), None, "it goes on");
        let process = Process { uid: 1, command: "qemu".to_owned(), cgroup: None, began: at(20) };
        borrowers.end_look(BTreeMap::from([(7, process.clone())]), at(60));
        let pause = borrowers.next_look.unwrap().saturating_duration_since(Instant::now());
        assert!(at(200) < pause && pause <= at(240), "a fifth of a CPU's time, and not {pause:?}");
        assert_eq!(borrowers.begin_look(), None, "it took long");
        assert_eq!(borrowers.process(LeaseId(1)), None, "a number that was given anew");
        assert_eq!(borrowers.process(LeaseId(2)), Some(&process));
    }

    #[test]
    fn who_asked_for_a_loan_is_known_until_it_ends() {
        let mut borrowers = Borrowers::default();
        borrowers.insert(LeaseId(1), Some(7), Duration::from_secs(10));
        borrowers.insert(LeaseId(2), None, Duration::from_secs(30));
        let loan = |lease| LoanStatus { lease, ..LoanStatus::default() };
        let told = |borrowers: &Borrowers| {
            let mut loans = [loan(LeaseId(1)), loan(LeaseId(2)), loan(LeaseId(3))];
            borrowers.tell(&mut loans, Duration::from_secs(31));
            loans.map(|loan| (loan.pid, loan.age.map(|age| age.as_secs())))
        };
        assert_eq!(told(&borrowers), [(Some(7), Some(21)), (None, Some(1)), (None, None)]);
        assert_eq!([1, 2].map(|id| borrowers.pid(LeaseId(id))), [Some(7), None]);
        borrowers.remove(LeaseId(1));
        assert_eq!(borrowers.pid(LeaseId(1)), None);
        assert_eq!(told(&borrowers)[0], (None, None));
    }
}
