// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One node as the daemon keeps it: the shipping book, workers of a given speed, and a kernel's
//! pool that is a number.
//!
//! It takes the place of the daemon's shell: it asks the book, carries out the effects, and
//! reports them. Pages that a loan's unbacked part has count as taken at once, as the kernel
//! promises them.

use std::collections::HashMap;

use book::block::Reach;
use book::config::{ConfigError, PoolConfig, ReadyLearning};
use book::{Asked, Book, Effect, JobOrder, Requester};
use clap::ValueEnum;
use serde::Serialize;
use units::{BlockId, Bytes, Counts, Domain, JobId, LeaseId, Node, PageSize, Pages, PoolKey, Uid};
use wire::{LendRequest, ZeroBy};

/// How much a pool keeps ready at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadyPolicy {
    /// The same amount all day: `ready = "64G"`
    #[default]
    Constant,
    /// What the days before asked for at that time: `ready = { learn = "day", max = "64G" }`
    Day,
    /// What comes next, just in time: no daemon can know it, and none does better
    Oracle,
}

impl ReadyPolicy {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Day => "day",
            Self::Oracle => "oracle",
        }
    }
}

/// What all nodes of a fleet are like.
#[derive(Debug, Clone, Copy)]
pub struct NodeKind {
    /// The size of its pages.
    pub page_size: PageSize,
    /// The huge pages of the node.
    pub memory: Bytes,
    /// The pages of one block; 0 where the pool learns its sizes from the loans, as `ready` says.
    pub pages_per_block: Pages,
    /// Workers start when less than this is ready. Pools that learn their sizes have none.
    pub ready_low: Bytes,
    /// Workers stop when this much is ready.
    pub ready_high: Bytes,
    /// Its workers.
    pub workers: u32,
    /// Bytes that one worker zeroes in a second by allocating.
    pub rate: f64,
    /// The same for clearing in place.
    pub rate_in_place: f64,
    /// Whether returned blocks are cleared where they lie.
    pub in_place: bool,
    /// Whether a loan must be one file.
    pub single: bool,
    /// How much is kept ready at a time, of at most `ready_high`.
    pub policy: ReadyPolicy,
}

impl NodeKind {
    fn pages(&self, bytes: Bytes) -> Pages {
        bytes.whole_pages(self.page_size)
    }

    const DOMAIN_NODE: Node = Node(0);

    fn domain(&self) -> Domain {
        Domain { node: Self::DOMAIN_NODE, page_size: self.page_size }
    }

    /// Whether the pool learns the sizes of its blocks.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.pages_per_block == Pages::ZERO
    }

    fn pool(&self) -> PoolConfig {
        let Domain { node, page_size } = self.domain();
        let key = PoolKey { node, page_size, pages_per_block: self.pages_per_block };
        PoolConfig {
            ready_low: (!self.learns()).then(|| self.pages(self.ready_low)),
            ready_high: self.pages(self.ready_high),
            recycle: recycle(self.in_place),
            learns: (self.policy == ReadyPolicy::Day).then_some(ReadyLearning::Day),
            ..PoolConfig::new(key)
        }
    }
}

fn recycle(in_place: bool) -> book::config::Recycle {
    if in_place { book::config::Recycle::InPlace } else { book::config::Recycle::Fresh }
}

/// A loan that was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostLoan {
    pub(crate) lease: LeaseId,
    /// What of it was ready.
    pub(crate) ready: Bytes,
}

/// Work for a worker: when it will be done, counted from now, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) job: JobId,
    pub(crate) seconds: f64,
}

/// A node.
#[derive(Debug)]
pub(crate) struct Host {
    kind: NodeKind,
    book: Book,
    /// The pages of every file.
    files: HashMap<BlockId, Pages>,
    held: Pages,
    running: u32,
    /// Pages in borrowers' hands.
    lent: Pages,
    /// What the oracle knows.
    foreseen: Foreseen,
}

