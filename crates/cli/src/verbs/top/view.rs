// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The content of the screen, apart from the drawing.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use units::{Bytes, Node, PageSize};
use wire::{LoanStatus, PoolStatus, Status};

use super::feed::Update;
use super::history::History;
use super::rates::{Rates, Sampler};

/// A daemon that has not answered for this long is shown as one that does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);

/// What a number is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Zero,
    Release,
    Ready,
    ReadyLow,
    ReadyHigh,
    LeaveFree,
}

/// A question and the answer so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) question: Question,
    pub(super) typed: String,
}

/// What the arrows move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Focus {
    Pools,
    Loans,
}

/// The order of loans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Newest,
    Largest,
    Unbacked,
    User,
    Command,
}

impl Order {
    /// The next one; the first follows the last.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Newest => Self::Largest,
            Self::Largest => Self::Unbacked,
            Self::Unbacked => Self::User,
            Self::User => Self::Command,
            Self::Command => Self::Newest,
        }
    }

    /// As the screen names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest first",
            Self::Largest => "largest first",
            Self::Unbacked => "most unbacked first",
            Self::User => "by user",
            Self::Command => "by command",
        }
    }
}

/// Everything that is drawn.
#[derive(Debug)]
pub(super) struct View {
    pub(super) socket: PathBuf,
    /// The last state seen, perhaps of a daemon that is gone.
    pub(super) status: Option<Status>,
    pub(super) rates: Rates,
    /// Why there is no daemon.
    pub(super) gone: Option<String>,
    /// Since when an answer is waited for.
    asked: Option<Instant>,
    /// Ready and lent memory of the last minutes.
    pub(super) history: History,
    /// The chosen pool's place in the list.
    pub(super) chosen: usize,
    pub(super) focus: Focus,
    pub(super) order: Order,
    /// How many loans are scrolled past.
    pub(super) scrolled: usize,
    /// Whether the keys are shown in place of the loans.
    pub(super) help: bool,
    pub(super) prompt: Option<Prompt>,
    /// What became of the last key.
    pub(super) message: Option<String>,
    /// What this process zeroes itself.
    pub(super) zeroing: Option<Bytes>,
    sampler: Sampler,
}

impl View {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            status: None,
            rates: Rates::default(),
            gone: None,
            asked: None,
            history: History::default(),
            chosen: 0,
            focus: Focus::Pools,
            order: Order::Newest,
            scrolled: 0,
            help: false,
            prompt: None,
            message: None,
            zeroing: None,
            sampler: Sampler::default(),
        }
    }

    pub(super) fn hear(&mut self, update: Update) {
        match update {
            Update::Status(status) => {
                self.rates = self.sampler.add(&status, Instant::now());
                self.history.add(&status);
                self.chosen = self.chosen.min(status.pools.len().saturating_sub(1));
                self.scrolled = self.scrolled.min(status.loans.len().saturating_sub(1));
                self.status = Some(*status);
                (self.gone, self.asked) = (None, None);
            }
            Update::Answer(line) => self.say(line),
            Update::Asked => self.asked = self.asked.or_else(|| Some(Instant::now())),
            Update::Gone(why) => (self.gone, self.asked) = (Some(why), None),
        }
    }

    /// For how many seconds the daemon has not answered, once that is remarkable.
    pub(super) fn silent_seconds(&self) -> Option<u64> {
        let time = self.asked?.elapsed();
        (time >= ANSWER_TIMEOUT).then_some(time.as_secs())
    }

    /// The loans in the chosen order.
    pub(super) fn loans(&self) -> Vec<&LoanStatus> {
        let mut loans: Vec<_> = self.status.iter().flat_map(|status| &status.loans).collect();
        // Numbers grow: the newest loan has the largest.
        loans.sort_by_key(|loan| Reverse(loan.lease));
        match self.order {
            Order::Newest => {}
            Order::Largest => loans.sort_by_key(|loan| Reverse(loan.pages.bytes(loan.page_size))),
            Order::Unbacked => {
                loans.sort_by_key(|loan| Reverse(loan.unbacked_pages.bytes(loan.page_size)));
            }
            Order::User => loans.sort_by_key(|loan| loan.uid),
            Order::Command => loans.sort_by(|one, other| one.command.cmp(&other.command)),
        }
        loans
    }

    pub(super) fn say(&mut self, line: String) {
        self.message = Some(line);
    }

    pub(super) fn pools(&self) -> &[PoolStatus] {
        self.status.as_ref().map(|status| &status.pools[..]).unwrap_or_default()
    }

    /// The chosen pool.
    pub(super) fn pool(&self) -> Option<&PoolStatus> {
        self.pools().get(self.chosen)
    }
}

