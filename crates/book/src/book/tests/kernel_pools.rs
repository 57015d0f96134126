// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Books over a kernel that keeps the ready pages itself.

use proptest::prelude::*;
use units::{BlockId, Bytes, Counts, Domain, JobId, LeaseId, Node, Pages, Uid};

use super::{PAGE, ask, ask_one_file, bring_back, bytes, key, lend, pool, refusal};
use crate::block::{Block, Part, Reach, StateName};
use crate::book::{Asked, Book, Effect, Found, JobOrder, Loan, Refusal, Requester, Work};
use crate::config::{PoolConfig, Recycle};
use crate::journal;

fn over_kernel(pools: impl IntoIterator<Item = PoolConfig>) -> Book {
    Book::over_kernel(pools).expect("the pools of an example are good")
}

/// The kernel has this number of pages free on the node, and this number of them zero.
fn kernel_has(book: &mut Book, node: u32, free: u64, zeroed: u64) {
    let counts = Counts {
        available: Pages(free),
        ready: Pages(zeroed),
        zeroable: Pages(free - zeroed),
        ..Counts::default()
    };
    book.observe(on(node), &counts);
}

fn on(node: u32) -> Domain {
    Domain { node: Node(node), page_size: PAGE }
}

fn finish(book: &mut Book, job: JobId, done: u64) -> Option<StateName> {
    let finished = book.finish_zeroing(job, Pages(done), Reach::Sole).expect("never illegal");
    let (block, state, effects) = finished?;
    assert_eq!((block, effects), (None, vec![]), "there is no block before a loan");
    Some(state)
}

/// Whether a job was there to lose.
fn lose(book: &mut Book, job: JobId) -> bool {
    let before = book.counters().lost_workers;
    assert_eq!(book.lose_job(job), []);
    book.counters().lost_workers > before
}

fn take(book: &mut Book, who: Requester) -> Option<JobOrder> {
    let (order, effects) = book.take_zeroing(who, None, None)?;
    assert_eq!((order.work, effects), (Work::Pages, vec![]));
    Some(order)
}

fn ready(book: &Book) -> u64 {
    book.pool_status(key(0, 1), &Counts::default()).expect("the one pool").ready_pages.0
}

#[test]
fn pools_of_one_size_are_one_with_their_bounds_added_up() {
    let first = PoolConfig {
        ready_low: Some(Pages(2)),
        ready_high: Pages(4),
        max: Some(Pages(8)),
        leave_free: Pages(1),
        ..pool(0, 2)
    };
    let second = PoolConfig {
        ready_high: Pages(3),
        max: Some(Pages(9)),
        leave_free: Pages(5),
        ..pool(0, 4)
    };
    let book = over_kernel([first.clone(), second, pool(1, 8)]);
    assert_eq!(book.pool_keys().collect::<Vec<_>>(), [key(0, 1), key(1, 1)]);
    let one = book.pool_config(key(0, 4)).expect("any block size means it");
    assert_eq!((one.low(), one.ready_high), (Pages(5), Pages(7)));
    assert_eq!((one.max, one.leave_free), (Some(Pages(17)), Pages(5)));
    let unbounded = over_kernel([first, pool(0, 4)]);
    assert_eq!(unbounded.pool_config(key(0, 1)).expect("one").max, None);
    let high = |pages| PoolConfig { ready_high: Pages(pages), ..pool(0, pages) };
    let alike = over_kernel([high(2), high(3)]);
    let one = alike.pool_config(key(0, 1)).expect("one");
    assert_eq!((one.ready_low, one.low()), (None, Pages(5)), "low follows high");
}

#[test]
fn ready_pages_are_counted_by_the_kernel() {
    let mut book = over_kernel([pool(0, 1)]);
    let counts =
        Counts { ready: Pages(3), zeroing: Pages(2), zeroable: Pages(4), ..Counts::default() };
    assert!(book.observe(on(0), &counts), "news");
    assert!(!book.observe(on(0), &counts), "nothing new");
    let status = book
        .pool_status(key(0, 1), &Counts { available: Pages(9), ..Counts::default() })
        .expect("the one pool");
    assert_eq!(
        (status.ready_pages, status.zeroing_pages, status.zeroable_pages),
        (Pages(3), Pages(2), Pages(4))
    );
    let level = &book.levels()[0];
    assert_eq!(
        (level.ready_pages, level.zeroing_pages, level.zeroable_pages),
        (Pages(3), Pages(2), Pages(4))
    );
}

