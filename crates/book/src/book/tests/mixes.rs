// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools of several sizes of blocks: the reports about them, and the order in which sizes make
//! room for others.

use std::collections::BTreeMap;

use super::*;
use crate::block::{Block, HeldBy};
use crate::book::Learnt;
use crate::config::{ConfigError, ReadyLearning, Recycle};
use crate::policy::{DayDemand, Demand};

const HERE: Domain = Domain { node: Node(0), page_size: PAGE };
const READY: Pages = Pages(16);

fn mixed() -> PoolConfig {
    let config = PoolConfig::new(PoolKey::mixed(HERE));
    PoolConfig { ready_high: READY, recycle: Recycle::InPlace, ..config }
}

/// Knows only loans of `pages` pages, in any blocks.
fn loans_of(pages: u64) -> Demand {
    let mut demand = Demand::default();
    for _ in 0..50 {
        demand.record(Pages(pages), false, Pages::ZERO, READY, PAGE);
    }
    demand
}

fn learn(book: &mut Book, credit: Pages, demand: Demand) {
    book.learn(Learnt { domain: HERE, credit, demand, day: DayDemand::default() });
}

/// Makes blocks of all that is free and wanted.
fn fill(book: &mut Book) {
    while book.wanted_workers(1) > 0 {
        let order = book.take_zeroing(Requester::Background, None, None);
        let Some((order, _)) = order else { break };
        let all = order.pool.pages_per_block;
        book.finish_zeroing(order.job, all, Reach::Sole).expect("a legal move");
    }
}

/// How many blocks of each size are in a state.
fn sizes(book: &Book, state: StateName) -> BTreeMap<u64, u64> {
    let mut sizes = BTreeMap::new();
    for block in book.in_state(state) {
        *sizes.entry(block.pool().pages_per_block.0).or_default() += 1;
    }
    sizes
}

/// The sizes that are told: how many blocks of each are ready, and wanted.
fn reported(book: &Book) -> Vec<(u64, u64, u64)> {
    let reported = book.pool_status(PoolKey::mixed(HERE), &Counts::default()).expect("a pool");
    let sizes = reported.sizes.iter();
    sizes.map(|size| (size.pages_per_block.0, size.ready_blocks, size.wanted_blocks)).collect()
}

/// Ready blocks of 4 pages on a kernel that has nothing else.
fn four_of_four() -> Book {
    let mut book = book([mixed()]);
    learn(&mut book, Pages::ZERO, loans_of(4));
    book.has_free(Node(0), PAGE, READY);
    fill(&mut book);
    assert_eq!(sizes(&book, StateName::Ready), [(4, 4)].into());
    assert_eq!(book.remix(), [], "they are what is wanted");
    book
}

