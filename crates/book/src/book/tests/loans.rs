// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans of each shape.

use wire::MAX_MESSAGE_PARTS;

use super::*;
use crate::block::{Block, Settled};

#[test]
fn a_block_of_exactly_the_size_is_lent_as_it_is() {
    let mut book = book([pool(0, 4), pool(0, 8)]);
    let small = make_ready(&mut book, key(0, 4), 1);
    make_ready(&mut book, key(0, 8), 1);
    let (loan, effects) = lend(&mut book, &ask_one_file(4));
    assert_eq!(parts(&loan), [(small[0], 4, 4)]);
    assert_eq!(effects, [Effect::Move(small[0])]);
    assert_eq!(book.place(small[0]), Some((StateName::Lent, "b1-n0-p4-l1-i0-u1000-g4".to_owned())));
}

#[test]
fn the_smallest_larger_block_is_trimmed() {
    let mut book = book([pool(0, 4), pool(0, 8)]);
    let larger = make_ready(&mut book, key(0, 4), 1)[0];
    make_ready(&mut book, key(0, 8), 1);
    let (loan, effects) = lend(&mut book, &ask_one_file(3));
    assert_eq!(parts(&loan), [(larger, 3, 3)]);
    assert_eq!(effects, [Effect::Move(larger), Effect::Resize { block: larger, pages: Pages(3) }]);
}

// Promise P17.
#[test]
fn large_block_is_trimmed_for_a_small_loan_only_as_last_resort() {
    let mut book = book([pool(0, 8)]);
    let block = make_ready(&mut book, key(0, 8), 1)[0];
    book.has_free(Node(0), PAGE, Pages(3));
    for ask in [ask_one_file(3), ask(1)] {
        let (loan, effects) = lend(&mut book, &ask);
        assert_eq!(loan.parts.iter().map(|part| part.ready.0).sum::<u64>(), 0, "{effects:?}");
        assert_eq!(book.block(block).map(Block::state_name), Some(StateName::Ready));
        book.has_free(Node(0), PAGE, Pages(3));
    }
    // Half of it is not thrown away for less.
    let (loan, _) = lend(&mut book, &ask_one_file(4));
    assert_eq!(parts(&loan), [(block, 4, 4)]);
    let last = make_ready(&mut book, key(0, 8), 1)[0];
    book.has_free(Node(0), PAGE, Pages(0));
    let (loan, _) = lend(&mut book, &ask_one_file(1));
    assert_eq!(parts(&loan), [(last, 1, 1)]);
}

#[test]
fn largest_smaller_block_grows_by_an_unbacked_part() {
    let mut book = book([pool(0, 2), pool(0, 4)]);
    make_ready(&mut book, key(0, 2), 1);
    let larger = make_ready(&mut book, key(0, 4), 1)[0];
    book.has_free(Node(0), PAGE, Pages(2));
    let (loan, effects) = lend(&mut book, &ask_one_file(6));
    assert_eq!(parts(&loan), [(larger, 6, 4)]);
    assert_eq!(effects, [Effect::Move(larger), Effect::Resize { block: larger, pages: Pages(6) }]);
    assert_eq!(book.available(key(0, 4).domain()), Pages::ZERO, "the unbacked part is promised");
    let counters = book.counters();
    assert_eq!((counters.lent_ready_bytes, counters.lent_unbacked_bytes), (bytes(4), bytes(2)));
}

