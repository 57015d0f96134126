// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the book tells of loans, users and pools.

use std::collections::BTreeSet;

use super::*;
use crate::block::Block;
use crate::book::Named;

const HERE: Domain = Domain { node: Node(0), page_size: PAGE };

#[test]
fn loan_status_has_page_size_unbacked_and_grown_pages() {
    let mut book = book([pool(0, 2)]);
    make_ready(&mut book, key(0, 2), 1);
    book.has_free(Node(0), PAGE, Pages(4));
    let (loan, _) = lend(&mut book, &ask(4));
    book.record_growth(loan.parts[0].block, Pages(5));
    let reported = &book.loans()[0];
    assert_eq!(
        (reported.page_size.bytes(), reported.pages, reported.grown_pages),
        (PAGE.bytes(), Pages(4), Pages(3))
    );
    assert_eq!((reported.ready_pages, reported.unbacked_pages), (Pages(2), Pages(2)));
    assert_eq!(book.held_by(Uid(1000)), bytes(7), "all of it counts");
    assert_eq!(book.accounts().collect::<Vec<_>>(), [Uid(1000)]);
}

#[test]
fn user_without_holdings_has_no_account() {
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
fn draining_pages_are_counted_by_holder_in_their_own_pool() {
    let mut book = book([pool(0, 1), pool(0, 2)]);
    make_ready(&mut book, key(0, 1), 2);
    make_ready(&mut book, key(0, 2), 1);
    for (pages, reach) in [(1, Reach::Mapped), (1, Reach::Pinned), (2, Reach::Pinned)] {
        let (loan, _) = lend(&mut book, &ask_one_file(pages));
        book.end_lease(loan.lease);
        book.settle(loan.parts[0].block, reach, 100).expect("it is draining");
    }
    let reported = |pages| {
        let status = book.pool_status(key(0, pages), &Counts::default()).expect("a pool");
        (status.draining_pages.0, status.mapped_pages.0, status.pinned_pages.0)
    };
    assert_eq!((reported(1), reported(2)), ((2, 1, 1), (2, 0, 2)));
}

#[test]
fn only_lent_blocks_with_missing_pages_are_unbacked() {
    let mut book = book([pool(0, 1), pool(1, 1)]);
    make_ready(&mut book, key(0, 1), 1);
    lend(&mut book, &ask(1).on(0));
    assert_eq!(book.unbacked(key(0, 1).domain()).count(), 0, "all of it is there");
    book.has_free(Node(1), PAGE, Pages(2));
    let (loan, _) = lend(&mut book, &ask(2).on(1));
    assert_eq!(book.unbacked(key(0, 1).domain()).count(), 0, "on another node");
    let unbacked: Vec<_> = book.unbacked(key(1, 1).domain()).map(|block| block.id()).collect();
    assert_eq!(unbacked, loan.parts.iter().map(|part| part.block).collect::<Vec<_>>());
}

#[test]
fn agents_see_each_domain_by_itself() {
    let mut book = book([pool(0, 1), pool(1, 1)]);
    make_ready(&mut book, key(0, 1), 3);
    book.has_free(Node(1), PAGE, Pages(5));
    let supplies = book.supply_by_domain();
    let reported: Vec<_> =
        supplies.iter().map(|of| (of.node.0, of.total_bytes, of.ready_bytes)).collect();
    assert_eq!(reported, [(0, bytes(3), bytes(3)), (1, bytes(5), Bytes(0))]);
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
fn resumed_work_of_a_worker_is_counted_once() {
    let mut book = book([pool(0, 4)]);
    for done in [1, 3, 4] {
        book.has_free(Node(0), PAGE, Pages(4));
        let (order, _) = book.take_zeroing(Requester::User, None, None).expect("not all is zeroed");
        book.finish_zeroing(order.job, Pages(done), Reach::Sole).expect("a legal move");
        assert_eq!(book.counters().zeroed_bytes, bytes(done));
    }
}

#[test]
fn loan_status_has_borrower_and_nodes() {
    let mut book = book([pool(0, 2), pool(1, 2)]);
    make_ready(&mut book, key(0, 2), 1);
    make_ready(&mut book, key(1, 2), 1);
    let both = Asked { uid: Uid(7), account: Uid(8), ..ask(4).kept("guest", 60) };
    let (loan, _) = lend(&mut book, &both);
    let reported = book.loans();
    let [reported] = &reported[..] else { panic!("{reported:?}") };
    assert_eq!((reported.lease, reported.uid, reported.account), (loan.lease, Uid(7), Uid(8)));
    assert_eq!(
        (reported.owner.as_deref(), reported.nodes.as_slice()),
        (Some("guest"), &[Node(0), Node(1)][..])
    );
    assert!(book.has_lease(loan.lease));
    book.end_lease(loan.lease);
    assert!(!book.has_lease(loan.lease) && book.loans().is_empty());
}

#[test]
fn kept_block_cannot_grow() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 3);
    let growable =
        |book: &Book| -> BTreeSet<_> { book.growable(Uid(1000)).map(Block::id).collect() };
    let (kept, _) = lend(&mut book, &ask(1).kept("guest", 60));
    let (lent, _) = lend(&mut book, &ask(1));
    let (draining, _) = lend(&mut book, &ask(1));
    let [kept, lent, draining] =
        [kept, lent, draining].map(|loan| (loan.lease, loan.parts[0].block));
    assert_eq!(growable(&book), [kept.1, lent.1, draining.1].into());
    book.end_lease(draining.0);
    book.end_lease(kept.0);
    book.settle(kept.1, Reach::Sole, 100).expect("it is draining");
    assert_eq!(growable(&book), [lent.1, draining.1].into());
}

