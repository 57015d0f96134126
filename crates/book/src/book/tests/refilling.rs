// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What workers are given, how many are wanted, and where they stop.

use wire::ZeroBy;

use super::*;
use crate::config::Recycle;

fn background(book: &mut Book) -> Option<crate::book::JobOrder> {
    book.take_zeroing(Requester::Background, None, None).map(|(order, _)| order)
}

fn user(book: &mut Book) -> Option<(crate::book::JobOrder, Vec<Effect>)> {
    book.take_zeroing(Requester::User, None, None)
}

#[test]
fn background_work_starts_below_low_and_stops_at_high() {
    let thresholds = PoolConfig { ready_low: Some(Pages(2)), ready_high: Pages(4), ..pool(0, 1) };
    let mut book = book([thresholds]);
    book.has_free(Node(0), PAGE, Pages(16));
    assert_eq!(background(&mut book), None, "nobody looked at the thresholds yet");
    let mut turns = Vec::new();
    for _ in 0..3 {
        // Filled up to the high threshold.
        for _ in 0..9 {
            if book.wanted_workers(1) == 0 {
                break;
            }
            let order = background(&mut book).expect("a worker that is wanted finds work");
            book.finish_zeroing(order.job, Pages(1), Reach::Sole).expect("a legal move");
        }
        turns.push(book.levels()[0].ready_pages.0);
        // Emptied down to the low one: no worker before it is passed.
        for _ in 0..9 {
            if book.wanted_workers(1) > 0 {
                break;
            }
            turns.push(book.levels()[0].ready_pages.0);
            lend(&mut book, &ask(1));
        }
        turns.push(book.levels()[0].ready_pages.0);
    }
    assert_eq!(turns, [4, 4, 3, 2, 1].repeat(3));
}

#[test]
fn a_pool_that_was_full_for_a_moment_has_been_full() {
    let thresholds = PoolConfig { ready_low: Some(Pages(2)), ready_high: Pages(4), ..pool(0, 1) };
    let mut book = book([thresholds]);
    book.has_free(Node(0), PAGE, Pages(16));
    assert_eq!(book.wanted_workers(1), 1);
    make_ready(&mut book, key(0, 1), 4);
    // No question for workers in between.
    lend(&mut book, &ask(1));
    assert_eq!(book.wanted_workers(1), 0, "3 are ready, and it starts below 2");
}

#[test]
fn a_change_of_thresholds_goes_on_refilling() {
    let config = PoolConfig { ready_low: Some(Pages(2)), ready_high: Pages(4), ..pool(0, 1) };
    let mut book = book([config.clone()]);
    book.has_free(Node(0), PAGE, Pages(16));
    assert_eq!(book.wanted_workers(1), 1, "it starts below 2");
    make_ready(&mut book, key(0, 1), 3);
    book.configure(PoolConfig { ready_high: Pages(5), ..config.clone() }).expect("a good pool");
    assert_eq!(book.wanted_workers(1), 1, "between low and high it goes on");
    make_ready(&mut book, key(0, 1), 2);
    assert_eq!(book.wanted_workers(1), 0);
    lend(&mut book, &ask(2));
    book.configure(config).expect("a good pool");
    assert_eq!(book.wanted_workers(1), 0, "and does not start there");
}

#[test]
fn more_workers_are_wanted_the_fewer_pages_are_ready() {
    let mut book = book([PoolConfig { ready_high: Pages(8), ..pool(0, 1) }]);
    book.has_free(Node(0), PAGE, Pages(16));
    assert_eq!(book.wanted_workers(4), 4);
    assert_eq!(book.wanted_workers(0), 0);
    make_ready(&mut book, key(0, 1), 7);
    book.has_free(Node(0), PAGE, Pages(16));
    assert_eq!(book.wanted_workers(4), 2);
    book.has_free(Node(0), PAGE, Pages(0));
    assert_eq!(book.wanted_workers(4), 0, "there is nothing to zero");
}

#[test]
fn work_of_other_workers_counts_towards_high() {
    let mut book = book([PoolConfig { ready_high: Pages(4), ..pool(0, 2) }]);
    book.has_free(Node(0), PAGE, Pages(16));
    book.wanted_workers(4);
    assert!(background(&mut book).is_some() && background(&mut book).is_some());
    assert_eq!(background(&mut book), None);
    assert!(user(&mut book).is_some(), "a user's worker zeroes whatever can be");
}