// Promise P217.
#[test]
fn one_file_may_have_all_ready_pages() {
    let mut book = over_kernel([pool(0, 1)]);
    let counts = Counts { ready: Pages(3), available: Pages(9), ..Counts::default() };
    assert!(book.observe(on(0), &counts), "news");
    let [supply] = &book.supply_by_domain()[..] else { panic!("one domain") };
    let ready_bytes = Pages(3).bytes(PAGE).0;
    assert_eq!(
        supply.ready_blocks,
        [wire::agent::ReadyBlocks { block_bytes: Bytes(0), ready_bytes: Bytes(ready_bytes) }]
    );
}

#[test]
fn a_users_worker_gets_all_in_jobs_of_256_mib() {
    let mut book = over_kernel([pool(0, 1)]);
    kernel_has(&mut book, 0, 300, 0);
    let order = take(&mut book, Requester::User).expect("dirty pages");
    assert_eq!(order.pages, Pages(128));
    assert_eq!(finish(&mut book, order.job, 128), Some(StateName::Ready));
    assert_eq!(finish(&mut book, order.job, 128), None, "once");
    assert_eq!(book.counters().zeroed_bytes, bytes(128));
    assert_eq!(take(&mut book, Requester::Background), None, "no threshold asks for anything");
    kernel_has(&mut book, 0, 300, 300);
    assert_eq!(take(&mut book, Requester::User), None);
}

#[test]
fn own_workers_get_what_the_high_threshold_lacks_of_others_work() {
    let config = PoolConfig { ready_low: Some(Pages(4)), ready_high: Pages(10), ..pool(0, 1) };
    let mut book = over_kernel([config]);
    kernel_has(&mut book, 0, 50, 5);
    assert_eq!(book.wanted_workers(2), 0, "low is not reached");
    kernel_has(&mut book, 0, 50, 3);
    assert_eq!(book.wanted_workers(2), 2);
    let order = take(&mut book, Requester::Background).expect("below low");
    assert_eq!(order.pages, Pages(7), "10 wanted, 3 there");
    assert_eq!(take(&mut book, Requester::Background), None, "the rest is on its way");
    assert!(lose(&mut book, order.job));
    assert!(!lose(&mut book, order.job), "once");
    assert_eq!(take(&mut book, Requester::Background).expect("again").pages, Pages(7));
}

#[test]
fn max_bounds_zeroed_and_lent_pages() {
    let mut book = over_kernel([PoolConfig { max: Some(Pages(6)), ..pool(0, 1) }]);
    kernel_has(&mut book, 0, 20, 4);
    lend(&mut book, &ask(1));
    assert_eq!(ready(&book), 3, "one is promised to the loan");
    kernel_has(&mut book, 0, 19, 3);
    let job = take(&mut book, Requester::User).expect("two more");
    assert_eq!(job.pages, Pages(2));
    assert_eq!(take(&mut book, Requester::User), None, "they are in somebody's hands");
    finish(&mut book, job.job, 2);
    assert_eq!(
        take(&mut book, Requester::User),
        None,
        "the kernel has not said yet that they are zero"
    );
    kernel_has(&mut book, 0, 19, 5);
    assert_eq!(take(&mut book, Requester::User), None);
    kernel_has(&mut book, 0, 19, 4);
    assert_eq!(take(&mut book, Requester::User).expect("somebody had one").pages, Pages(1));
}

#[test]
fn a_loan_is_a_new_file_that_takes_zeroed_pages() {
    let mut book = over_kernel([pool(0, 1)]);
    kernel_has(&mut book, 0, 10, 6);
    let (loan, effects) = lend(&mut book, &ask_one_file(8));
    let [part] = loan.parts.as_slice() else { panic!("one file: {loan:?}") };
    assert_eq!((part.pages, part.ready), (Pages(8), Pages(6)));
    assert_eq!(effects, [Effect::Create { block: part.block, pages: Pages(8), fill: Pages(6) }]);
    assert_eq!(
        (book.counters().lent_ready_bytes, book.counters().lent_unbacked_bytes),
        (bytes(6), bytes(2))
    );
    let Refusal::NotEnough { ready, free, .. } = refusal(&mut book, &ask(3)) else {
        panic!("two are free");
    };
    assert_eq!((ready, free), (Bytes(0), bytes(2)), "what is promised is promised once");
    // Somebody was faster.
    book.record_filled(part.block, Pages(6), Pages(5));
    assert_eq!(
        (book.counters().lent_ready_bytes, book.counters().lent_unbacked_bytes),
        (bytes(5), bytes(3))
    );
    assert_eq!(book.block(part.block).map(Block::missing), Some(Pages(3)));
    bring_back(&mut book, &loan, 0);
    assert_eq!(book.block(part.block).map(Block::id), None, "its pages are the kernel's again");
}

