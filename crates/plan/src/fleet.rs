// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fleet of nodes and a trace of loans, event by event.
//!
//! A scheduler knows exactly how much of each node is lent, because it keeps that ledger, and how
//! much is ready as it was published last. A node refuses a loan while a worker has its pages. The
//! loan is placed once more after half a second, the daemon's wait, and counts as refused if that
//! fails, too.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use book::config::ConfigError;
use clap::ValueEnum;
use serde::Serialize;
use units::{Bytes, JobId, LeaseId};

use crate::host::{Begun, Host, NodeKind, ReadyPolicy, seconds};
use crate::trace::Ask;

/// Which node a loan goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The fullest node that has room
    Packed,
    /// The emptiest node
    Spread,
    /// The node that has just enough ready; packed if none has
    ReadyFirst,
}

impl Placement {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Packed => "packed",
            Self::Spread => "spread",
            Self::ReadyFirst => "ready-first",
        }
    }
}

/// A fleet.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    /// What each node is like.
    pub kind: NodeKind,
    /// How many nodes.
    pub nodes: usize,
    /// Which node a loan goes to.
    pub placement: Placement,
    /// Seconds until the scheduler knows of a change of ready pages.
    pub delay: f64,
    /// Bytes a second at which a borrower's own faults zero.
    pub fault_rate: f64,
}

/// What came out.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Loans of the trace.
    pub loans: usize,
    /// Loans that found no room.
    pub refused: usize,
    /// Bytes lent.
    pub bytes: u64,
    /// Those of them that were ready.
    pub ready_bytes: u64,
    /// What each loan's start took longer than with all of it ready, in seconds.
    pub added: Vec<f64>,
    /// CPU seconds of workers.
    pub zeroing: f64,
    /// Byte seconds that were ready and unlent.
    pub withheld: f64,
    /// From the first arrival to the last.
    pub seconds: f64,
    /// The node of each loan, in the order of the trace.
    pub placed: Vec<Option<usize>>,
    /// Whether all loans of the trace came; a run can be ended early.
    pub is_complete: bool,
}

/// How long a daemon waits for pages in transit, in seconds.
const MAX_WAIT_SECONDS: f64 = 0.5;
const MICROSECOND: f64 = 1e-6;
/// How often a node looks at the clock where its policy depends on it, in seconds.
const CLOCK_INTERVAL: f64 = 300.0;
/// Loans between two reports of progress.
const LOANS_PER_REPORT: usize = 256;

type Time = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Zeroed { node: usize, job: JobId },
    Ended { node: usize, lease: LeaseId },
    Published { node: usize },
    Again { ask: usize },
    Clock { node: usize },
}

/// Runs the trace.
///
/// # Errors
/// Where the configuration is one that the daemon would refuse.
pub fn run(fleet: &Fleet, asks: &[Ask]) -> Result<Outcome, ConfigError> {
    run_watched(fleet, asks, |_| true)
}