#[test]
fn leave_free_and_max_bound_new_blocks() {
    let bounded = PoolConfig { leave_free: Pages(3), ..pool(0, 2) };
    let mut one = book([bounded.clone()]);
    one.has_free(Node(0), PAGE, Pages(8));
    assert_eq!(one.zeroable(key(0, 2)), Pages(4));
    assert!(user(&mut one).is_some() && user(&mut one).is_some());
    assert!(user(&mut one).is_none(), "8 - 2 * 2 leaves 4, and 3 are to stay");

    let mut two = book([PoolConfig { max: Some(Pages(5)), ..bounded }]);
    two.has_free(Node(0), PAGE, Pages(64));
    assert!(user(&mut two).is_some() && user(&mut two).is_some());
    assert!(user(&mut two).is_none(), "5 pages hold 2 blocks of 2");
}

#[test]
fn two_jobs_between_two_looks_do_not_count_on_one_page() {
    let mut book = book([pool(0, 2), pool(0, 3)]);
    book.has_free(Node(0), PAGE, Pages(4));
    let first = user(&mut book).expect("four pages are free").0;
    assert_eq!(first.pool, key(0, 2));
    assert_eq!(user(&mut book).expect("two more are").0.pool, key(0, 2));
    assert!(user(&mut book).is_none());
}

#[test]
fn a_block_that_was_begun_goes_on_where_it_was_left() {
    let mut book = book([pool(0, 4)]);
    book.has_free(Node(0), PAGE, Pages(4));
    let (order, effects) = user(&mut book).expect("four pages are free");
    assert_eq!(
        effects,
        [Effect::Create {
            block: order.block().expect("a block"),
            pages: Pages(4),
            fill: Pages::ZERO,
        }]
    );
    let finished = book.finish_zeroing(order.job, Pages(3), Reach::Sole).expect("a legal move");
    assert_eq!(finished.map(|(_, state, _)| state), Some(StateName::Zeroable));
    assert_eq!(book.zeroable(key(0, 4)), Pages::ZERO, "its last page is not free");
    assert!(user(&mut book).is_none());
    book.has_free(Node(0), PAGE, Pages(1));
    assert_eq!(book.zeroable(key(0, 4)), Pages(1));
    let (again, effects) = user(&mut book).expect("its last page is free");
    assert_eq!(
        (again.block().expect("a block"), again.first, again.by()),
        (order.block().expect("a block"), Pages(3), ZeroBy::Allocate)
    );
    assert_eq!(effects, [Effect::Move(order.block().expect("a block"))]);
    assert_eq!(book.available(key(0, 4).domain()), Pages::ZERO);
}

#[test]
fn a_block_that_was_begun_waits_for_leave_free() {
    let mut book = book([PoolConfig { leave_free: Pages(2), ..pool(0, 2) }]);
    book.has_free(Node(0), PAGE, Pages(4));
    let (order, _) = user(&mut book).expect("four pages are free");
    book.finish_zeroing(order.job, Pages(1), Reach::Sole).expect("a legal move");
    book.has_free(Node(0), PAGE, Pages(2));
    assert!(user(&mut book).is_none(), "its second page is one of the two to be left");
    book.has_free(Node(0), PAGE, Pages(3));
    assert!(user(&mut book).is_some());
}

#[test]
fn job_result_is_judged_by_pages_and_by_holders_of_the_file() {
    for (pages, reach, expected) in [
        (2, Reach::Sole, StateName::Ready),
        (1, Reach::Sole, StateName::Zeroable),
        (0, Reach::Sole, StateName::Zeroable),
        (3, Reach::Sole, StateName::Draining),
        (2, Reach::Shared, StateName::Draining),
        (2, Reach::Unknown, StateName::Draining),
    ] {
        let mut book = book([pool(0, 2)]);
        book.has_free(Node(0), PAGE, Pages(2));
        let (order, _) = user(&mut book).expect("two pages are free");
        let seen = format!("{reach:?}");
        let finished = book.finish_zeroing(order.job, Pages(pages), reach).expect("a legal move");
        let (block, state, effects) = finished.expect("a job that lives");
        assert_eq!((state, block), (expected, order.block()), "{pages} pages, {seen}");
        assert_eq!(effects, block.map(Effect::Move).as_slice());
        assert_eq!(book.job(order.job), None);
        assert_eq!(book.finish_zeroing(order.job, Pages(2), Reach::Sole), Ok(None));
    }
}