#[test]
fn leave_free_is_left_to_the_borrowers_own_faults() {
    let mut book = over_kernel([PoolConfig { leave_free: Pages(4), ..pool(0, 1) }]);
    kernel_has(&mut book, 0, 10, 10);
    assert_eq!(ready(&book), 10);
    let (loan, _) = lend(&mut book, &ask(8));
    assert_eq!(loan.parts[0].ready, Pages(6));
}

#[test]
fn loan_takes_one_node_if_it_can_and_several_files_if_it_must() {
    let mut book = over_kernel([pool(0, 1), pool(1, 1)]);
    kernel_has(&mut book, 0, 8, 2);
    kernel_has(&mut book, 1, 8, 5);
    let shape = |book: &mut Book, request: &Asked| {
        let (loan, _) = lend(book, request);
        loan.parts.iter().map(|p| (p.node.0, p.pages.0, p.ready.0)).collect::<Vec<_>>()
    };
    assert_eq!(shape(&mut book, &ask(4)), [(1, 4, 4)]);
    assert_eq!(shape(&mut book, &ask(3)), [(0, 2, 2), (1, 1, 1)]);
    kernel_has(&mut book, 0, 8, 2);
    kernel_has(&mut book, 1, 8, 5);
    assert_eq!(shape(&mut book, &ask_one_file(7)), [(1, 7, 5)], "one file lies on one node");
    assert_eq!(shape(&mut book, &ask(4)), [(0, 4, 2)]);
    let on_1 = ask(2).on(1);
    assert!(matches!(refusal(&mut book, &on_1), Refusal::NotEnough { .. }));
}

#[test]
fn kept_content_comes_back_without_a_page_of_the_kernels() {
    let mut book = over_kernel([pool(0, 1)]);
    kernel_has(&mut book, 0, 4, 4);
    let request = ask(4).kept("db", 60);
    let (loan, _) = lend(&mut book, &request);
    bring_back(&mut book, &loan, 0);
    kernel_has(&mut book, 0, 0, 0);
    let (again, effects) = lend(&mut book, &request);
    assert!(again.kept);
    assert_eq!(effects, [Effect::Move(loan.parts[0].block)]);
}

fn found(state: StateName, node: u32, per_block: u64, part: Option<Part>) -> Found {
    let pages = part.as_ref().map_or(Pages(per_block), |p| p.pages);
    let entry = journal::Entry { block: BlockId(7), pool: key(node, per_block), part, until: None };
    Found { state, entry, allocated: pages, reach: Reach::Sole, lease_alive: true }
}

#[test]
fn ready_files_of_an_owning_daemon_go_back_and_lent_ones_stay() {
    let config = PoolConfig { ready_low: Some(Pages(2)), ready_high: Pages(4), ..pool(0, 4) };
    let mut book = over_kernel([config]);
    kernel_has(&mut book, 0, 3, 3);
    book.adopt(&found(StateName::Ready, 0, 4, None));
    assert_eq!(ready(&book), 3, "the file is not counted twice");
    let (_, effects) = book.settle(BlockId(7), Reach::Sole, 0).expect("it is draining");
    assert_eq!(effects, [Effect::Remove(BlockId(7))]);
    let (uid, account) = (Uid(1), Uid(1));
    let part =
        Part { lease: LeaseId(5), index: 0, uid, account, keep: None, pages: Pages(4), name: None };
    book.adopt(&found(StateName::Lent, 0, 4, Some(part)));
    assert_eq!(book.leases().collect::<Vec<_>>(), [LeaseId(5)]);
    let sum: Pages = book.levels().iter().map(|level| level.ready_pages).sum();
    assert_eq!(sum, Pages(3), "a pool of other blocks has no ready pages of its own");
    assert_eq!(book.notified_below(), [(on(0), Pages(2))].into(), "nor a threshold of its own");
}

#[test]
fn the_pool_that_has_least_of_what_it_wants_is_zeroed_first() {
    let wants = |node, high| PoolConfig { ready_high: Pages(high), ..pool(node, 1) };
    let mut book = over_kernel([wants(0, 4), wants(1, 100)]);
    kernel_has(&mut book, 0, 20, 2);
    kernel_has(&mut book, 1, 200, 10);
    let (order, _) = book.take_zeroing(Requester::User, None, None).expect("pages are dirty");
    assert_eq!(order.pool.node, Node(1), "a tenth, beside half");
}

