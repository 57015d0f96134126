// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asked for a loan, as an operator knows it: process, command, control group, since when.
//!
//! A number is recorded when a loan is granted, which costs nothing; its process is looked up on
//! request. The borrowers of loans from before a restart are unknown.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use linux::holders::Identity;
use linux::process::Process;
use units::{Domain, LeaseId, Pages, Uid};
use wire::LoanStatus;

/// The number of lines about loans in each of these.
const MAX_LOG_LINES: usize = 8;
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The most processes that are looked up, those of the youngest loans: 80 us each.
const MAX_PROCESSES: usize = 1024;
/// Looking them up takes at most one part in this number of a CPU's time.
const MAX_TIME_SHARE: u32 = 5;

/// A block's file that a process may have.
#[derive(Debug)]
pub(crate) struct LentFile {
    pub(crate) lease: Option<LeaseId>,
    /// Its borrower.
    pub(crate) uid: Option<Uid>,
    pub(crate) draining: bool,
    /// Whether only pins hold it.
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
    reported: VecDeque<Instant>,
    unlogged: u64,
}

impl Borrowers {
    pub(crate) fn insert(&mut self, lease: LeaseId, pid: Option<u32>, since: Duration) {
        self.of.insert(lease, Borrower { pid, since });
    }

    /// Forgets a loan that ends `now`. Returns for how long it was lent, if that is known.
    pub(crate) fn remove(&mut self, lease: LeaseId, now: Duration) -> Option<Duration> {
        Some(now.saturating_sub(self.of.remove(&lease)?.since))
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

    /// The processes to look up, for [`end_lookup`](Self::end_lookup) to be told of; none while
    /// that is being done, or was a moment ago.
    pub(crate) fn begin_lookup(&mut self) -> Option<BTreeSet<u32>> {
        if self.is_looking || self.next_look.is_some_and(|at| Instant::now() < at) {
            return None;
        }
        let pids: BTreeSet<_> = self
            .of
            .values()
            .rev()
            .filter_map(|borrower| borrower.pid)
            .take(MAX_PROCESSES)
            .collect();
        self.is_looking = !pids.is_empty();
        self.is_looking.then_some(pids)
    }

    /// The findings of a look and its duration.
    pub(crate) fn end_lookup(&mut self, known: BTreeMap<u32, Process>, took: Duration) {
        (self.known, self.is_looking) = (known, false);
        self.next_look = Some(Instant::now() + took * (MAX_TIME_SHARE - 1));
    }

    /// The present knowledge, without a look.
    pub(crate) fn fill_in(&self, loans: &mut [LoanStatus], now: Duration) {
        for loan in loans {
            let Some(borrower) = self.of.get(&loan.lease) else { continue };
            loan.pid = borrower.pid;
            loan.age = Some(now.saturating_sub(borrower.since));
        }
    }

    /// Whether there is room for another line about a loan, and how many had none since the last.
    pub(crate) fn log_budget(&mut self) -> Option<u64> {
        self.reported.retain(|at| at.elapsed() < LOG_INTERVAL);
        if self.reported.len() >= MAX_LOG_LINES {
            self.unlogged += 1;
            return None;
        }
        self.reported.push_back(Instant::now());
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise P121.
    #[test]
    fn log_lines_about_loans_are_bounded_and_omitted_ones_counted() {
        let mut borrowers = Borrowers::default();
        let reported = (0..20).filter(|_| borrowers.log_budget().is_some()).count();
        assert_eq!(reported, MAX_LOG_LINES);
        borrowers.reported.clear();
        assert_eq!(borrowers.log_budget(), Some(12));
    }

    // Promise P120.
    #[test]
    fn processes_are_looked_up_once_for_concurrent_callers() {
        let mut borrowers = Borrowers::default();
        assert_eq!(borrowers.begin_lookup(), None, "nobody has borrowed");
        let at = Duration::from_secs;
        borrowers.insert(LeaseId(1), Some(7), at(10));
        borrowers.insert(LeaseId(2), Some(7), at(30));
        assert_eq!(borrowers.begin_lookup(), Some(BTreeSet::from([7])));
        assert_eq!(borrowers.begin_lookup(), None, "it goes on");
        let process = Process { uid: 1, command: "qemu".to_owned(), cgroup: None, began: at(20) };
        borrowers.end_lookup(BTreeMap::from([(7, process.clone())]), at(60));
        let pause = borrowers.next_look.unwrap().saturating_duration_since(Instant::now());
        assert!(at(200) < pause && pause <= at(240), "a fifth of a CPU's time, and not {pause:?}");
        assert_eq!(borrowers.begin_lookup(), None, "it took long");
        assert_eq!(borrowers.process(LeaseId(1)), None, "a number that was given anew");
        assert_eq!(borrowers.process(LeaseId(2)), Some(&process));
    }

    #[test]
    fn borrower_of_a_loan_is_known_until_it_ends() {
        let mut borrowers = Borrowers::default();
        borrowers.insert(LeaseId(1), Some(7), Duration::from_secs(10));
        borrowers.insert(LeaseId(2), None, Duration::from_secs(30));
        let loan = |lease| LoanStatus { lease, ..LoanStatus::default() };
        let reported = |borrowers: &Borrowers| {
            let mut loans = [loan(LeaseId(1)), loan(LeaseId(2)), loan(LeaseId(3))];
            borrowers.fill_in(&mut loans, Duration::from_secs(31));
            loans.map(|loan| (loan.pid, loan.age.map(|age| age.as_secs())))
        };
        assert_eq!(reported(&borrowers), [(Some(7), Some(21)), (None, Some(1)), (None, None)]);
        assert_eq!([1, 2].map(|id| borrowers.pid(LeaseId(id))), [Some(7), None]);
        let at = Duration::from_secs(31);
        assert_eq!(borrowers.remove(LeaseId(1), at), Some(Duration::from_secs(21)));
        assert_eq!(borrowers.remove(LeaseId(1), at), None);
        assert_eq!(borrowers.pid(LeaseId(1)), None);
        assert_eq!(reported(&borrowers)[0], (None, None));
    }
}