// Promise P209 (fallback): A loan that not even all pages on their way could serve is refused at
// once.
#[test]
fn loan_that_pages_in_flight_cannot_serve_need_not_wait() {
    let mut book = book([pool(0, 1), pool(1, 1)]);
    let here = |node| key(node, 1).domain();
    for (node, pages) in [(0, 4), (1, 2)] {
        let seen = Counts { available: Pages(pages), total: Pages(pages), ..Counts::default() };
        book.observe(here(node), &seen);
    }
    let may = |book: &Book, ask: &Asked, ending: &[units::LeaseId]| {
        book.can_be_served(&ask.request, ending)
    };
    assert!(may(&book, &ask(6), &[]) && !may(&book, &ask(7), &[]));
    assert!(may(&book, &ask_one_file(4), &[]) && !may(&book, &ask_one_file(5), &[]));
    assert!(!may(&book, &ask(3).on(1), &[]));
    let (loan, _) = lend(&mut book, &ask_one_file(3));
    let lease = loan.lease;
    assert!(may(&book, &ask(3), &[]) && !may(&book, &ask(4), &[]), "it stays lent");
    assert!(may(&book, &ask(6), &[lease]), "or is about to end");
    book.end_lease(lease);
    assert!(may(&book, &ask(6), &[]), "or is draining");
    let other = ask(6).with(|request| request.page_size = Some(PageSize::GIB_1));
    assert!(!may(&book, &other, &[]), "no pool has such pages");
}

#[test]
fn unmapped_unbacked_pages_are_no_more_than_there_are() {
    let mut book = book([pool(0, 1)]);
    let look = |book: &mut Book| {
        // No mapping exists: all of it is free at each look.
        let seen = Counts { available: Pages(3), total: Pages(4), ..Counts::default() };
        book.observe(key(0, 1).domain(), &seen);
    };
    for _ in 0..4 {
        look(&mut book);
        book.lend(&ask_one_file(1)).expect("one of four");
    }
    look(&mut book);
    assert!(matches!(book.lend(&ask_one_file(1)), Err(Refusal::NotEnough { .. })));
}

#[test]
fn loan_without_ready_pages_is_unbacked() {
    let mut book = book([pool(0, 2)]);
    book.has_free(Node(0), PAGE, Pages(5));
    for one_file in [true, false] {
        book.has_free(Node(0), PAGE, Pages(5));
        let (loan, effects) = lend(&mut book, &ask(5).with(|request| request.single = one_file));
        let block = loan.parts[0].block;
        assert_eq!(parts(&loan), [(block, 5, 0)]);
        assert_eq!(effects, [Effect::Create { block, pages: Pages(5), fill: Pages::ZERO }]);
        assert_eq!(state(&book, block), Some(StateName::Lent));
    }
}

#[test]
fn unbacked_part_takes_unlent_blocks_if_the_kernel_lacks_pages() {
    let mut book = book([pool(0, 1), pool(0, 2)]);
    let ready = make_ready(&mut book, key(0, 1), 4);
    book.has_free(Node(0), PAGE, Pages(1));
    let (loan, effects) = lend(&mut book, &ask_one_file(4));
    // One block is grown by three pages: one is free, two come from other blocks.
    let grown = loan.parts[0].block;
    assert_eq!(parts(&loan), [(grown, 4, 1)]);
    let given: Vec<_> = ready.into_iter().filter(|b| *b != grown).take(2).collect();
    assert_eq!(
        effects,
        [
            Effect::Remove(given[0]),
            Effect::Remove(given[1]),
            Effect::Move(grown),
            Effect::Resize { block: grown, pages: Pages(4) },
        ]
    );
}

#[test]
fn several_blocks_fill_a_loan_largest_first_then_one_trimmed() {
    let mut book = book([pool(0, 1), pool(0, 4)]);
    let small = make_ready(&mut book, key(0, 1), 1)[0];
    let large = make_ready(&mut book, key(0, 4), 3);
    let (loan, effects) = lend(&mut book, &ask(11));
    let (first, second, last) = (large[2], large[1], large[0]);
    assert_eq!(parts(&loan), [(first, 4, 4), (second, 4, 4), (small, 1, 1), (last, 2, 2)]);
    assert_eq!(effects.last(), Some(&Effect::Resize { block: last, pages: Pages(2) }));
    let indices: Vec<_> = loan.parts.iter().map(|p| book.place(p.block).unwrap().1).collect();
    assert!(indices[3].contains("-i3-"), "{indices:?}");
}