/// The node and page size of a pool.
pub(super) fn shape(pool: &PoolStatus) -> (Node, PageSize) {
    (pool.node, pool.page_size)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use units::{LeaseId, Pages};
    use wire::{Counters, LoanStatus};

    fn pool(node: u32, page_bytes: u64, pages_per_block: u64) -> PoolStatus {
        PoolStatus {
            node: Node(node),
            page_size: PageSize::new(page_bytes).expect("a page size"),
            pages_per_block: Pages(pages_per_block),
            recycle: wire::Recycle::Fresh,
            zeroable_pages: Pages(16),
            zeroing_pages: Pages(8),
            ready_pages: Pages(24),
            lent_pages: Pages(12),
            kept_pages: Pages(3),
            draining_pages: Pages(1),
            blocks: 6,
            ready_low: Pages(8),
            ready_high: Pages(32),
            leave_free: Pages(2),
            kernel_free_pages: Pages(18),
            ..PoolStatus::default()
        }
    }

    /// A daemon with three pools and some loans.
    pub(in super::super) fn status() -> Status {
        let loan = |lease: u64, owner: Option<&str>| LoanStatus {
            lease: LeaseId(lease),
            owner: owner.map(str::to_owned),
            page_size: PageSize::GIB_1,
            pages: Pages(8),
            blocks: 1,
            unbacked_pages: Pages(1),
            age: Some(std::time::Duration::from_secs(7300)),
            pid: Some(4242),
            command: Some("postgres".to_owned()),
            cgroup: Some("/machine.slice/vm-17.scope".to_owned()),
            ..LoanStatus::default()
        };
        let idle = PoolStatus {
            zeroable_pages: Pages(0),
            zeroing_pages: Pages(0),
            ready_pages: Pages(0),
            lent_pages: Pages(0),
            kept_pages: Pages(0),
            draining_pages: Pages(0),
            mapped_pages: Pages(0),
            pinned_pages: Pages(0),
            ..pool(1, 2 << 20, 512)
        };
        Status {
            pools: vec![pool(0, 1 << 30, 8), pool(1, 1 << 30, 8), idle],
            loans: vec![loan(17, None), loan(18, Some("db"))],
            workers: 2,
            counters: Counters { loans: 21, lost_workers: 1, refusals: 2, ..Counters::default() },
            ..crate::verbs::status::tests::idle()
        }
    }

    /// The content of the screen after one look.
    pub(in super::super) fn view() -> View {
        let mut view = View::new("/run/prezero/io.prezero".into());
        view.hear(Update::Status(Box::new(status())));
        view.rates = Rates {
            zeroed_bytes_per_second: 3.9e9,
            loans_per_second: 1.5,
            refusals_per_second: 0.0,
            hit_rate: Some(0.98),
        };
        view
    }

    #[test]
    fn loans_are_sorted_by_each_order() {
        let mut view = view();
        let leases = |view: &View| view.loans().iter().map(|loan| loan.lease.0).collect::<Vec<_>>();
        let loans = &mut view.status.as_mut().expect("it was seen").loans;
        (loans[0].pages, loans[0].uid) = (Pages(9), units::Uid(2));
        (loans[1].unbacked_pages, loans[1].command) = (Pages(7), Some("mysqld".into()));
        for (name, expected) in [
            ("newest first", [18, 17]),
            ("largest first", [17, 18]),
            ("most unbacked first", [18, 17]),
            ("by user", [18, 17]),
            ("by command", [18, 17]),
        ] {
            assert_eq!((view.order.name(), leases(&view)), (name, expected.to_vec()));
            view.order = view.order.next();
        }
        assert_eq!(view.order, Order::Newest);
    }

    #[test]
    fn unanswered_question_is_remarkable_after_a_while() {
        let mut view = view();
        view.hear(Update::Asked);
        assert_eq!(view.silent_seconds(), None);
        view.asked = Instant::now().checked_sub(Duration::from_secs(3));
        view.hear(Update::Asked);
        assert_eq!(view.silent_seconds(), Some(3));
        view.hear(Update::Status(Box::new(status())));
        assert_eq!(view.silent_seconds(), None);
    }

    #[test]
    fn lost_daemon_keeps_the_last_values_on_screen() {
        let mut view = view();
        view.hear(Update::Gone("no daemon".into()));
        assert!(view.status.is_some() && view.gone.is_some());
        view.hear(Update::Status(Box::new(status())));
        assert_eq!(view.gone, None);
    }

    #[test]
    fn the_chosen_pool_is_one_that_there_is() {
        let mut view = view();
        view.chosen = 2;
        let fewer = Status { pools: vec![pool(0, 1 << 30, 8)], ..status() };
        view.hear(Update::Status(Box::new(fewer)));
        assert_eq!(view.chosen, 0);
        view.hear(Update::Status(Box::new(Status { pools: vec![], ..status() })));
        assert_eq!(view.pool(), None);
    }
}
