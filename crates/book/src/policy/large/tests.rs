// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The chosen blocks, given the known loans, and how these are replayed.

use super::*;

const GIB: u64 = 512;
const PAGE: PageSize = PageSize::MIB_2;
const READY: Pages = Pages(64 * GIB);

fn gib(blocks: &[Pages]) -> Vec<u64> {
    blocks.iter().map(|block| block.0 / GIB).collect()
}

fn after(loans: impl IntoIterator<Item = (u64, bool)>) -> Large {
    let mut large = Large::guess(READY, PAGE);
    for (size, single) in loans {
        large.record(Pages(size * GIB), single, READY, READY, PAGE);
        large.choose_again(READY, PAGE);
    }
    large
}

#[test]
fn without_history_there_are_large_blocks_and_some_small_room() {
    let guess = Large::guess(READY, PAGE);
    assert!(guess.blocks.contains(&Pages(16 * GIB)), "{:?}", gib(guess.blocks()));
    assert!(guess.blocks.iter().copied().sum::<Pages>() <= Pages(48 * GIB));
}

#[test]
fn one_size_has_as_many_blocks_of_exactly_it_as_fit() {
    let large = after((0..80).map(|_| (24, true)));
    assert_eq!(gib(large.blocks()), [16, 24, 24], "what is left begins a third one");
}

#[test]
fn sizes_that_do_not_fit_together_are_nested() {
    let sizes = [8, 16, 24, 32, 48, 64];
    let large = after((0..240).map(|n| (sizes[n % 6], true)));
    let blocks = gib(large.blocks());
    assert!(blocks.len() >= 2 && blocks.iter().sum::<u64>() <= 64, "{blocks:?}");
    assert!(blocks.iter().any(|size| *size >= 24), "{blocks:?}");
}

#[test]
fn programs_that_take_several_blocks_need_no_large_ones() {
    let large = after((0..80).map(|n| (2 + n % 9, false)));
    assert_eq!(large.blocks(), [Pages(0); 0]);
}

fn replay(sizes: &[Pages], liquid: u64, credit: u64) -> Replay<'_> {
    Replay {
        sizes,
        here: vec![true; sizes.len()],
        liquid: Pages(liquid),
        credit: Pages(credit),
        ready: Pages(100),
        missing: VecDeque::new(),
        zeroed: Pages::ZERO,
    }
}

#[test]
fn block_is_trimmed_for_at_least_half_of_it_within_the_credit() {
    let sizes = [Pages(4), Pages(8)];
    for (left, need, credit, taken) in [
        (8, 8, 0, Some(0)),
        (6, 6, 2, Some(2)),
        (6, 6, 1, None),
        (5, 5, 100, Some(3)),
        (5, 2, 100, None),
        (2, 2, 2, Some(2)),
        (9, 9, 100, None),
    ] {
        let mut pool = replay(&sizes, 0, credit);
        assert_eq!(pool.trim(Pages(left), Pages(need)), taken.is_some(), "{left} of {need}");
        assert_eq!(pool.credit, Pages(credit - taken.unwrap_or(0)));
    }
}

#[test]
fn lent_pages_earn_credit_up_to_all_ready_pages() {
    let mut pool = replay(&[], 0, 1);
    pool.earn(Pages(3 * super::super::CREDIT_PART));
    assert_eq!(pool.credit, Pages(4));
    pool.earn(Pages(1000 * super::super::CREDIT_PART));
    assert_eq!(pool.credit, pool.ready);
}

#[test]
fn loan_takes_liquid_pages_then_blocks_then_a_trimmed_one() {
    for (liquid, credit, need, lent, here) in [
        (6, 100, 6, 6, [true, true, true]),
        (3, 100, 6, 6, [false, false, true]),
        (3, 0, 9, 9, [true, true, false]),
        (0, 0, 15, 14, [false, false, false]),
        (1, 100, 7, 7, [false, false, true]),
        (0, 0, 1, 0, [true, true, true]),
        (0, 1, 1, 1, [false, true, true]),
    ] {
        let mut pool = replay(&[Pages(2), Pages(4), Pages(8)], liquid, credit);
        let got = pool.lend_several(Pages(need));
        assert_eq!((got, &pool.here[..]), (Pages(lent), &here[..]), "{liquid} for {need}");
    }
}

#[test]
fn a_file_comes_of_a_trimmed_block_or_a_smaller_one_or_a_piece() {
    let mut pool = replay(&[Pages(4), Pages(8)], 10, 2);
    assert_eq!(pool.lend_file(Pages(6), Pages(3)), Pages(6), "8 trimmed");
    assert_eq!(pool.lend_file(Pages(6), Pages(3)), Pages(4), "as much as 4 has");
    assert_eq!(pool.lend_file(Pages(6), Pages(3)), Pages(3), "a piece");
    assert_eq!(pool.lend_file(Pages(2), Pages(3)), Pages(2), "less than a piece");
    assert_eq!(pool.liquid, Pages(5));
    // It becomes ready again as it went.
    pool.refill(Pages(11));
    assert_eq!((&pool.here[..], pool.zeroed), (&[false, true][..], Pages(3)));
    pool.refill(Pages(3));
    assert_eq!((&pool.here[..], pool.liquid), (&[true, true][..], Pages(7)));
    pool.refill(Pages(50));
    assert_eq!((pool.liquid, pool.zeroed), (Pages(10), Pages::ZERO));
}