#[test]
fn status_of_a_mixed_pool_is_the_sum_of_its_sizes() {
    let mut book = book([mixed()]);
    book.has_free(Node(0), PAGE, Pages(40));
    fill(&mut book);
    let asks = [1, 2, 1, 2, 1, 2].map(ask_one_file);
    let loans: Vec<_> = asks.iter().map(|ask| lend(&mut book, ask).0).collect();
    let kept = lend(&mut book, &ask_one_file(2).kept("guest", 60)).0;
    let larger = lend(&mut book, &ask_one_file(4).kept("other", 60)).0;
    let reaches = [Reach::Mapped, Reach::Mapped, Reach::Pinned, Reach::Pinned, Reach::Sole];
    for (loan, reach) in loans.iter().chain([&kept]).zip(reaches.into_iter().chain([Reach::Shared]))
    {
        book.end_lease(loan.lease);
        book.settle(loan.parts[0].block, reach, 100).expect("it is draining");
    }
    book.end_lease(kept.lease);
    book.settle(kept.parts[0].block, Reach::Sole, 100).expect("it is draining");
    bring_back(&mut book, &larger, 100);
    let kept: BTreeMap<_, _> = sizes(&book, StateName::Kept);
    assert!(kept.len() > 1, "of several sizes: {kept:?}");
    fill(&mut book);
    lend(&mut book, &ask_one_file(1));
    lend(&mut book, &ask_one_file(4));
    book.take_zeroing(Requester::User, None, None).expect("something is free");
    book.take_zeroing(Requester::User, None, None).expect("something is free");

    let reported = book.pool_status(PoolKey::mixed(HERE), &Counts::default()).expect("a pool");
    let pages = |state| book.in_state(state).map(Block::pages).sum::<Pages>().0;
    let held = |hold| {
        let blocks = book.in_state(StateName::Draining).filter(|block| block.held_by() == hold);
        blocks.map(Block::pages).sum::<Pages>().0
    };
    for (state, reported) in [
        (StateName::Zeroing, reported.zeroing_pages),
        (StateName::Ready, reported.ready_pages),
        (StateName::Lent, reported.lent_pages),
        (StateName::Kept, reported.kept_pages),
        (StateName::Draining, reported.draining_pages),
    ] {
        assert!(reported > Pages(0), "nothing is {state}: an example of too little");
        assert_eq!(reported, Pages(pages(state)), "{state}");
    }
    assert_eq!(
        (reported.mapped_pages, reported.pinned_pages),
        (Pages(held(HeldBy::Mapped)), Pages(held(HeldBy::Pinned)))
    );
    assert_eq!((reported.mapped_pages, reported.pinned_pages), (Pages(3), Pages(3)));
    let blocks: usize = StateName::ALL.iter().map(|state| book.in_state(*state).count()).sum();
    assert_eq!(reported.blocks, blocks as u64);
    assert_eq!(
        (reported.pages_per_block, reported.ready_low, reported.ready_high),
        (Pages(0), READY, READY)
    );
    let ready = self::reported(&book).into_iter().filter(|(_, ready, _)| *ready > 0);
    let ready: BTreeMap<_, _> = ready.map(|(size, ready, _)| (size, ready)).collect();
    assert_eq!(ready, sizes(&book, StateName::Ready));
}

#[test]
fn size_neither_ready_nor_wanted_is_not_listed() {
    let mut book = four_of_four();
    assert_eq!(reported(&book), [(4, 4, 4)]);
    learn(&mut book, Pages::ZERO, loans_of(8));
    assert_eq!(reported(&book), [(4, 4, 0), (8, 0, 2)]);
}

#[test]
fn pools_of_one_size_and_of_several_exclude_each_other() {
    let mut several = book([mixed()]);
    let error = several.configure(pool(0, 2)).expect_err("the sizes are the book's");
    assert_eq!(error, ConfigError::Mixed(HERE));
    let mut one = book([pool(0, 2)]);
    assert_eq!(one.configure(mixed()).expect_err("there is one"), ConfigError::Mixed(HERE));
    several.configure(pool(1, 2)).expect("of another node");
    several.configure(mixed()).expect("itself");
}

#[test]
fn ready_blocks_of_a_size_too_many_make_room_on_credit_alone() {
    for (credit, left) in [(0, 4), (3, 4), (4, 3), (8, 2), (16, 0)] {
        let mut book = four_of_four();
        learn(&mut book, Pages(credit), loans_of(2));
        let removed = book.remix().len() as u64;
        assert_eq!(sizes(&book, StateName::Ready).get(&4).copied().unwrap_or(0), 4 - removed);
        // A block's place is room for two others: as soon as one can be made, no more goes.
        assert_eq!(removed, u64::from(left < 4), "credit {credit}");
        assert_eq!(book.available(HERE), Pages(4 * removed));
        assert_eq!(book.counters().released_bytes, bytes(4 * removed));
        let spent = book.learnt().next().expect("a pool that learns").credit;
        assert_eq!(spent, Pages(credit - 4 * removed));
        fill(&mut book);
        let made = sizes(&book, StateName::Ready).get(&2).copied().unwrap_or(0);
        assert_eq!(made, 2 * removed);
    }
}