#[test]
fn ready_file_goes_back_even_if_its_blocks_have_the_kept_size() {
    let mut book = over_kernel([pool(0, 1)]);
    kernel_has(&mut book, 0, 3, 3);
    book.adopt(&found(StateName::Ready, 0, 1, None));
    assert_eq!(book.place(BlockId(7)).map(|(state, _)| state), Some(StateName::Draining));
    let (_, effects) = book.settle(BlockId(7), Reach::Sole, 0).expect("it is draining");
    assert_eq!(effects, [Effect::Remove(BlockId(7))]);
}

/// The events of a book over the kernel, with the numbers that the world would have for it.
#[derive(Debug, Clone)]
enum Event {
    Look { node: u32, free: u64, zeroed: u64 },
    Take { background: bool },
    Finish { nth: usize, done: u64 },
    Lose { nth: usize },
    Lend { pages: u64, single: bool, filled: u64 },
    Return { nth: usize },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..2_u32, 0..40_u64, 0..40_u64).prop_map(|(node, free, zeroed)| Event::Look {
            node,
            free,
            zeroed: zeroed.min(free)
        }),
        any::<bool>().prop_map(|background| Event::Take { background }),
        (0..4_usize, 0..300_u64).prop_map(|(nth, done)| Event::Finish { nth, done }),
        (0..4_usize).prop_map(|nth| Event::Lose { nth }),
        (1..40_u64, any::<bool>(), 0..40_u64).prop_map(|(pages, single, filled)| Event::Lend {
            pages,
            single,
            filled
        }),
        (0..4_usize).prop_map(|nth| Event::Return { nth }),
    ]
}

proptest! {
    // Promise P51 (kernel): Nothing is owned before it is lent: ready pages are free pages of the
    // kernel, and no sequence of events promises a page twice between two looks.
    /// In every sequence the book owns only lent pages, promises a page once between two looks,
    /// stops zeroing at the high threshold and `max`, and keeps count of its loans.
    #[test]
    fn every_sequence_keeps_the_kernels_pages_the_kernels(
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let config = |node| PoolConfig {
            ready_low: Some(Pages(8)), ready_high: Pages(16), max: Some(Pages(30)), ..pool(node, 1)
        };
        let mut book = over_kernel([config(0), config(1)]);
        let (mut jobs, mut loans, mut lent) = (Vec::new(), Vec::new(), 0);
        // The kernel's counts at the last look, minus later promises.
        let mut seen = [(0_u64, 0_u64); 2];
        let mut promised = [(0_u64, 0_u64); 2];
        let mut reported = [0_u64; 2];
        for event in events {
            match event {
                Event::Look { node, free, zeroed } => {
                    kernel_has(&mut book, node, free, zeroed);
                    seen[node as usize] = (free, zeroed);
                    promised[node as usize] = (0, 0);
                    reported[node as usize] = 0;
                }
                Event::Take { background } => {
                    book.wanted_workers(4);
                    let who = if background { Requester::Background } else { Requester::User };
                    if let Some(order) = take(&mut book, who) {
                        let node = order.pool.node.0 as usize;
                        prop_assert!(order.pages > Pages::ZERO);
                        prop_assert!(order.pages.0 <= seen[node].0 - seen[node].1);
                        let mine = |o: &&JobOrder| o.pool == order.pool;
                        let in_hand: u64 = jobs.iter().filter(mine).map(|o| o.pages.0).sum();
                        let ready = seen[node].1 - promised[node].1 + reported[node];
                        let coming = ready + in_hand + order.pages.0;
                        prop_assert!(!background || coming <= 16);
                        let parts = loans.iter().flat_map(|loan: &Loan| &loan.parts);
                        let here = parts.filter(|part| part.node == order.pool.node);
                        prop_assert!(coming + here.map(|part| part.pages.0).sum::<u64>() <= 30);
                        jobs.push(order);
                    }
                }
                Event::Finish { nth, done } if nth < jobs.len() => {
                    let order = jobs.remove(nth);
                    let before = book.counters().zeroed_bytes;
                    prop_assert!(finish(&mut book, order.job, done).is_some());
                    reported[order.pool.node.0 as usize] += done.min(order.pages.0);
                    let counted = book.counters().zeroed_bytes.saturating_sub(before);
                    prop_assert_eq!(counted, bytes(done.min(order.pages.0)));
                }
                Event::Lose { nth } if nth < jobs.len() => {
                    let order: JobOrder = jobs.remove(nth);
                    prop_assert!(lose(&mut book, order.job));
                    prop_assert_eq!(finish(&mut book, order.job, 1), None);
                }
                Event::Lend { pages, single, filled } => {
                    if let Ok((loan, effects)) = book.lend(&ask(pages).with(|request| request.single = single)) {
                        prop_assert_eq!(loan.parts.iter().map(|p| p.pages.0).sum::<u64>(), pages);
                        prop_assert!(!single || loan.parts.len() == 1);
                        prop_assert_eq!(effects.len(), loan.parts.len());
                        for part in &loan.parts {
                            let node = part.node.0 as usize;
                            promised[node].0 += part.pages.0;
                            promised[node].1 += part.ready.0;
                            prop_assert!(part.ready <= part.pages);
                            prop_assert!(promised[node].0 <= seen[node].0, "free pages, twice");
                            prop_assert!(promised[node].1 <= seen[node].1, "zeroed pages, twice");
                            book.record_filled(part.block, part.ready, Pages(filled.min(part.ready.0)));
                        }
                        lent += bytes(pages).0;
                        loans.push(loan);
                    }
                }
                Event::Return { nth } if nth < loans.len() => {
                    let loan = loans.remove(nth);
                    bring_back(&mut book, &loan, 0);
                }
                _ => {}
            }
            for state in [StateName::Zeroable, StateName::Zeroing, StateName::Ready] {
                prop_assert_eq!(book.in_state(state).count(), 0, "nothing is owned before a loan");
            }
            prop_assert_eq!(book.release(None, None, Pages(u64::MAX)), (Bytes(0), vec![]));
            let counters = book.counters();
            prop_assert_eq!(counters.lent_ready_bytes + counters.lent_unbacked_bytes, Bytes(lent));
            let known: usize = loans.iter().map(|loan| loan.parts.len()).sum();
            prop_assert_eq!(book.in_state(StateName::Lent).count(), known);
        }
    }
}