impl Host {
    /// A node with a pool that is filled to its thresholds.
    pub(crate) fn new(kind: NodeKind) -> Result<Self, ConfigError> {
        let book = Book::new([kind.pool()], true)?;
        let none = Pages::ZERO;
        let (files, running) = (HashMap::new(), 0);
        let foreseen = Foreseen::default();
        let mut host = Self { kind, book, files, held: none, running, lent: none, foreseen };
        host.observe();
        // Pages are zeroed before the trace begins, at no cost.
        loop {
            let begun = host.begin();
            if begun.is_empty() {
                break;
            }
            begun.iter().for_each(|begun| host.finish(begun.job));
        }
        Ok(host)
    }

    /// Tells the oracle all loans that will come here, by arrival in seconds. Returns the times at
    /// which it wants more.
    pub(crate) fn foresee(&mut self, loans: &[(f64, Bytes)]) -> Vec<f64> {
        self.foreseen = Foreseen::new(loans, self.kind.rate);
        self.pass(0.0);
        self.foreseen.begins()
    }

    /// Has as much to keep ready as the policy wants at a time, in seconds.
    pub(crate) fn pass(&mut self, now: f64) {
        match self.kind.policy {
            ReadyPolicy::Constant => {}
            ReadyPolicy::Day => {
                self.book.pass_time(whole(now));
            }
            ReadyPolicy::Oracle => self.keep(self.foreseen.wanted(now)),
        }
    }

    /// Keeps `bytes` ready, and gives back ready memory beyond them.
    fn keep(&mut self, bytes: Bytes) {
        let kind = self.kind;
        // A pool that was told to have nothing ready forgets the sizes that it has learnt.
        let bytes = bytes.max(MIN_READY).min(kind.ready_high);
        let wanted = kind.pages(bytes);
        let mut config = kind.pool();
        if self.book.pool_config(config.key()).is_some_and(|pool| pool.ready_high == wanted) {
            return;
        }
        config.ready_high = wanted;
        config.ready_low = config.ready_low.map(|low| low.min(wanted));
        // The thresholds of a good pool, and lower ones.
        if self.book.configure(config).is_err() {
            return;
        }
        let beyond = self.kind.pages(self.ready()).saturating_sub(wanted);
        if beyond > Pages::ZERO {
            let (_, effects) = self.book.release(None, None, beyond);
            self.carry_out(&effects);
        }
    }

    /// Bytes ready now.
    pub(crate) fn ready(&self) -> Bytes {
        let key = self.kind.pool().key();
        let pages =
            self.book.pool_status(key, &Counts::default()).map_or(0, |pool| pool.ready_pages.0);
        Pages(pages).bytes(self.kind.page_size)
    }

    /// What borrowers have.
    pub(crate) fn lent(&self) -> Bytes {
        self.lent.bytes(self.kind.page_size)
    }

    /// A loan, or `None` where the book refuses it.
    pub(crate) fn lend(&mut self, bytes: Bytes) -> Option<HostLoan> {
        let request = LendRequest {
            page_size: Some(self.kind.page_size),
            node: Some(NodeKind::DOMAIN_NODE),
            single: self.kind.single,
            ..LendRequest::new(bytes)
        };
        let root = Uid(0);
        let asked = Asked {
            request,
            uid: root,
            account: root,
            quota: None,
            await_owner: false,
            named: None,
        };
        let (loan, effects) = self.book.lend(&asked).ok()?;
        self.carry_out(&effects);
        self.lent += loan.parts.iter().map(|part| part.pages).sum();
        let ready: Pages = loan.parts.iter().map(|part| part.ready).sum();
        Some(HostLoan { lease: loan.lease, ready: ready.bytes(self.kind.page_size) })
    }

    /// Ends a loan that its borrower has returned and let go of.
    pub(crate) fn end(&mut self, lease: LeaseId) {
        let blocks = self.book.lease_blocks(lease);
        let effects = self.book.end_lease(lease);
        self.carry_out(&effects);
        for block in blocks {
            let Some(pages) = self.files.get(&block).copied() else { continue };
            self.lent = self.lent.saturating_sub(pages);
            self.book.record_memory(block, pages);
            if let Some((_, effects)) = self.book.settle(block, Reach::Sole, 0) {
                self.carry_out(&effects);
            }
        }
    }