#[test]
fn block_with_a_lost_file_has_no_holder_and_others_stay() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 2);
    book.has_free(Node(0), PAGE, Pages(2));
    let (loan, _) = lend(&mut book, &ask(2));
    let jobs =
        [0, 1].map(|_| book.take_zeroing(Requester::User, None, None).expect("pages are free").0);
    let [lost, left] = [0, 1].map(|nth| loan.parts[nth].block);
    let zeroed = jobs[0].block().expect("a job on a block");
    book.forget(lost);
    book.forget(zeroed);
    assert_eq!(book.lease_blocks(loan.lease), [left]);
    assert!(book.job(jobs[0].job).is_none() && book.job(jobs[1].job).is_some());
    assert_eq!(book.loans()[0].pages, Pages(1));
}

#[test]
fn auto_recycling_is_in_place_where_pins_are_visible() {
    use crate::config::Recycle;
    let as_is_best = PoolConfig { recycle: Recycle::Auto, ..pool(0, 1) };
    let large = PoolKey { page_size: PageSize::GIB_1, ..key(1, 1) };
    let configured = PoolConfig { recycle: Recycle::InPlace, ..PoolConfig::new(large) };
    let mut book = book([as_is_best, configured]);
    let recycles = |book: &Book| {
        [key(0, 1), large]
            .map(|key| book.pool_status(key, &Counts::default()).expect("a pool").recycle)
    };
    assert_eq!(book.misses_pins_of().collect::<Vec<_>>(), [PAGE]);
    assert_eq!(recycles(&book), [Recycle::Fresh, Recycle::InPlace]);
    book.see_pins_of([PAGE]);
    assert_eq!(book.misses_pins_of().count(), 0);
    assert_eq!(recycles(&book), [Recycle::Auto, Recycle::InPlace]);
    book.see_pins_of([PageSize::GIB_1]);
    assert_eq!(book.misses_pins_of().collect::<Vec<_>>(), [PAGE], "of others it does not matter");
}