#[test]
fn a_book_that_owns_blocks_has_no_such_jobs() {
    let mut book = super::book([pool(0, 1)]);
    kernel_has(&mut book, 0, 4, 2);
    let (order, _) = book.take_zeroing(Requester::User, None, None).expect("pages are free");
    assert!(order.block().is_some(), "{order:?}");
    let counts = Counts { ready: Pages(3), ..Counts::default() };
    assert!(!book.observe(on(0), &counts), "what the kernel has zeroed is not the book's");
    assert_eq!(book.canonical(key(0, 4)), key(0, 4));
}

#[test]
fn every_pool_over_a_zeroing_kernel_recycles_fresh() {
    let in_place = PoolConfig { recycle: Recycle::InPlace, ..pool(0, 2) };
    let book = over_kernel([in_place]);
    assert_eq!(book.pool_config(key(0, 1)).expect("one").recycle, Recycle::Fresh);
}

#[test]
fn a_node_that_gives_nothing_has_no_part_in_a_loan() {
    let mut book = over_kernel([pool(0, 1), pool(1, 1), pool(2, 1)]);
    for (node, zeroed) in [(0, 4), (1, 0), (2, 4)] {
        kernel_has(&mut book, node, 8, zeroed);
    }
    let loan = lend(&mut book, &ask(8)).0;
    let mut parts: Vec<_> = loan.parts.iter().map(|part| (part.node.0, part.pages.0)).collect();
    parts.sort_unstable();
    assert_eq!(parts, [(0, 4), (2, 4)]);
}

#[test]
fn pool_between_its_thresholds_has_no_work_for_own_workers() {
    let config = PoolConfig { ready_low: Some(Pages(2)), ready_high: Pages(6), ..pool(0, 1) };
    let mut book = over_kernel([config]);
    for (zeroed, is_work) in [(3, false), (1, true), (3, true), (6, false), (3, false)] {
        kernel_has(&mut book, 0, 16, zeroed);
        book.wanted_workers(1);
        let order = take(&mut book, Requester::Background);
        assert_eq!(order.is_some(), is_work, "{zeroed} of 2 to 6");
        if let Some(order) = order {
            finish(&mut book, order.job, 0);
        }
    }
    assert!(take(&mut book, Requester::User).is_some(), "a user may zero more");
}

#[test]
fn changed_pool_of_any_block_size_is_the_one_of_its_node() {
    let mut book = over_kernel([pool(0, 1)]);
    book.configure(PoolConfig { ready_high: Pages(3), ..pool(0, 4) }).expect("a good pool");
    let one = book.pool_config(key(0, 1)).expect("the one pool");
    assert_eq!((one.key(), one.ready_high), (key(0, 1), Pages(3)));
}
