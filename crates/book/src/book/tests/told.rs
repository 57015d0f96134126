// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the book tells of loans, users and pools.

use super::*;
use crate::book::Named;

#[test]
fn a_loan_is_told_with_its_page_size_its_hole_and_what_its_files_grew_by() {
    let mut book = book([pool(0, 2)]);
    make_ready(&mut book, key(0, 2), 1);
    book.has_free(Node(0), PAGE, Pages(4));
    let (loan, _) = lend(&mut book, &ask(4));
    book.note_growth(loan.parts[0].block, Pages(5));
    let told = &book.loans()[0];
    assert_eq!((told.page_bytes, told.pages, told.grown_pages), (PAGE.bytes(), 4, 3));
    assert_eq!((told.ready_pages, told.hole_pages), (2, 2));
    assert_eq!(book.held_by(Uid(1000)), bytes(7), "all of it counts");
    assert_eq!(book.accounts().collect::<Vec<_>>(), [Uid(1000)]);
}

#[test]
fn who_holds_nothing_is_no_account() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 2);
    let (mine, _) = lend(&mut book, &ask(1));
    let theirs = Asked { uid: Uid(7), account: Uid(7), ..ask(1) };
    lend(&mut book, &theirs);
    assert_eq!(book.accounts().collect::<Vec<_>>(), [Uid(7), Uid(1000)]);
    bring_back(&mut book, &mine, 100);
    assert_eq!(book.accounts().collect::<Vec<_>>(), [Uid(7)]);
}

#[test]
fn lingering_pages_are_told_by_what_holds_them_in_their_own_pool() {
    let mut book = book([pool(0, 1), pool(0, 2)]);
    make_ready(&mut book, key(0, 1), 2);
    make_ready(&mut book, key(0, 2), 1);
    for (pages, reach) in [(1, Reach::Mapped), (1, Reach::Pinned), (2, Reach::Pinned)] {
        let (loan, _) = lend(&mut book, &ask_one_file(pages));
        book.end_lease(loan.lease);
        book.settle(loan.parts[0].block, reach, 100).expect("it lingers");
    }
    let told = |pages| {
        let status = book.pool_status(key(0, pages), &Counts::default()).expect("a pool");
        (status.lingering_pages, status.mapped_pages, status.pinned_pages)
    };
    assert_eq!((told(1), told(2)), ((2, 1, 1), (2, 0, 2)));
}

#[test]
fn only_lent_blocks_of_that_domain_with_missing_pages_are_holes() {
    let mut book = book([pool(0, 1), pool(1, 1)]);
    make_ready(&mut book, key(0, 1), 1);
    lend(&mut book, &ask(1).on(0));
    assert_eq!(book.holes(key(0, 1).domain()).count(), 0, "all of it is there");
    book.has_free(Node(1), PAGE, Pages(2));
    let (loan, _) = lend(&mut book, &ask(2).on(1));
    assert_eq!(book.holes(key(0, 1).domain()).count(), 0, "on another node");
    let holes: Vec<_> = book.holes(key(1, 1).domain()).map(|block| block.id()).collect();
    assert_eq!(holes, loan.parts.iter().map(|part| part.block).collect::<Vec<_>>());
}

#[test]
fn agents_are_told_of_each_domain_by_itself() {
    let mut book = book([pool(0, 1), pool(1, 1)]);
    make_ready(&mut book, key(0, 1), 3);
    book.has_free(Node(1), PAGE, Pages(5));
    let supplies = book.supply_by_domain();
    let told: Vec<_> =
        supplies.iter().map(|of| (of.node, of.total_bytes, of.ready_bytes)).collect();
    assert_eq!(told, [(0, bytes(3).0, bytes(3).0), (1, bytes(5).0, 0)]);
}

#[test]
fn a_scope_may_hold_all_of_its_quota_and_not_a_byte_more() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 3);
    let named = |name: &str, pages| {
        let name = name.parse().expect("a name");
        let named = Named { name, quota: Some(bytes(2)), most: 10 };
        Asked { named: Some(named), ..ask_one_file(pages) }
    };
    lend(&mut book, &named("a/1", 1));
    lend(&mut book, &named("a/2", 1));
    let refused = refusal(&mut book, &named("a/3", 1));
    assert_eq!(refused, Refusal::ScopeQuota { held: bytes(2), quota: bytes(2) });
    lend(&mut book, &named("b/1", 1));
}

#[test]
fn what_a_worker_went_on_with_is_counted_once() {
    let mut book = book([pool(0, 4)]);
    for done in [1, 3, 4] {
        book.has_free(Node(0), PAGE, Pages(4));
        let (order, _) = book.take_zeroing(Who::User, None, None).expect("not all is zeroed");
        book.finish_zeroing(order.job, Pages(done), Reach::Sole).expect("a legal move");
        assert_eq!(book.counters().zeroed_bytes, bytes(done).0);
    }
}