#[test]
fn a_report_of_less_than_was_done_before_is_not_believed() {
    let mut book = book([pool(0, 4)]);
    book.has_free(Node(0), PAGE, Pages(8));
    let (order, _) = user(&mut book).expect("pages are free");
    book.finish_zeroing(order.job, Pages(3), Reach::Sole).expect("a legal move");
    let (again, _) = user(&mut book).expect("a block that was begun");
    let finished = book.finish_zeroing(again.job, Pages(2), Reach::Sole).expect("a legal move");
    assert_eq!(finished.map(|(_, state, _)| state), Some(StateName::Draining));
}

#[test]
fn a_kernel_that_can_not_prove_reach_trusts_its_workers() {
    let mut book = Book::new([pool(0, 2)], false).expect("a good pool");
    book.has_free(Node(0), PAGE, Pages(2));
    let (order, _) = user(&mut book).expect("two pages are free");
    let finished = book.finish_zeroing(order.job, Pages(2), Reach::Unknown).expect("a legal move");
    assert_eq!(finished.map(|(_, state, _)| state), Some(StateName::Ready));
}

#[test]
fn lost_worker_leaves_its_block_draining() {
    let mut book = book([pool(0, 2)]);
    book.has_free(Node(0), PAGE, Pages(2));
    let (order, _) = user(&mut book).expect("two pages are free");
    assert_eq!(book.lose_job(order.job), [Effect::Move(order.block().expect("a block"))]);
    assert_eq!(state(&book, order.block().expect("a block")), Some(StateName::Draining));
    assert_eq!(book.lose_job(order.job), []);
    assert_eq!(book.finish_zeroing(order.job, Pages(2), Reach::Sole), Ok(None));
    assert_eq!(book.held_by(Uid(0)), Bytes(0), "no user is charged for it");
}

#[test]
fn the_pool_that_has_least_of_what_it_wants_comes_first() {
    let mut book = book([
        PoolConfig { ready_high: Pages(4), ..pool(0, 1) },
        PoolConfig { ready_high: Pages(4), ..pool(1, 1) },
    ]);
    make_ready(&mut book, key(0, 1), 2);
    make_ready(&mut book, key(1, 1), 1);
    for node in [0, 1] {
        book.has_free(Node(node), PAGE, Pages(8));
    }
    assert_eq!(user(&mut book).expect("pages are free").0.pool, key(1, 1));
    let here =
        book.take_zeroing(Requester::User, Some(Node(0)), Some(PAGE)).expect("pages are free");
    assert_eq!(here.0.pool, key(0, 1));
    assert!(book.take_zeroing(Requester::User, Some(Node(2)), None).is_none());
    assert!(book.take_zeroing(Requester::User, None, Some(PageSize::GIB_1)).is_none());
}

#[test]
fn a_used_block_is_cleared_even_after_its_pool_became_fresh() {
    // `fallocate` would leave its last client's bytes where they are.
    let in_place = PoolConfig { recycle: Recycle::InPlace, ..pool(0, 2) };
    let mut book = book([in_place]);
    make_ready(&mut book, key(0, 2), 1);
    let (loan, _) = lend(&mut book, &ask(2));
    bring_back(&mut book, &loan, 100);
    assert_eq!(state(&book, loan.parts[0].block), Some(StateName::Zeroable));
    book.configure(pool(0, 2)).expect("a good pool");
    let (order, _) = user(&mut book).expect("a dirty block");
    assert_eq!((order.block().expect("a block"), order.by()), (loan.parts[0].block, ZeroBy::Clear));
}

#[test]
fn a_reload_that_changes_nothing_ends_no_refilling() {
    let config = PoolConfig { ready_low: Some(Pages(2)), ready_high: Pages(4), ..pool(0, 1) };
    let mut book = book([config.clone()]);
    book.has_free(Node(0), PAGE, Pages(100));
    let fill = |book: &mut Book| {
        let taken = book.take_zeroing(Requester::Background, None, None);
        let (order, _) = taken.expect("it fills up to the high threshold");
        book.finish_zeroing(order.job, Pages(1), Reach::Sole).expect("a legal move");
    };
    assert_eq!(book.wanted_workers(1), 1);
    (0..2).for_each(|_| fill(&mut book));
    book.reconfigure(vec![config]).expect("a good pool");
    assert_eq!(book.wanted_workers(1), 1);
    (0..2).for_each(|_| fill(&mut book));
    assert_eq!(book.wanted_workers(1), 0);
}