    /// Gives every worker that should run something to do.
    pub(crate) fn begin(&mut self) -> Vec<Begun> {
        if self.kind.learns() {
            // As the daemon does in each pass: sizes that loans ask for replace others.
            let effects = self.book.relieve();
            self.carry_out(&effects);
        }
        let mut begun = Vec::new();
        while self.running < self.book.wanted_workers(self.kind.workers) {
            let Some((order, effects)) = self.book.take_zeroing(Requester::Background, None, None)
            else {
                break;
            };
            self.carry_out(&effects);
            self.running += 1;
            begun.push(Begun { job: order.job, seconds: self.seconds(&order) });
        }
        begun
    }

    fn seconds(&self, order: &JobOrder) -> f64 {
        let bytes = order.pages.saturating_sub(order.first).bytes(self.kind.page_size);
        let rate = match order.by() {
            ZeroBy::Clear => self.kind.rate_in_place,
            _ => self.kind.rate,
        };
        seconds(bytes, rate)
    }

    /// A worker has zeroed all of its job.
    pub(crate) fn finish(&mut self, job: JobId) {
        self.running = self.running.saturating_sub(1);
        let Some(pages) = self.book.job(job).map(|order| order.pages) else { return };
        if let Ok(Some((_, _, effects))) = self.book.finish_zeroing(job, pages, Reach::Sole) {
            self.carry_out(&effects);
        }
    }

    fn carry_out(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Create { block, pages, .. } | Effect::Resize { block, pages } => {
                    let was = self.files.insert(*block, *pages).unwrap_or_default();
                    self.held = self.held.saturating_sub(was) + *pages;
                }
                Effect::Remove(block) | Effect::Unlink(block) => {
                    let was = self.files.remove(block).unwrap_or_default();
                    self.held = self.held.saturating_sub(was);
                }
                Effect::Move(_) | Effect::Mark(_) => {}
            }
        }
        self.observe();
    }

    fn observe(&mut self) {
        let total = self.kind.pages(self.kind.memory);
        let available = total.saturating_sub(self.held);
        self.book.observe(self.kind.domain(), &Counts { total, available, ..Counts::default() });
    }
}

/// Seconds that the oracle is early: pages are zeroed in whole blocks.
const MARGIN_SECONDS: f64 = 30.0;
/// The least that the oracle keeps ready.
const MIN_READY: Bytes = Bytes(1 << 30);

/// The loans that will come, and what must be ready for them.
#[derive(Debug, Default)]
struct Foreseen {
    /// Each arrival in seconds, and the bytes that must be ready by then: of this loan, and of
    /// those behind it that cannot be zeroed in the time between.
    needs: Vec<(f64, f64)>,
    rate: f64,
}

impl Foreseen {
    fn new(loans: &[(f64, Bytes)], rate: f64) -> Self {
        let (mut backlog, mut next) = (0.0_f64, f64::INFINITY);
        let mut needs: Vec<_> = loans
            .iter()
            .rev()
            .map(|&(arrival, bytes)| {
                #[expect(clippy::cast_precision_loss, reason = "a need is no exact number")]
                let own = bytes.0 as f64;
                backlog = (backlog - rate * (next - arrival)).max(0.0) + own;
                next = arrival;
                (arrival, backlog)
            })
            .collect();
        needs.reverse();
        Self { needs, rate }
    }

    /// When zeroing for an arrival has to begin.
    fn begin(&self, (arrival, bytes): (f64, f64)) -> f64 {
        (arrival - bytes / self.rate - MARGIN_SECONDS).max(0.0)
    }

    fn begins(&self) -> Vec<f64> {
        self.needs.iter().map(|need| self.begin(*need)).collect()
    }

