// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the book.
//!
//! [`sequences`] drives it through arbitrary sequences of [`events`] in a simulated [`world`] of
//! clients, workers, crashes and a [`kernel`] that behaves as hugetlbfs does, and [`checks`] that
//! the invariants hold after each of them. [`loans`], [`names`], [`refusals`], [`refilling`],
//! [`returns`], [`owners`], [`plans`], [`told`], [`mixes`] and [`adoption`] name single
//! expectations, with the numbers that make them plain. [`kernel_pools`] does both for books over a
//! kernel that keeps the ready pages itself.

mod adoption;
mod agents;
mod borrowing;
mod checks;
mod day;
mod events;
mod kernel;
mod kernel_pools;
mod loans;
mod mixes;
mod names;
mod owners;
mod plans;
mod refilling;
mod refusals;
mod resize;
mod returns;
mod sequences;
mod status;
mod world;
mod zeroing;

use std::time::Duration;

use units::{BlockId, Bytes, Counts, Domain, Node, PageSize, Pages, PoolKey, Uid};
use wire::LendRequest;

use super::{Asked, Book, Effect, Loan, Refusal, Requester};
use crate::block::{Reach, StateName};
use crate::config::PoolConfig;

const PAGE: PageSize = PageSize::MIB_2;

fn key(node: u32, pages_per_block: u64) -> PoolKey {
    PoolKey { node: Node(node), page_size: PAGE, pages_per_block: Pages(pages_per_block) }
}

fn pool(node: u32, pages_per_block: u64) -> PoolConfig {
    PoolConfig::new(key(node, pages_per_block))
}

impl Book {
    /// The kernel has this number of free, unpromised pages.
    fn has_free(&mut self, node: Node, page_size: PageSize, available: Pages) {
        let seen = Counts { available, ..Counts::default() };
        self.observe(Domain { node, page_size }, &seen);
    }
}

/// A book of these pools on a kernel that can prove reach, with nothing free.
fn book(pools: impl IntoIterator<Item = PoolConfig>) -> Book {
    Book::new(pools, true).expect("the pools of an example are good")
}

/// Makes `n` ready blocks in the pool; what the kernel has left free is 0 after it.
fn make_ready(book: &mut Book, key: PoolKey, n: u64) -> Vec<BlockId> {
    let spare = book.available(key.domain());
    book.has_free(key.node, key.page_size, Pages(n * key.pages_per_block.0) + spare);
    let others: Vec<_> = book.pool_keys().filter(|k| *k != key).collect();
    let config = |book: &Book, k| book.pool_config(k).expect("a key has its pool").clone();
    let before: Vec<_> = others.iter().map(|k| config(book, *k)).collect();
    for k in &others {
        // Nobody else's turn.
        let closed = PoolConfig { max: Some(Pages::ZERO), ..PoolConfig::new(*k) };
        book.configure(closed).expect("a closed pool is good");
    }
    let mut made = Vec::new();
    for _ in 0..n {
        let (order, _) = book
            .take_zeroing(Requester::User, Some(key.node), Some(key.page_size))
            .expect("pages are free");
        assert_eq!(order.pool, key);
        let finished = book.finish_zeroing(order.job, key.pages_per_block, Reach::Sole);
        let (block, state, _) = finished.expect("a legal move").expect("a job that lives");
        assert_eq!(state, StateName::Ready);
        made.push(block.expect("a job on a block"));
    }
    for config in before {
        book.configure(config).expect("it was good before");
    }
    made
}

fn ask(pages: u64) -> Asked {
    let request = LendRequest::new(Pages(pages).bytes(PAGE));
    Asked {
        request,
        uid: Uid(1000),
        account: Uid(1000),
        quota: None,
        await_owner: false,
        named: None,
    }
}

fn ask_one_file(pages: u64) -> Asked {
    ask(pages).with(|request| request.single = true)
}

impl Asked {
    /// The same with a change to the request.
    fn with(&self, change: impl FnOnce(&mut LendRequest)) -> Self {
        let mut changed = self.clone();
        change(&mut changed.request);
        changed
    }

    /// The same in the name of an owner.
    fn kept(&self, owner: &str, seconds: u64) -> Self {
        self.with(|request| {
            request.owner = Some(owner.parse().expect("an owner's name"));
            request.keep = Some(Duration::from_secs(seconds));
        })
    }

    fn on(&self, node: u32) -> Self {
        self.with(|request| request.node = Some(Node(node)))
    }
}

/// A loan's parts as (block, pages, ready).
fn parts(loan: &Loan) -> Vec<(BlockId, u64, u64)> {
    loan.parts.iter().map(|p| (p.block, p.pages.0, p.ready.0)).collect()
}

/// A loan that its borrower has.
fn lend(book: &mut Book, ask: &Asked) -> (Loan, Vec<Effect>) {
    let (loan, effects) = book.lend(ask).expect("a loan that can be granted");
    book.sent(loan.lease);
    (loan, effects)
}

fn refusal(book: &mut Book, ask: &Asked) -> Refusal {
    book.lend(ask).expect_err("a loan that cannot be granted")
}

/// The loan ends and all processes have let go of its blocks.
fn bring_back(book: &mut Book, loan: &Loan, now: u64) {
    book.end_lease(loan.lease);
    for part in &loan.parts {
        book.settle(part.block, Reach::Sole, now).expect("a returned block is draining");
    }
}

fn state(book: &Book, block: BlockId) -> Option<StateName> {
    book.place(block).map(|(state, _)| state)
}

fn bytes(pages: u64) -> Bytes {
    Pages(pages).bytes(PAGE)
}