#[test]
fn of_smaller_blocks_too_many_the_largest_go_first() {
    let mut book = book([mixed()]);
    for size in [1, 2] {
        learn(&mut book, Pages::ZERO, loans_of(size));
        book.has_free(Node(0), PAGE, Pages(8));
        fill(&mut book);
    }
    assert_eq!(sizes(&book, StateName::Ready), [(1, 8), (2, 4)].into());
    learn(&mut book, READY, loans_of(4));
    book.remix();
    assert_eq!(sizes(&book, StateName::Ready), [(1, 8), (2, 2)].into());
}

#[test]
fn dirty_blocks_of_a_size_too_many_make_room_without_credit() {
    let mut book = four_of_four();
    let loans: Vec<_> = (0..2).map(|_| lend(&mut book, &ask_one_file(4)).0).collect();
    loans.iter().for_each(|loan| bring_back(&mut book, loan, 100));
    assert_eq!(sizes(&book, StateName::Zeroable), [(4, 2)].into());
    learn(&mut book, Pages::ZERO, loans_of(2));
    let removed = book.remix();
    let [Effect::Remove(gone)] = removed[..] else { panic!("{removed:?}") };
    assert!(loans.iter().any(|loan| loan.parts[0].block == gone), "a dirty one");
    assert_eq!(sizes(&book, StateName::Zeroable), [(4, 1)].into());
    assert_eq!(sizes(&book, StateName::Ready), [(4, 2)].into());
    assert_eq!(book.remix(), [], "there is room now");
}

#[test]
fn changed_thresholds_keep_learnt_sizes_and_credit_up_to_ready() {
    let mut book = four_of_four();
    learn(&mut book, READY, loans_of(4));
    for (ready_high, blocks, credit) in [(32, 8, 16), (8, 2, 8)] {
        let other = PoolConfig { ready_high: Pages(ready_high), ..mixed() };
        book.configure(other).expect("a good pool");
        assert_eq!(reported(&book), [(4, 4, blocks)]);
        let learnt = book.learnt().next().expect("a pool that learns");
        assert_eq!(learnt.credit, Pages(credit));
    }
}

#[test]
fn no_room_is_made_where_no_size_lacks_a_block_or_one_is_dirty() {
    let mut book = four_of_four();
    learn(&mut book, READY, loans_of(4));
    book.configure(PoolConfig { ready_high: Pages(8), ..mixed() }).expect("a good pool");
    assert_eq!(book.remix(), [], "two blocks more than are wanted are in nobody's way");

    let mut book = four_of_four();
    learn(&mut book, Pages(4), loans_of(2));
    assert_eq!(book.remix().len(), 1);
    fill(&mut book);
    let loans: Vec<_> = (0..2).map(|_| lend(&mut book, &ask_one_file(2)).0).collect();
    loans.iter().for_each(|loan| bring_back(&mut book, loan, 100));
    assert_eq!(sizes(&book, StateName::Zeroable), [(2, 2)].into());
    learn(&mut book, READY, loans_of(2));
    assert_eq!(book.remix(), [], "what lacks is there, and only dirty");
}

#[test]
fn unwanted_size_stays_a_pool_until_its_last_block_goes() {
    let mut book = book([mixed()]);
    learn(&mut book, Pages::ZERO, loans_of(4));
    let pools =
        |book: &Book| -> Vec<u64> { book.pools.keys().map(|key| key.pages_per_block.0).collect() };
    assert_eq!(pools(&book), [1, 4], "and pages, for unbacked parts");
    learn(&mut book, Pages::ZERO, loans_of(2));
    assert_eq!(pools(&book), [1, 2]);
    let mut book = four_of_four();
    learn(&mut book, Pages::ZERO, loans_of(2));
    assert_eq!(pools(&book), [1, 2, 4]);
}

#[test]
fn one_part_of_lent_pages_is_credit() {
    let mut book = four_of_four();
    let credit = |book: &Book| book.learnt().next().expect("a pool that learns").credit.0;
    let mut seen = Vec::new();
    for _ in 0..13 {
        let (loan, _) = lend(&mut book, &ask_one_file(4));
        bring_back(&mut book, &loan, 100);
        fill(&mut book);
        seen.push(credit(&book));
    }
    // Of 24 pages one: six loans of four.
    assert_eq!(seen, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2]);
}