/// Runs the trace, or its beginning: `goes_on` hears how many loans came since its last call, and
/// ends the run by `false`.
///
/// # Errors
/// Those of [`run`].
pub fn run_watched(
    fleet: &Fleet,
    asks: &[Ask],
    mut goes_on: impl FnMut(usize) -> bool,
) -> Result<Outcome, ConfigError> {
    let mut run = Run::new(fleet)?;
    run.outcome.placed = vec![None; asks.len()];
    run.set_clocks(asks);
    let mut played = 0;
    for loans in asks.chunks(LOANS_PER_REPORT) {
        for (index, ask) in (played..).zip(loans) {
            let now = micros(ask.arrival);
            run.until(now, asks);
            run.place(index, asks, true);
        }
        played += loans.len();
        if !goes_on(loans.len()) {
            break;
        }
    }
    run.outcome.is_complete = played == asks.len();
    run.outcome.seconds = asks[..played].last().map_or(0.0, |ask| ask.arrival);
    run.until(micros(run.outcome.seconds + MAX_WAIT_SECONDS), asks);
    run.settle();
    Ok(run.outcome)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates at both")]
fn micros(seconds: f64) -> Time {
    (seconds / MICROSECOND).round() as Time
}

/// A number as a weight.
#[expect(clippy::cast_precision_loss, reason = "an average needs no more than 53 bits")]
fn real(number: u64) -> f64 {
    number as f64
}

struct Run<'a> {
    fleet: &'a Fleet,
    hosts: Vec<Host>,
    now: Time,
    events: BinaryHeap<Reverse<(Time, Event)>>,
    /// Bytes lent on each node: the scheduler's ledger.
    lent: Vec<u64>,
    by_lent: BTreeSet<(u64, usize)>,
    /// Bytes ready on each node, as published last.
    published: Vec<u64>,
    by_published: BTreeSet<(u64, usize)>,
    /// Whether a node's change is on its way.
    on_its_way: Vec<bool>,
    ready: Vec<u64>,
    ready_in_all: u64,
    withheld_until: Time,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(fleet: &'a Fleet) -> Result<Self, ConfigError> {
        let hosts =
            (0..fleet.nodes).map(|_| Host::new(fleet.kind)).collect::<Result<Vec<_>, _>>()?;
        let ready: Vec<_> = hosts.iter().map(|host| host.ready().0).collect();
        let count = hosts.len();
        Ok(Self {
            fleet,
            hosts,
            now: 0,
            events: BinaryHeap::new(),
            lent: vec![0; count],
            by_lent: (0..count).map(|node| (0, node)).collect(),
            by_published: ready.iter().copied().zip(0..).collect(),
            published: ready.clone(),
            on_its_way: vec![false; count],
            ready_in_all: ready.iter().sum(),
            ready,
            withheld_until: 0,
            outcome: Outcome::default(),
        })
    }

    /// Everything that happens up to a time.
    fn until(&mut self, end: Time, asks: &[Ask]) {
        while let Some(Reverse((time, event))) = self.events.peek().copied()
            && time <= end
        {
            self.events.pop();
            self.now = time;
            match event {
                Event::Zeroed { node, job } => {
                    self.hosts[node].finish(job);
                    self.changed(node);
                }
                Event::Ended { node, lease } => {
                    self.hosts[node].end(lease);
                    self.changed(node);
                }
                Event::Published { node } => {
                    self.on_its_way[node] = false;
                    self.publish(node);
                }
                Event::Again { ask } => self.place(ask, asks, false),
                Event::Clock { node } => {
                    self.changed(node);
                    if self.fleet.kind.policy == ReadyPolicy::Day {
                        self.after(CLOCK_INTERVAL, Event::Clock { node });
                    }
                }
            }
        }
        self.now = self.now.max(end);
    }

    /// Has nodes look at the clock as often as their policy needs it.
    fn set_clocks(&mut self, asks: &[Ask]) {
        match self.fleet.kind.policy {
            ReadyPolicy::Constant => {}
            ReadyPolicy::Day => {
                (0..self.hosts.len()).for_each(|node| self.after(0.0, Event::Clock { node }));
            }
            ReadyPolicy::Oracle => {
                let mut loans = vec![Vec::new(); self.hosts.len()];
                for ask in asks {
                    // One node has all of them.
                    let node = ask.node.or((self.hosts.len() == 1).then_some(0));
                    if let Some(loans) = node.and_then(|node| loans.get_mut(node)) {
                        loans.push((ask.arrival, ask.bytes));
                    }
                }
                for (node, loans) in loans.iter().enumerate() {
                    for begin in self.hosts[node].foresee(loans) {
                        self.after(begin, Event::Clock { node });
                    }
                }
            }
        }
    }

    fn place(&mut self, index: usize, asks: &[Ask], first: bool) {
        let ask = &asks[index];
        let granted = self.candidate(ask).and_then(|node| {
            let granted = self.hosts[node].lend(ask.bytes)?;
            Some((node, granted))
        });
        let Some((node, granted)) = granted else {
            if first {
                self.after(MAX_WAIT_SECONDS, Event::Again { ask: index });
            } else {
                self.outcome.loans += 1;
                self.outcome.refused += 1;
            }
            return;
        };
        self.outcome.placed[index] = Some(node);
        let unbacked = Bytes(ask.bytes.0.saturating_sub(granted.ready.0));
        let waited = if first { 0.0 } else { MAX_WAIT_SECONDS };
        self.outcome.loans += 1;
        self.outcome.bytes += ask.bytes.0;
        self.outcome.ready_bytes += granted.ready.0;
        self.outcome.added.push(waited + seconds(unbacked, self.fleet.fault_rate));
        if ask.lifetime.is_finite() {
            self.after(ask.lifetime, Event::Ended { node, lease: granted.lease });
        }
        self.changed(node);
    }

    fn candidate(&self, ask: &Ask) -> Option<usize> {
        if let Some(node) = ask.node {
            return (node < self.hosts.len()).then_some(node);
        }
        let most = self.fleet.kind.memory.0.checked_sub(ask.bytes.0)?;
        let packed =
            || self.by_lent.range(..=(most, usize::MAX)).next_back().map(|(_, node)| *node);
        match self.fleet.placement {
            Placement::Packed => packed(),
            Placement::Spread => {
                self.by_lent.first().filter(|(lent, _)| *lent <= most).map(|(_, node)| *node)
            }
            Placement::ReadyFirst => {
                // Published bytes may be gone; the check keeps out a node without room.
                let mut enough = self.by_published.range((ask.bytes.0, 0)..);
                let fits = |node: &usize| self.lent[*node] <= most;
                enough.find_map(|(_, node)| fits(node).then_some(*node)).or_else(packed)
            }
        }
    }

    fn after(&mut self, seconds: f64, event: Event) {
        self.events.push(Reverse((self.now.saturating_add(micros(seconds)), event)));
    }

    /// Follows a change of a node's counts: starts workers, updates the ledger, publishes.
    fn changed(&mut self, node: usize) {
        self.hosts[node].pass(real(self.now) * MICROSECOND);
        for Begun { job, seconds } in self.hosts[node].begin() {
            self.outcome.zeroing += seconds;
            self.after(seconds, Event::Zeroed { node, job });
        }
        self.settle();
        let (lent, ready) = (self.hosts[node].lent().0, self.hosts[node].ready().0);
        if lent != self.lent[node] {
            self.by_lent.remove(&(self.lent[node], node));
            self.by_lent.insert((lent, node));
            self.lent[node] = lent;
        }
        self.ready_in_all = self.ready_in_all - self.ready[node] + ready;
        self.ready[node] = ready;
        if ready != self.published[node] && !self.on_its_way[node] {
            if self.fleet.delay > 0.0 {
                self.on_its_way[node] = true;
                self.after(self.fleet.delay, Event::Published { node });
            } else {
                self.publish(node);
            }
        }
    }

    fn publish(&mut self, node: usize) {
        self.by_published.remove(&(self.published[node], node));
        self.published[node] = self.ready[node];
        self.by_published.insert((self.published[node], node));
    }

    /// Adds up the withheld byte seconds until now.
    fn settle(&mut self) {
        let passed = real(self.now - self.withheld_until) * MICROSECOND;
        self.outcome.withheld += passed * real(self.ready_in_all);
        self.withheld_until = self.now;
    }
}

