// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which blocks a loan is served from, and which one a worker gets.

use super::*;
use crate::config::PoolSize;

/// A book with this number of ready blocks of four pages, and this number of free pages.
fn with_ready(blocks: u64, free: u64) -> Book {
    let mut book = book([pool(0, 4)]);
    make_ready(&mut book, key(0, 4), blocks);
    book.has_free(Node(0), PAGE, Pages(free));
    book
}

/// How long each part of a loan is, and how much of that is ready.
fn lengths(loan: &Loan) -> Vec<(u64, u64)> {
    loan.parts.iter().map(|part| (part.pages.0, part.ready.0)).collect()
}

#[test]
fn worker_gets_a_block_of_the_pool_furthest_from_its_target() {
    let large = PoolConfig { ready_high: Pages(100), ..pool(0, 10) };
    let small = PoolConfig { ready_high: Pages(4), ..pool(0, 1) };
    let mut book = book([large, small]);
    book.has_free(Node(0), PAGE, Pages(1000));
    let mut taken = Vec::new();
    for _ in 0..5 {
        let (order, _) = book.take_zeroing(Requester::User, None, None).expect("work");
        let size = order.pool.pages_per_block;
        book.finish_zeroing(order.job, size, Reach::Sole).expect("a legal move");
        taken.push(size.0);
    }
    // Nothing of either; a quarter of the small one; then three tenths before the second quarter.
    assert_eq!(taken, [1, 10, 10, 10, 1]);
}

#[test]
fn loan_has_at_most_the_parts_that_its_borrower_takes() {
    let most = |pages, most_blocks| {
        let mut ask = ask(pages);
        ask.request.most_blocks = Some(most_blocks);
        ask
    };
    for (pages, most_blocks, expected) in [
        (8, 2, &[(4, 4), (4, 4)][..]),
        (10, 3, &[(4, 4), (4, 4), (2, 2)][..]),
        (10, 2, &[(4, 4), (6, 0)][..]),
        (4, 1, &[(4, 4)][..]),
        (5, 1, &[(5, 0)][..]),
    ] {
        let mut book = with_ready(4, 100);
        let loan = lend(&mut book, &most(pages, most_blocks)).0;
        assert_eq!(lengths(&loan), expected, "{pages} pages in {most_blocks} parts");
    }
}

#[test]
fn ready_block_is_cut_below_half_only_if_nothing_else_is_free() {
    for (pages, free, expected) in [
        (2, 100, &[(2, 2)][..]),
        (1, 100, &[(1, 0)][..]),
        (1, 0, &[(1, 1)][..]),
        (5, 100, &[(4, 4), (1, 1)][..]),
    ] {
        for is_one_file in [false, true] {
            if is_one_file && pages > 4 {
                continue;
            }
            let mut book = with_ready(2, free);
            let ask = if is_one_file { ask_one_file(pages) } else { ask(pages) };
            let loan = lend(&mut book, &ask).0;
            assert_eq!(lengths(&loan), expected, "{pages} pages beside {free}, {is_one_file}");
        }
    }
}

#[test]
fn new_block_takes_no_page_of_unfinished_blocks() {
    let mut book = book([pool(0, 4)]);
    book.has_free(Node(0), PAGE, Pages(4));
    let (order, _) = book.take_zeroing(Requester::User, None, None).expect("work");
    book.finish_zeroing(order.job, Pages(1), Reach::Sole).expect("a legal move");
    book.configure(pool(0, 2)).expect("a good pool");
    let zeroable = |book: &Book| [4, 2].map(|size| book.zeroable(key(0, size)).0);
    for (free, expected) in [(2, [0, 0]), (3, [3, 0]), (4, [3, 0]), (5, [3, 2])] {
        book.has_free(Node(0), PAGE, Pages(free));
        assert_eq!(zeroable(&book), expected, "3 pages are missed, and {free} are free");
    }
}

#[test]
fn block_that_is_no_longer_wanted_ready_is_not_zeroed() {
    let mut book = book([pool(0, 4), pool(0, 2)]);
    [4, 2].into_iter().for_each(|size| drop(make_ready(&mut book, key(0, size), 1)));
    book.has_free(Node(0), PAGE, Pages(100));
    for pages in [4, 2] {
        let loan = lend(&mut book, &ask_one_file(pages)).0;
        bring_back(&mut book, &loan, 100);
    }
    let has = |book: &Book, size| book.zeroable(key(0, size)) > Pages::ZERO;
    assert!(has(&book, 4) && has(&book, 2));
    book.reconfigure(vec![pool(0, 4)]).expect("a good pool");
    assert!(has(&book, 4) && !has(&book, 2));
}

#[test]
fn pool_of_several_sizes_counts_pages_of_its_own_node_alone() {
    let mixed = |node| {
        let domain = Domain { node: Node(node), page_size: PAGE };
        PoolConfig { ready_high: Pages(16), ..PoolConfig::new(PoolKey::mixed(domain)) }
    };
    let mut book = book([mixed(0), mixed(1)]);
    book.has_free(Node(0), PAGE, Pages(16));
    let of = |book: &Book, node| {
        let domain = Domain { node: Node(node), page_size: PAGE };
        book.zeroable(PoolKey::mixed(domain))
    };
    assert_eq!((of(&book, 0), of(&book, 1)), (Pages(16), Pages::ZERO));
}

#[test]
fn a_pool_that_may_grow_elsewhere_is_not_waited_for_here() {
    let resize = PoolSize { size_max: Some(Pages(100)), ..PoolSize::default() };
    let mut book = book([pool(0, 1), PoolConfig { resize, ..pool(1, 1) }]);
    for node in [0, 1] {
        let domain = Domain { node: Node(node), page_size: PAGE };
        book.observe(domain, &Counts { total: Pages(10), ..Counts::default() });
    }
    let on = |node| LendRequest { node: Some(Node(node)), ..ask(50).request };
    assert!(!book.can_be_served(&on(0), &[]), "there are 10");
    assert!(book.can_be_served(&on(1), &[]), "there may be 100");
}
