// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every refusal, and that it changes nothing.

use units::{Counts, ParseError};

use super::*;

fn refused(book: &mut Book, ask: &Asked) -> Refusal {
    let seen = |book: &Book| {
        let pools: Vec<_> =
            book.pool_keys().map(|k| book.pool_status(k, &Counts::default())).collect();
        (pools, book.levels(), book.loans(), book.held_by(ask.account))
    };
    let (before, refusals) = (seen(book), book.counters().refusals);
    let refusal = refusal(book, ask);
    assert_eq!(seen(book), before, "{refusal:?} changed something");
    let counted = u64::from(refusal != Refusal::OwnerDraining);
    assert_eq!(book.counters().refusals, refusals + counted);
    refusal
}

#[test]
fn partial_page_size_is_refused_with_the_next_whole_one() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 4);
    let odd = ask(1).with(|request| request.bytes = Bytes(bytes(1).0 + 1));
    let expected =
        ParseError::NotWholePages { bytes: Bytes(bytes(1).0 + 1), page: PAGE, next: bytes(2) };
    assert_eq!(refused(&mut book, &odd), Refusal::Size(expected));
    assert_eq!(refused(&mut book, &ask(0)), Refusal::Size(ParseError::Zero));
}

#[test]
fn a_node_or_page_size_without_a_pool_is_refused() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 4);
    let node = ask(1).on(1);
    assert_eq!(refused(&mut book, &node), Refusal::NoSuchPool);
    let size = ask(512).with(|request| request.page_size = Some(PageSize::GIB_1));
    assert_eq!(refused(&mut book, &size), Refusal::NoSuchPool);
    let mut empty = Book::new([], true).expect("no pools are good pools");
    assert_eq!(refused(&mut empty, &ask(1)), Refusal::NoSuchPool);
}

#[test]
fn quota_counts_lent_draining_and_kept() {
    let mut book = book([pool(0, 2)]);
    make_ready(&mut book, key(0, 2), 4);
    let quota = Some(bytes(4));
    let mine = Asked { quota, ..ask(2).kept("guest", 60) };
    let (first, _) = lend(&mut book, &mine);
    let (second, _) = lend(&mut book, &mine);
    let over = Refusal::Quota { held: bytes(4), quota: bytes(4) };
    assert_eq!(refused(&mut book, &mine), over, "lent");
    book.end_lease(first.lease);
    assert_eq!(refused(&mut book, &mine), over, "draining");
    bring_back(&mut book, &second, 100);
    book.settle(first.parts[0].block, Reach::Sole, 100);
    let other = mine.with(|request| request.owner = None);
    assert_eq!(refused(&mut book, &other), over, "kept");
    assert!(lend(&mut book, &mine).0.kept, "its own content is counted already");
    assert!(
        book.lend(&Asked { uid: Uid(7), account: Uid(7), ..mine.clone() }).is_ok(),
        "another user"
    );
}

#[test]
fn more_than_there_is_is_refused_with_what_there_is() {
    let left_free = PoolConfig { leave_free: Pages(1), ..pool(1, 2) };
    let mut book = book([pool(0, 2), left_free]);
    make_ready(&mut book, key(0, 2), 2);
    lend(&mut book, &ask_one_file(2));
    book.has_free(Node(0), PAGE, Pages(3));
    book.has_free(Node(1), PAGE, Pages(4));
    for (one_file, pages) in [(true, 6), (false, 8)] {
        let all = Refusal::NotEnough {
            page_size: PAGE,
            ready: bytes(2),
            free: bytes(7),
            left_free: bytes(1),
            in_use: bytes(2),
        };
        assert_eq!(refused(&mut book, &ask(pages).with(|request| request.single = one_file)), all);
    }
    let huge = ask(1).with(|request| request.bytes = Bytes(1 << 63));
    assert!(matches!(refused(&mut book, &huge), Refusal::NotEnough { .. }));
    assert!(book.lend(&ask_one_file(5)).is_ok(), "and what there is can be had");
}

#[test]
fn an_owner_may_wait_for_its_content_that_is_still_mapped() {
    let mut book = book([pool(0, 2)]);
    make_ready(&mut book, key(0, 2), 2);
    let mine = Asked { await_owner: true, ..ask(2).kept("guest", 60) };
    let (loan, _) = lend(&mut book, &mine);
    book.end_lease(loan.lease);
    book.settle(loan.parts[0].block, Reach::Shared, 100);
    assert_eq!(refused(&mut book, &mine), Refusal::OwnerDraining);
    let impatient = Asked { await_owner: false, ..mine.clone() };
    assert!(!lend(&mut book, &impatient).0.kept, "other memory, at once");
    book.settle(loan.parts[0].block, Reach::Sole, 100);
    assert!(lend(&mut book, &mine).0.kept);
}

#[test]
fn a_pool_that_breaks_a_rule_is_refused_and_the_old_one_stays() {
    let mut book = book([PoolConfig { ready_high: Pages(4), ..pool(0, 1) }]);
    let bad = PoolConfig { ready_low: Some(Pages(5)), ready_high: Pages(4), ..pool(0, 1) };
    assert!(book.configure(bad.clone()).is_err());
    assert_eq!(book.pool_config(key(0, 1)).and_then(|p| p.ready_low), None);
    assert!(Book::new([bad], true).is_err());
    assert!(Book::new([pool(0, 1), pool(0, 1)], true).is_err());
}