impl Outcome {
    /// The share of lent bytes that were ready.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        real(self.ready_bytes) / real(self.bytes.max(1))
    }

    /// Bytes that were ready and unlent, on average over the time.
    #[must_use]
    pub fn withheld_bytes(&self) -> f64 {
        self.withheld / self.seconds.max(MICROSECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{PageSize, Pages};

    const GIB: u64 = 1 << 30;

    fn fleet(placement: Placement) -> Fleet {
        let kind = NodeKind {
            page_size: PageSize::MIB_2,
            memory: Bytes(40 * GIB),
            pages_per_block: Pages(512),
            ready_low: Bytes(8 * GIB),
            ready_high: Bytes(8 * GIB),
            workers: 1,
            rate: real(GIB),
            rate_in_place: real(GIB),
            in_place: false,
            single: false,
            policy: ReadyPolicy::Constant,
        };
        let fault_rate = 10.0 * real(GIB);
        Fleet { kind, nodes: 4, placement, delay: 0.0, fault_rate }
    }

    fn asks(at: &[(f64, u64, f64)]) -> Vec<Ask> {
        let ask = |&(arrival, gib, lifetime): &(f64, u64, f64)| Ask {
            arrival,
            bytes: Bytes(gib * GIB),
            lifetime,
            node: None,
        };
        at.iter().map(ask).collect()
    }

    #[test]
    fn packed_loans_meet_on_one_node_and_ready_first_ones_do_not() {
        // Four loans at once, each as large as what one node has ready.
        let at_once = asks(&[(0.0, 8, 9.0), (0.0, 8, 9.0), (0.0, 8, 9.0), (0.0, 8, 9.0)]);
        let rate = |placement| run(&fleet(placement), &at_once).unwrap().hit_rate();
        assert_eq!(rate(Placement::Packed), 0.25);
        assert_eq!(rate(Placement::Spread), 1.0);
        assert_eq!(rate(Placement::ReadyFirst), 1.0);
    }

    #[test]
    fn late_published_supply_is_believed_until_it_arrives() {
        let late = Fleet { delay: 60.0, ..fleet(Placement::ReadyFirst) };
        // Node 0 is empty after the first loan, and is asked again, because the news has not
        // arrived.
        let outcome = run(&late, &asks(&[(0.0, 8, 900.0), (0.1, 8, 900.0)])).unwrap();
        assert_eq!(outcome.hit_rate(), 0.5);
    }

    #[test]
    fn time_to_refill_makes_loans_ready_again() {
        let apart = |gap| {
            let trace = asks(&[(0.0, 8, 1.0), (gap, 8, 1.0)]);
            run(&Fleet { nodes: 1, ..fleet(Placement::Packed) }, &trace).unwrap()
        };
        assert_eq!(apart(20.0).hit_rate(), 1.0, "8 GiB take 8 s");
        let soon = apart(4.5);
        assert_eq!(soon.ready_bytes, 12 * GIB, "4 blocks were ready in 4.5 s");
        assert!((soon.added[1] - 0.4).abs() < 1e-9, "4 GiB at 10 GiB/s: {:?}", soon.added);
        assert!(soon.withheld_bytes() < real(8 * GIB), "{}", soon.withheld_bytes());
    }

    #[test]
    fn a_loan_larger_than_a_node_is_refused_and_no_other() {
        let trace = asks(&[(0.0, 41, 1.0), (1.0, 40, 1.0)]);
        let outcome = run(&fleet(Placement::Packed), &trace).unwrap();
        assert_eq!((outcome.loans, outcome.refused), (2, 1));
    }

    #[test]
    fn a_loan_stays_on_the_node_that_its_trace_names() {
        let mut trace = asks(&[(0.0, 8, 9.0), (0.0, 8, 9.0)]);
        trace.iter_mut().for_each(|ask| ask.node = Some(2));
        assert_eq!(run(&fleet(Placement::Spread), &trace).unwrap().hit_rate(), 0.5);
    }

    /// Ten days of one host: a loan of 1 GiB each ten minutes, and eight of 4 GiB at nine o'clock.
    fn days() -> Vec<Ask> {
        let mut at = Vec::new();
        for day in 0..10 {
            let day = f64::from(day) * 86_400.0;
            at.extend((0..144).map(|ten| (day + f64::from(ten) * 600.0, 1, 60.0)));
            at.extend((0..8).map(|one| (day + 32_400.5 + f64::from(one) / 10.0, 4, 1800.0)));
        }
        at.sort_by(|one, other| one.0.total_cmp(&other.0));
        asks(&at)
    }

    // Promise P386 (operator): In the plan's model, on loans that follow the day, a pool that
    // learns the day serves as a constant one of its maximum does, and keeps less than half as
    // much ready.
    #[test]
    fn learning_from_the_day_keeps_less_ready_for_the_same_hits() {
        let trace: Vec<_> = days().into_iter().map(|ask| Ask { node: Some(0), ..ask }).collect();
        let of = |policy, gib| {
            let kind = NodeKind {
                pages_per_block: Pages::ZERO,
                ready_high: Bytes(gib * GIB),
                policy,
                ..fleet(Placement::Packed).kind
            };
            let fleet = Fleet { nodes: 1, kind, ..fleet(Placement::Packed) };
            let outcome = run(&fleet, &trace).unwrap();
            (outcome.hit_rate(), outcome.withheld_bytes() / real(GIB))
        };
        let (constant, day, oracle) =
            (of(ReadyPolicy::Constant, 32), of(ReadyPolicy::Day, 32), of(ReadyPolicy::Oracle, 32));
        let small = of(ReadyPolicy::Constant, 4);
        let all = format!("{constant:?} {day:?} {oracle:?} {small:?}");
        assert!(constant.0 > 0.99 && day.0 > constant.0 - 0.005 && oracle.0 > 0.98, "{all}");
        assert!(small.0 < 0.9, "the burst is what matters: {all}");
        assert!(day.1 < 0.5 * constant.1 && oracle.1 < 0.2 * day.1, "{all}");
    }

    #[test]
    fn run_that_is_ended_early_counts_what_came_until_then() {
        let trace: Vec<_> = (0..1000).map(|at| (f64::from(at), 1, 1.0)).collect();
        let mut reports = Vec::new();
        let outcome = run_watched(&fleet(Placement::Packed), &asks(&trace), |loans| {
            reports.push(loans);
            reports.len() < 2
        });
        let outcome = outcome.unwrap();
        assert_eq!((outcome.loans, outcome.is_complete, outcome.seconds), (512, false, 511.0));
        assert_eq!(reports, [256, 256]);
        assert_eq!(outcome.placed[..512].iter().filter(|node| node.is_some()).count(), 512);
        assert!(run(&fleet(Placement::Packed), &asks(&trace)).unwrap().is_complete);
    }
}