#[test]
fn only_blocks_above_a_piece_leave_room_and_are_left_to_files() {
    let piece = crate::policy::piece(PAGE).0;
    let ready = Pages(32 * piece);
    let mut book = book([PoolConfig { ready_high: ready, ..mixed() }]);
    let mut demand = Demand::default();
    for pages in [piece, piece + 1] {
        demand.record(Pages(pages), true, Pages::ZERO, ready, PAGE);
    }
    learn(&mut book, Pages::ZERO, demand);
    for (size, spared, is_for_files) in
        [(piece, 0, false), (piece + 1, 4 * piece, true), (piece + 2, 4 * piece, false)]
    {
        let key = PoolKey { pages_per_block: Pages(size), ..PoolKey::mixed(HERE) };
        assert_eq!(book.spared_by_large(key), Some(Pages(spared)), "{size}");
        assert_eq!(book.is_for_files(HERE, Pages(size)), is_for_files, "{size}");
    }
}

#[test]
fn a_pool_that_is_full_of_the_wrong_sizes_wants_no_worker() {
    let mut book = four_of_four();
    learn(&mut book, Pages::ZERO, loans_of(2));
    book.has_free(Node(0), PAGE, Pages(8));
    assert_eq!(book.wanted_workers(1), 0, "it has as much as it is to have");
    assert!(book.filling().is_empty());
    learn(&mut book, Pages::ZERO, loans_of(4));
    lend(&mut book, &ask_one_file(4));
    assert_eq!(book.wanted_workers(1), 1);
    assert_eq!(book.filling(), [(PoolKey::mixed(HERE), (Pages(12), READY))].into());
}

#[test]
fn refilling_goes_on_when_sizes_are_chosen_again() {
    let mut book = book([mixed()]);
    learn(&mut book, Pages::ZERO, loans_of(4));
    book.has_free(Node(0), PAGE, READY);
    assert_eq!(book.wanted_workers(1), 1);
    assert_eq!(book.refilling_nodes(), [Node(0)]);
    learn(&mut book, Pages::ZERO, loans_of(4));
    assert_eq!(book.refilling_nodes(), [Node(0)]);
}

#[test]
fn zeroable_pages_of_all_sizes_are_counted() {
    let mut book = four_of_four();
    let (loan, _) = lend(&mut book, &ask_one_file(4));
    bring_back(&mut book, &loan, 100);
    book.has_free(Node(0), PAGE, Pages(3));
    let reported = book.pool_status(PoolKey::mixed(HERE), &Counts::default()).expect("a pool");
    assert_eq!((reported.zeroable_pages, reported.ready_pages), (Pages(4), Pages(12)));
}

#[test]
fn zeroing_pages_of_all_sizes_are_counted_and_arrive() {
    let mut book = book([mixed()]);
    learn(&mut book, Pages::ZERO, loans_of(4));
    book.has_free(Node(0), PAGE, READY);
    assert_eq!(book.wanted_workers(2), 2);
    let orders =
        [0, 1].map(|_| book.take_zeroing(Requester::Background, None, None).expect("a job").0);
    let taken: u64 = orders.iter().map(|order| order.pool.pages_per_block.0).sum();
    let reported = book.pool_status(PoolKey::mixed(HERE), &Counts::default()).expect("a pool");
    assert_eq!((reported.zeroing_pages, reported.blocks, taken), (Pages(8), 2, 8));
}

#[test]
fn ready_pages_are_cut_off_on_credit_alone_if_others_are_free() {
    for (credit, free, ready) in [(0, 16, 0), (1, 16, 3), (0, 0, 3)] {
        let mut book = four_of_four();
        learn(&mut book, Pages(credit), loans_of(4));
        book.has_free(Node(0), PAGE, Pages(free));
        let loan = lend(&mut book, &ask_one_file(3)).0;
        let had: Pages = loan.parts.iter().map(|part| part.ready).sum();
        assert_eq!(had, Pages(ready), "credit {credit} beside {free}");
    }
}