#[test]
fn no_block_is_planned_twice() {
    // 3 fits into 8, and later also is larger than the 1 that is left.
    let mut book = book([pool(0, 1), pool(0, 3)]);
    make_ready(&mut book, key(0, 1), 4);
    let three = make_ready(&mut book, key(0, 3), 1)[0];
    book.has_free(Node(0), PAGE, Pages(1));
    let (loan, _) = lend(&mut book, &ask(8));
    assert_eq!(loan.parts.iter().map(|p| p.pages.0).sum::<u64>(), 8);
    assert_eq!(loan.parts.iter().filter(|p| p.block == three).count(), 1);
    assert_eq!(
        loan.parts.last().map(|p| p.ready),
        Some(Pages::ZERO),
        "the rest is an unbacked part"
    );
}

#[test]
fn one_node_that_serves_all_of_it_beats_two() {
    let mut book = book([pool(0, 2), pool(1, 2)]);
    make_ready(&mut book, key(0, 2), 1);
    make_ready(&mut book, key(1, 2), 2);
    let (loan, _) = lend(&mut book, &ask(4));
    assert!(loan.parts.iter().all(|p| p.node == Node(1)), "{loan:?}");
}

#[test]
fn two_nodes_that_serve_all_of_it_beat_an_unbacked_part() {
    let mut book = book([pool(0, 2), pool(1, 2)]);
    make_ready(&mut book, key(0, 2), 1);
    make_ready(&mut book, key(1, 2), 1);
    book.has_free(Node(0), PAGE, Pages(8));
    let (loan, _) = lend(&mut book, &ask(4));
    assert_eq!(loan.parts.iter().map(|p| p.ready.0).sum::<u64>(), 4);
    assert_ne!(loan.parts[0].node, loan.parts[1].node);
}

#[test]
fn one_file_comes_from_the_node_that_has_it_ready() {
    // Node 0 has more pages ready, node 1 has them in one block.
    let mut book = book([pool(0, 1), pool(1, 4)]);
    make_ready(&mut book, key(0, 1), 6);
    let whole = make_ready(&mut book, key(1, 4), 1)[0];
    book.has_free(Node(0), PAGE, Pages(8));
    let (loan, _) = lend(&mut book, &ask_one_file(4));
    assert_eq!(parts(&loan), [(whole, 4, 4)]);
}

#[test]
fn a_node_that_is_asked_for_is_the_only_one() {
    let mut book = book([pool(0, 2), pool(1, 2)]);
    make_ready(&mut book, key(0, 2), 4);
    book.has_free(Node(1), PAGE, Pages(2));
    let (loan, _) = lend(&mut book, &ask(2).on(1));
    assert_eq!((loan.parts[0].node, loan.parts[0].ready), (Node(1), Pages::ZERO));
}

// Promise P132.
#[test]
fn a_loan_has_no_more_parts_than_its_borrower_can_take() {
    let mut book = book([pool(0, 1)]);
    let all = MAX_MESSAGE_PARTS as u64 + 48;
    make_ready(&mut book, key(0, 1), all);
    let (loan, effects) = lend(&mut book, &ask(all));
    assert_eq!(loan.parts.len(), MAX_MESSAGE_PARTS);
    let unbacked = loan.parts.last().expect("it has parts");
    assert_eq!((unbacked.pages, unbacked.ready), (Pages(49), Pages::ZERO));
    // The kernel had none free: the excess blocks are given back for it.
    assert_eq!(effects.iter().filter(|e| matches!(e, Effect::Remove(_))).count(), 49);
    make_ready(&mut book, key(0, 1), 500);
    for (most, parts) in [(Some(400), 400), (Some(0), 1), (Some(u32::MAX), 99)] {
        let mut ask = ask(if parts == 99 { 99 } else { 500 });
        ask.request.most_blocks = most;
        let (loan, _) = lend(&mut book, &ask);
        assert_eq!(loan.parts.len(), parts, "{most:?}");
        book.end_lease(loan.lease);
        let missing = 500_u64.saturating_sub(book.pages_in(key(0, 1), StateName::Ready).0);
        make_ready(&mut book, key(0, 1), missing);
    }
}