    fn wanted(&self, now: f64) -> Bytes {
        let next = self.needs.partition_point(|(arrival, _)| *arrival < now);
        let need = self.needs.get(next).filter(|need| self.begin(**need) <= now);
        Bytes(need.map_or(0, |(_, bytes)| whole(*bytes)))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates at both")]
fn whole(number: f64) -> u64 {
    number as u64
}

/// How long these bytes take at a rate, in seconds.
pub fn seconds(bytes: Bytes, rate: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a duration needs no more than 53 bits")]
    let bytes = bytes.0 as f64;
    bytes / rate
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn kind() -> NodeKind {
        NodeKind {
            page_size: PageSize::MIB_2,
            memory: Bytes(64 * GIB),
            pages_per_block: Pages(512),
            ready_low: Bytes(8 * GIB),
            ready_high: Bytes(16 * GIB),
            workers: 1,
            rate: 1e9,
            rate_in_place: 4e9,
            in_place: false,
            single: false,
            policy: ReadyPolicy::Constant,
        }
    }

    #[test]
    fn oracle_wants_a_loan_just_in_time() {
        let gib = |gib: u64| Bytes(gib * GIB);
        let rate = f64::from(1 << 30);
        // 8 GiB at 100, and 4 each 1 s later, which leaves time for one of them.
        let of = Foreseen::new(&[(100.0, gib(8)), (101.0, gib(4)), (102.0, gib(4))], rate);
        let needs: Vec<_> = of.needs.iter().map(|(at, need)| (*at, whole(*need) / GIB)).collect();
        assert_eq!(needs, [(100.0, 14), (101.0, 7), (102.0, 4)]);
        assert_eq!(of.begins()[0], 56.0);
        let wanted = [55.0, 56.0, 100.0, 100.5, 103.0].map(|now| of.wanted(now).0 / GIB);
        assert_eq!(wanted, [0, 14, 14, 7, 0]);
    }

    #[test]
    fn node_begins_full_lends_ready_pages_and_refills_below_low() {
        let mut host = Host::new(kind()).unwrap();
        assert_eq!(host.ready(), Bytes(16 * GIB));
        let first = host.lend(Bytes(10 * GIB)).unwrap();
        assert_eq!((first.ready, host.lent()), (Bytes(10 * GIB), Bytes(10 * GIB)));
        let begun = host.begin();
        assert_eq!(begun.len(), 1, "6 GiB are left, less than 8");
        assert!((begun[0].seconds - 1.0737).abs() < 1e-3, "a block of 1 GiB at 1 GB/s");
        host.finish(begun[0].job);
        assert_eq!(host.ready(), Bytes(7 * GIB));
    }

    #[test]
    fn unready_pages_are_a_hole_and_an_excess_is_refused() {
        let mut host = Host::new(kind()).unwrap();
        let loan = host.lend(Bytes(20 * GIB)).unwrap();
        assert_eq!((loan.ready, host.lent()), (Bytes(16 * GIB), Bytes(20 * GIB)));
        assert!(host.lend(Bytes(45 * GIB)).is_none(), "44 are left");
        host.end(loan.lease);
        assert_eq!((host.ready(), host.lent()), (Bytes(0), Bytes(0)), "fresh: all is the kernel's");
        assert!(host.lend(Bytes(64 * GIB)).is_some());
    }

    #[test]
    fn learnt_blocks_serve_the_next_loan_of_their_size() {
        let mut host =
            Host::new(NodeKind { pages_per_block: Pages::ZERO, single: true, ..kind() }).unwrap();
        // One file each: a block of another size has nothing of it ready.
        let mut ready = Bytes(0);
        for _ in 0..32 {
            let loan = host.lend(Bytes(3 * GIB)).unwrap();
            ready = loan.ready;
            host.end(loan.lease);
            loop {
                let begun = host.begin();
                if begun.is_empty() {
                    break;
                }
                begun.iter().for_each(|begun| host.finish(begun.job));
            }
        }
        assert_eq!(ready, Bytes(3 * GIB), "a later loan of one size");
    }

    #[test]
    fn in_place_the_returned_blocks_are_cleared_faster() {
        let mut host = Host::new(NodeKind { in_place: true, ..kind() }).unwrap();
        let loan = host.lend(Bytes(16 * GIB)).unwrap();
        host.end(loan.lease);
        let begun = host.begin();
        assert!((begun[0].seconds - 1.0737 / 4.0).abs() < 1e-3, "{begun:?}");
    }
}