// Promise P383 (work): A pool that learns the day has more ready in a busy quarter of an hour
// than in a quiet one, gives the rest back to the kernel, and knows both after a restart.
#[test]
fn amount_that_is_learnt_follows_the_time_of_the_day() {
    const DAY: u64 = 86_400;
    const NOON: u64 = 12 * 3600;
    /// Until enough loans were compared.
    const DAYS: u64 = 6;
    let learning = || PoolConfig { learns: Some(ReadyLearning::Day), ..mixed() };
    let mut book = super::book([learning()]);
    book.has_free(Node(0), PAGE, Pages(64));
    for day in 0..DAYS {
        for time in (0..DAY).step_by(900) {
            book.pass_time(day * DAY + time);
            book.relieve();
            fill(&mut book);
            let now = book.pool_status(PoolKey::mixed(HERE), &Counts::default()).expect("it");
            // Two days are compared, and sixteen loans are enough.
            if day < 4 {
                assert_eq!(now.ready_high, READY, "{day} {time}");
                // Sizes that were learnt anew may be in each other's way for a moment.
                assert!(now.ready_pages > Pages(READY.0 / 2), "{day} {time}: {}", now.ready_pages);
            }
            if time == NOON {
                let loans: Vec<_> = (0..12).map(|_| lend(&mut book, &ask(1)).0).collect();
                loans.iter().for_each(|loan| bring_back(&mut book, loan, 0));
            }
        }
    }
    let level = |book: &mut Book, time| {
        book.pass_time(DAYS * DAY + time);
        book.relieve();
        fill(book);
        let now = book.pool_status(PoolKey::mixed(HERE), &Counts::default()).expect("it");
        // All other pages are the kernel's, dirty ones too.
        let owned: Pages = StateName::ALL
            .into_iter()
            .map(|state| book.in_state(state).map(Block::pages).sum::<Pages>())
            .sum();
        let most = now.ready_high + Pages(4);
        assert!(owned <= most, "{owned} at {time}, of {}", now.ready_high);
        assert_eq!(now.learnt.map(|of| (of.max_pages, of.known_days)), Some((READY, DAYS)));
        now.ready_high.0
    };
    assert_eq!(level(&mut book, NOON - 1800), 1);
    assert_eq!(level(&mut book, NOON - 60), 12);
    assert_eq!(level(&mut book, NOON + 900), 1);
    let learnt = book.learnt().next().expect("of the one pool");
    let text = serde_json::to_string(&learnt).expect("a record");
    let mut next = super::book([learning()]);
    next.has_free(Node(0), PAGE, Pages(64));
    next.learn(serde_json::from_str(&text).expect("the same"));
    assert_eq!(level(&mut next, NOON), 12);
    assert_eq!(next.pool_config(PoolKey::mixed(HERE)), Some(&learning()), "as the operator has it");
    // A constant amount again.
    next.configure(mixed()).expect("it is good");
    fill(&mut next);
    next.pass_time(DAYS * DAY + NOON + 900);
    let now = next.pool_status(PoolKey::mixed(HERE), &Counts::default()).expect("it");
    assert_eq!((now.ready_high, now.learnt), (READY, None));
}

#[test]
fn record_without_days_is_taken_over() {
    let old = r#"{"domain":{"node":0,"page_size":2097152},"credit":1,"demand":DEMAND}"#;
    let demand = serde_json::to_string(&loans_of(4)).expect("a record");
    let domain = serde_json::to_string(&HERE).expect("a domain");
    let text = old.replace("DEMAND", &demand);
    let text = text.replace(r#"{"node":0,"page_size":2097152}"#, &domain);
    let learnt: Learnt = serde_json::from_str(&text).expect("of an earlier version");
    assert_eq!(learnt.day, DayDemand::default());
}