fn gib(node: u32) -> PoolKey {
    PoolKey { node: Node(node), page_size: PageSize::GIB_1, pages_per_block: Pages(1) }
}

#[test]
fn default_page_size_is_the_largest_with_enough_ready() {
    let mut book = book([pool(0, 512), PoolConfig::new(gib(0))]);
    make_ready(&mut book, key(0, 512), 1);
    book.has_free(Node(0), PageSize::GIB_1, Pages(1));
    assert_eq!(lend(&mut book, &ask(512)).0.page_size, PAGE);
    make_ready(&mut book, key(0, 512), 1);
    make_ready(&mut book, gib(0), 1);
    assert_eq!(lend(&mut book, &ask(512)).0.page_size, PageSize::GIB_1);
    book.has_free(Node(0), PageSize::GIB_1, Pages(1));
    assert_eq!(lend(&mut book, &ask(512)).0.page_size, PAGE, "ready beats large");
    assert_eq!(lend(&mut book, &ask(512)).0.page_size, PageSize::GIB_1, "large beats small");
}

#[test]
fn default_page_size_is_smaller_where_the_largest_is_refused() {
    let mut book = book([pool(0, 1), PoolConfig::new(gib(0))]);
    book.has_free(Node(0), PAGE, Pages(512));
    let (loan, _) = lend(&mut book, &ask(512));
    assert_eq!((loan.page_size, loan.parts[0].ready), (PAGE, Pages::ZERO));
}

#[test]
fn owner_gets_its_own_content_back_and_other_owners_do_not() {
    let mut book = book([pool(0, 2)]);
    make_ready(&mut book, key(0, 2), 2);
    let mine = ask(4).kept("guest", 60);
    let (loan, _) = lend(&mut book, &mine);
    bring_back(&mut book, &loan, 100);
    make_ready(&mut book, key(0, 2), 8);

    for other in [
        mine.kept("other", 60),
        Asked { uid: Uid(1001), ..mine.clone() },
        mine.with(|request| request.owner = None),
    ] {
        let (other, _) = lend(&mut book, &other);
        assert!(!other.kept && other.parts.iter().all(|o| o.ready == o.pages));
        let common = other.parts.iter().any(|o| loan.parts.iter().any(|l| l.block == o.block));
        assert!(!common, "{other:?} has blocks of {loan:?}");
    }

    let (again, effects) = lend(&mut book, &mine);
    assert!(again.kept && again.lease > loan.lease);
    let blocks = |loan: &Loan| loan.parts.iter().map(|p| p.block).collect::<Vec<_>>();
    assert_eq!(blocks(&again), blocks(&loan), "in the order in which they were mapped");
    assert_eq!(effects, [Effect::Move(blocks(&loan)[0]), Effect::Move(blocks(&loan)[1])]);
    assert_eq!(book.counters().kept_loans, 1);
}

#[test]
fn content_of_another_size_or_node_is_not_the_requested_one() {
    let mut book = book([pool(0, 2), pool(1, 2)]);
    make_ready(&mut book, key(0, 2), 1);
    let mine = ask(2).kept("guest", 60);
    let (loan, _) = lend(&mut book, &mine);
    bring_back(&mut book, &loan, 100);
    make_ready(&mut book, key(0, 2), 2);
    make_ready(&mut book, key(1, 2), 2);
    let other_size = mine.with(|request| request.bytes = bytes(1));
    assert!(!lend(&mut book, &other_size).0.kept);
    let other_node = mine.on(1);
    assert!(!lend(&mut book, &other_node).0.kept);
    assert!(lend(&mut book, &mine).0.kept);
}