#[test]
fn only_files_that_fit_make_a_size_of_their_own() {
    let loan = |gib, single| Loan {
        pages: Pages(gib * GIB),
        single,
        small: Pages::ZERO,
        zeroed: Pages::ZERO,
    };
    let lately = [loan(24, true), loan(12, false), loan(80, true)].into();
    let large = Large { lately, ..Large::default() };
    assert_eq!(gib(&large.sizes(READY, PAGE)), [2, 4, 8, 16, 24, 32]);
}

#[test]
fn a_guess_has_each_power_of_two_above_what_small_loans_are() {
    let guess = Large::guess(READY, PAGE);
    let sizes: Vec<_> = guess.lately.iter().map(|loan| loan.pages.0 / GIB).collect();
    assert_eq!(sizes, [16, 8, 4, 2], "a loan of 1 GiB is served from pieces");
}

#[test]
fn the_last_loans_count_and_no_earlier_ones() {
    let large = after((0..2 * MAX_KNOWN_LOANS as u64).map(|n| (2 + n % 9, true)));
    assert_eq!(large.lately.len(), MAX_KNOWN_LOANS);
}

/// Blocks at hand, in a pool that has learnt nothing for this number of loans.
fn at_hand(blocks: &[u64], since: u32) -> Large {
    let blocks = blocks.iter().copied().map(Pages).collect();
    Large { blocks, since, ..Large::guess(READY, PAGE) }
}

#[test]
fn blocks_are_chosen_again_after_some_loans_and_when_full() {
    let all = READY.0;
    for (blocks, since, is_chosen) in [
        ([all / 2, all / 2], CHOICE_INTERVAL - 1, false),
        ([all / 2, all / 2], CHOICE_INTERVAL, true),
        ([all / 2, all / 4], CHOICE_INTERVAL - 1, false),
        ([all / 2, all / 2 + 1], 1, true),
    ] {
        let mut large = at_hand(&blocks, since);
        large.choose_again(READY, PAGE);
        assert_eq!(large.since == 0, is_chosen, "{blocks:?} after {since}");
        assert!(large.blocks.iter().copied().sum::<Pages>() <= READY);
    }
}

#[test]
fn other_blocks_are_chosen_if_worth_the_waste_or_leaner() {
    const FILE: u64 = 1280;
    // Two loans of one file each, with what small loans took before each, and all ready again:
    // the blocks at hand, the room there is, and whether they stay.
    let cases: &[(&[u64], u64, u64, bool)] = &[
        // One block of the file's size serves each. One that is 10 pages smaller leaves a 128th
        // to be zeroed, which is not yet worth a change.
        (&[FILE - 10], FILE, 0, true),
        (&[FILE - 11], FILE, 0, false),
        // What small loans took was asked for, too; and the smaller block leaves them more.
        (&[FILE - 14], FILE, 4, true),
        (&[FILE - 15], FILE, 4, false),
        // Two blocks: a storm alone takes the smaller one, and weighs a third.
        (&[FILE - 60, FILE], 2 * FILE, 0, true),
        (&[FILE - 61, FILE], 2 * FILE, 0, false),
        // No better one is leaner: the larger is trimmed.
        (&[FILE - 10, FILE + 10], 2 * FILE, 0, true),
    ];
    for (blocks, room, small, stays) in cases {
        let (ready, small) = (Pages(*room), Pages(*small));
        let loan = Loan { pages: Pages(FILE), single: true, small, zeroed: ready };
        let lately = vec![loan; 2].into();
        let mut large = Large { lately, ..at_hand(blocks, 0) };
        let before = large.blocks.clone();
        large.choose(ready, PAGE);
        assert_eq!(large.blocks == before, *stays, "{blocks:?} became {:?}", large.blocks);
    }
}

#[test]
fn blocks_that_serve_no_better_than_small_ones_go() {
    let need = Pages(1280);
    let loan = Loan { pages: need, single: false, small: Pages::ZERO, zeroed: need * 10 };
    let lately = vec![loan; 20].into();
    let mut large = Large { lately, ..at_hand(&[need.0], 0) };
    large.choose(need * 10, PAGE);
    assert_eq!(large.blocks, [Pages(0); 0]);
}

#[test]
fn the_sizes_in_which_most_was_asked_for_are_tried() {
    let loan =
        |pages| Loan { pages: Pages(pages), single: true, small: Pages::ZERO, zeroed: Pages::ZERO };
    // Of 13 sizes the smallest came most, and the next one had least in all.
    let often = std::iter::repeat_n(loan(1001), 13);
    let once = (1..=MAX_SIZES as u64).map(|n| loan(1001 + 2 * n));
    let large = Large { lately: often.chain(once).collect(), ..Large::default() };
    let sizes = large.sizes(Pages(1 << 14), PAGE);
    assert!(sizes.contains(&Pages(1001)) && !sizes.contains(&Pages(1003)), "{sizes:?}");
    assert!(sizes.contains(&Pages(1005)), "{sizes:?}");
}

#[test]
fn a_loan_that_is_served_whole_takes_no_further_block() {
    let sizes = [Pages(4), Pages(5)];
    let mut pool = replay(&sizes, 1, 100);
    assert_eq!(pool.lend_several(Pages(6)), Pages(6));
    assert_eq!((&pool.here[..], pool.credit), (&[true, false][..], Pages(100)));
}
