// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The content of the screen, apart from the drawing.

use std::path::PathBuf;
use std::time::Instant;

use units::{Bytes, Node, PageSize};
use wire::{PoolStatus, Status};

use super::feed::Update;
use super::rates::{Rates, Sampler};

/// What a number is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Zero,
    Release,
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

/// Everything that is drawn.
#[derive(Debug)]
pub(super) struct View {
    pub(super) socket: PathBuf,
    /// The last state seen, perhaps of a daemon that is gone.
    pub(super) status: Option<Status>,
    pub(super) rates: Rates,
    /// Why there is no daemon.
    pub(super) gone: Option<String>,
    /// The chosen pool's place in the list.
    pub(super) chosen: usize,
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
            chosen: 0,
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
                self.chosen = self.chosen.min(status.pools.len().saturating_sub(1));
                self.status = Some(*status);
                self.gone = None;
            }
            Update::Answer(line) => self.say(line),
            Update::Gone(why) => self.gone = Some(why),
        }
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