#[test]
fn content_is_found_in_pages_of_any_size() {
    let mut book = book([pool(0, 512), PoolConfig::new(gib(0))]);
    make_ready(&mut book, key(0, 512), 1);
    let mine = ask(512).kept("guest", 60);
    let (loan, _) = lend(&mut book, &mine);
    assert_eq!(loan.page_size, PAGE);
    bring_back(&mut book, &loan, 100);
    make_ready(&mut book, gib(0), 1);
    let (again, _) = lend(&mut book, &mine);
    assert_eq!((again.kept, again.page_size), (true, PAGE), "a larger page is ready by now");
}

#[test]
fn the_latest_of_several_contents_comes_back_first() {
    let mut book = book([pool(0, 2)]);
    make_ready(&mut book, key(0, 2), 2);
    let mine = ask(2).kept("guest", 60);
    let (first, _) = lend(&mut book, &mine);
    let (second, _) = lend(&mut book, &mine);
    bring_back(&mut book, &second, 100);
    bring_back(&mut book, &first, 101);
    assert_eq!(lend(&mut book, &mine).0.parts[0].block, second.parts[0].block);
    assert_eq!(lend(&mut book, &mine).0.parts[0].block, first.parts[0].block);
}

#[test]
fn loan_with_an_unreturned_block_is_not_its_content() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 3);
    let mine = ask(3).kept("guest", 60);
    let (loan, _) = lend(&mut book, &mine);
    book.end_lease(loan.lease);
    // The middle one is still mapped by a child.
    for (nth, part) in loan.parts.iter().enumerate() {
        let reach = if nth == 1 { Reach::Shared } else { Reach::Sole };
        let (settled, _) = book.settle(part.block, reach, 100).expect("it is draining");
        assert_eq!(settled, if nth == 1 { Settled::Draining } else { Settled::Kept });
    }
    make_ready(&mut book, key(0, 1), 3);
    let (other, _) = lend(&mut book, &mine.with(|request| request.bytes = bytes(2)));
    assert!(!other.kept, "first and last of three are not two in a row");
}

#[test]
fn agents_see_a_pool_of_all_sizes_as_one() {
    let domain = Domain { node: Node(0), page_size: PAGE };
    let config = PoolConfig::new(PoolKey::mixed(domain));
    let mut book = book([PoolConfig {
        ready_high: Pages(1000),
        max: Some(Pages(4000)),
        leave_free: Pages(10),
        ..config
    }]);
    book.has_free(Node(0), PAGE, Pages(100_000));
    let [supply] = &book.supply_by_domain()[..] else { panic!("one domain") };
    assert_eq!(supply.total_bytes, Pages(4000).bytes(PAGE));
    assert_eq!(supply.block_bytes, crate::policy::piece(PAGE).bytes(PAGE));
}

// Promise P217.
/// A file is one block, so that two of them are ready for two loans and for none of twice the size.
#[test]
fn agents_see_ready_pages_by_block_and_find_them_there() {
    let mut book = book([pool(0, 2), pool(0, 8)]);
    let reported = |book: &Book| -> Vec<(u64, u64)> {
        let [supply] = &book.supply_by_domain()[..] else { panic!("one domain") };
        let sum: Bytes = supply.ready_blocks.iter().map(|of| of.ready_bytes).sum();
        assert_eq!(sum, supply.ready_bytes);
        let pages = |bytes: Bytes| bytes.whole_pages(PAGE).0;
        supply.ready_blocks.iter().map(|o| (pages(o.block_bytes), pages(o.ready_bytes))).collect()
    };
    assert_eq!(reported(&book), []);
    make_ready(&mut book, key(0, 2), 3);
    make_ready(&mut book, key(0, 8), 2);
    assert_eq!(reported(&book), [(2, 6), (8, 16)]);
    for (pages, left) in [(8, vec![(2, 6), (8, 8)]), (2, vec![(2, 4), (8, 8)]), (8, vec![(2, 4)])] {
        let (loan, _) = lend(&mut book, &ask_one_file(pages));
        let ready: Pages = loan.parts.iter().map(|part| part.ready).sum();
        assert_eq!((ready, reported(&book)), (Pages(pages), left));
    }
}