#[test]
fn filling_pools_are_listed_with_their_progress() {
    let refilled = |node, low, high| PoolConfig {
        ready_low: Some(Pages(low)),
        ready_high: Pages(high),
        ..pool(node, 1)
    };
    let mut book = book([refilled(0, 2, 4), refilled(1, 0, 4)]);
    make_ready(&mut book, key(0, 1), 1);
    make_ready(&mut book, key(1, 1), 1);
    for node in [0, 1] {
        book.has_free(Node(node), PAGE, Pages(9));
    }
    assert_eq!(book.wanted_workers(1), 1);
    assert_eq!(book.refilling_nodes(), [Node(0)]);
    assert_eq!(book.filling(), [(key(0, 1), (Pages(1), Pages(4)))].into());
    // A worker that has all that is left is wanted until it is done.
    book.has_free(Node(0), PAGE, Pages(1));
    book.take_zeroing(Requester::Background, Some(Node(0)), None).expect("a page is free");
    assert_eq!(book.wanted_workers(1), 1, "one is at work");
    let full = make_ready(&mut book, key(0, 1), 3).len();
    assert_eq!((full, book.wanted_workers(1)), (3, 0));
    assert!(book.refilling_nodes().is_empty() && book.filling().is_empty());
}

#[test]
fn agents_see_all_of_a_pool_of_several_sizes() {
    let config = PoolConfig { ready_high: Pages(16), ..PoolConfig::new(PoolKey::mixed(HERE)) };
    let mut book = book([config]);
    book.has_free(Node(0), PAGE, Pages(20));
    while book.wanted_workers(1) > 0 {
        let (order, _) =
            book.take_zeroing(Requester::Background, None, None).expect("it is wanted");
        let all = order.pool.pages_per_block;
        book.finish_zeroing(order.job, all, Reach::Sole).expect("a legal move");
    }
    let reported = &book.supply_by_domain()[0];
    assert_eq!((reported.ready_bytes, reported.total_bytes), (bytes(16), bytes(20)));
}

#[test]
fn agents_see_how_much_of_their_domain_is_lent_by_name() {
    let mut book = book([pool(0, 1), pool(1, 1)]);
    make_ready(&mut book, key(0, 1), 2);
    make_ready(&mut book, key(1, 1), 1);
    for (name, node) in [("a/1", 0), ("a/2", 0), ("a/3", 1)] {
        let named = Named { name: name.parse().expect("a name"), quota: None, most: 9 };
        let (loan, _) = lend(&mut book, &Asked { named: Some(named), ..ask_one_file(1).on(node) });
        if name != "a/3" {
            book.hold_by_name(loan.lease);
        }
    }
    let reported = book.supply_by_domain();
    let named: Vec<_> = reported.iter().map(|of| (of.node.0, of.named_bytes)).collect();
    let why = "one is not held by its name yet, and takes its page all the same";
    assert_eq!(named, [(0, bytes(2)), (1, bytes(1))], "{why}");
}

#[test]
fn loans_are_counted_by_ready_and_kept_bytes() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 2);
    book.has_free(Node(0), PAGE, Pages(9));
    let mine = ask(1).kept("guest", 60);
    for nth in 1..=2 {
        let (loan, _) = lend(&mut book, &mine);
        assert_eq!(loan.kept, nth == 2);
        bring_back(&mut book, &loan, 100);
    }
    lend(&mut book, &ask_one_file(3));
    let counters = book.counters();
    assert_eq!((counters.loans, counters.kept_loans), (3, 1));
    // Kept content is left alone, early and late.
    assert_eq!((counters.lent_ready_bytes, counters.lent_unbacked_bytes), (bytes(2), bytes(2)));
}

#[test]
fn each_job_and_each_loan_has_a_number_of_its_own() {
    let mut book = book([pool(0, 1)]);
    book.has_free(Node(0), PAGE, Pages(9));
    let jobs = [0; 3].map(|_| book.take_zeroing(Requester::User, None, None).expect("free").0.job);
    let mine = ask(1).kept("guest", 60);
    let mut leases = Vec::new();
    for _ in 0..3 {
        let (loan, _) = lend(&mut book, &mine);
        leases.push(loan.lease);
        bring_back(&mut book, &loan, 100);
    }
    assert!(jobs.is_sorted_by(|a, b| a < b) && leases.is_sorted_by(|a, b| a < b));
}
