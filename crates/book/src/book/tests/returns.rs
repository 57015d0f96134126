// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Returned blocks, and blocks that other loans need.

use units::{Counts, LeaseId};

use super::*;
use crate::block::Settled;
use crate::config::Recycle;

fn in_place(node: u32, pages_per_block: u64) -> PoolConfig {
    PoolConfig { recycle: Recycle::InPlace, ..pool(node, pages_per_block) }
}

/// One block, lent and returned.
fn returned(config: PoolConfig, ask: &Asked) -> (Book, BlockId) {
    let key = config.key();
    let mut book = book([config]);
    make_ready(&mut book, key, 1);
    book.has_free(key.node, key.page_size, Pages(8));
    let (loan, _) = lend(&mut book, ask);
    let block = loan.parts[0].block;
    assert_eq!(book.end_lease(loan.lease), [Effect::Move(block)]);
    assert_eq!(state(&book, block), Some(StateName::Draining));
    (book, block)
}

fn settled(book: &mut Book, block: BlockId, reach: Reach) -> (Settled, Vec<Effect>) {
    book.settle(block, reach, 100).expect("a returned block is draining")
}

#[test]
fn held_block_is_draining() {
    let (mut book, block) = returned(pool(0, 2), &ask(2));
    for _ in 0..3 {
        assert_eq!(settled(&mut book, block, Reach::Shared), (Settled::Draining, vec![]));
    }
    assert_eq!(book.held_by(Uid(1000)), bytes(2), "and is its borrower's");
}

// Promise P4.
// Promise P214.
#[test]
fn zeros_that_their_owner_never_had_are_not_kept_for_it() {
    let mine = ask(2).kept("guest", 60);
    let mut book = super::book([in_place(0, 2)]);
    make_ready(&mut book, key(0, 2), 1);
    let (loan, _) = book.lend(&mine).expect("a loan");
    let block = loan.parts[0].block;
    let name = |book: &Book| book.place(block).expect("it is lent").1;
    assert!(name(&book).ends_with("-g2-k0-oguest"), "{}", name(&book));
    assert_eq!(book.end_lease(loan.lease), [Effect::Move(block)]);
    let patient = Asked { await_owner: true, ..mine.clone() };
    assert_ne!(refusal(&mut book, &patient), Refusal::OwnerDraining, "nothing comes of it");
    assert_eq!(settled(&mut book, block, Reach::Sole).0, Settled::Zeroable);
}

#[test]
fn loan_returned_with_discard_is_not_kept() {
    let mut book = super::book([in_place(0, 2)]);
    let block = make_ready(&mut book, key(0, 2), 1)[0];
    let (loan, _) = lend(&mut book, &ask(2).kept("guest", 60));
    assert_eq!(book.end_unkept(loan.lease), [Effect::Move(block)]);
    assert_eq!(settled(&mut book, block, Reach::Sole).0, Settled::Zeroable);
}

// Promise P243.
#[test]
fn content_sent_to_its_owner_is_marked_once_and_kept() {
    let mine = ask(4).kept("guest", 60);
    let mut book = super::book([in_place(0, 2)]);
    let blocks = make_ready(&mut book, key(0, 2), 3);
    let (loan, _) = book.lend(&mine).expect("a loan of two blocks");
    let [first, second] = [0, 1].map(|part| loan.parts[part].block);
    assert_eq!(book.sent(loan.lease), [Effect::Mark(first), Effect::Mark(second)]);
    assert_eq!(book.sent(loan.lease), []);
    book.mark_failed(second);
    book.end_lease(loan.lease);
    assert_eq!(settled(&mut book, first, Reach::Sole).0, Settled::Kept);
    assert_eq!(settled(&mut book, second, Reach::Sole).0, Settled::Zeroable);
    assert_eq!(book.sent(loan.lease), [], "it has ended");
    // Unowned content, and content that returns to its owner, needs no mark.
    let third = *blocks.iter().find(|id| ![first, second].contains(id)).expect("a third");
    let (loan, _) = book.lend(&ask(2)).expect("a loan");
    assert_eq!((loan.parts[0].block, book.sent(loan.lease)), (third, vec![]));
    let (loan, _) = book.lend(&ask(2).kept("guest", 60)).expect("what it left");
    assert_eq!((loan.parts[0].block, book.sent(loan.lease)), (first, vec![]));
}

#[test]
fn a_fresh_pool_gives_its_blocks_to_the_kernel() {
    let (mut book, block) = returned(pool(0, 2), &ask(2));
    let gone = (Settled::Gone, vec![Effect::Remove(block)]);
    assert_eq!(settled(&mut book, block, Reach::Sole), gone);
    assert_eq!(state(&book, block), None);
    assert_eq!(book.settle(block, Reach::Sole, 100), None);
}

#[test]
fn an_in_place_pool_clears_its_blocks_where_they_are() {
    let (mut book, block) = returned(in_place(0, 2), &ask(2));
    let effects = vec![Effect::Resize { block, pages: Pages(2) }, Effect::Move(block)];
    assert_eq!(settled(&mut book, block, Reach::Sole), (Settled::Zeroable, effects));
    assert_eq!(book.zeroable(key(0, 2)), Pages(2 + 8));
}

#[test]
fn in_place_pool_releases_blocks_it_cannot_clear_in_place() {
    for (ask, what) in [(ask(1), "trimmed"), (ask_one_file(3), "grown")] {
        let (mut book, block) = returned(in_place(0, 2), &ask);
        assert_eq!(settled(&mut book, block, Reach::Sole).0, Settled::Gone, "{what}");
    }
    let (mut book, block) = returned(in_place(0, 2), &ask(2));
    // A process that may still map it keeps its content.
    let left = (Settled::Gone, vec![Effect::Unlink(block)]);
    assert_eq!(settled(&mut book, block, Reach::Unknown), left, "unknown reach");
    let (mut book, block) = returned(in_place(0, 2), &ask(2));
    assert_eq!(settled(&mut book, block, Reach::Poisoned).0, Settled::Gone, "memory errors");

    // An unbacked part of the very size of a block: the part that its client filled is unknown.
    let mut book = super::book([in_place(0, 2)]);
    book.has_free(Node(0), PAGE, Pages(2));
    let (loan, _) = lend(&mut book, &ask(2));
    book.end_lease(loan.lease);
    assert_eq!(
        settled(&mut book, loan.parts[0].block, Reach::Sole).0,
        Settled::Gone,
        "an unbacked part"
    );
}

// Promise P251 (isolation): A file that its borrower altered is truncated before it is unlinked.
// Only a kernel that cannot tell who reaches a file has it unlinked with its pages, and no
// borrower can bring that answer about.
#[test]
fn altered_or_marked_file_is_cut_and_not_kept() {
    for ask in [ask(2), ask(2).kept("guest", 60)] {
        for reach in [|| Reach::Altered, || Reach::Marked, || Reach::Poisoned] {
            let (mut book, block) = returned(in_place(0, 2), &ask);
            let cut = (Settled::Gone, vec![Effect::Remove(block)]);
            assert_eq!(settled(&mut book, block, reach()), cut, "{:?}", reach());
            assert_eq!(book.held_by(Uid(1000)), bytes(0));
        }
    }
}

// Promise P256.
#[test]
fn free_block_that_is_not_lendable_goes_back_and_no_other() {
    let (mut book, block) = returned(in_place(0, 2), &ask(2));
    assert_eq!(book.discard(block), None, "it is draining");
    settled(&mut book, block, Reach::Sole);
    assert_eq!(book.discard(block), Some(vec![Effect::Remove(block)]));
    assert_eq!((state(&book, block), book.discard(block)), (None, None));
    let ready = make_ready(&mut book, key(0, 2), 1)[0];
    assert_eq!(book.discard(ready), Some(vec![Effect::Remove(ready)]));
    assert_eq!(state(&book, ready), None);
}

// Promise P250.
#[test]
fn pages_of_a_returned_file_count_until_the_kernel_has_them() {
    let (mut book, block) = returned(in_place(0, 2), &ask(2));
    book.record_growth(block, Pages(5));
    for held in [|| Reach::Pinned, || Reach::Shared, || Reach::Mapped] {
        assert_eq!(settled(&mut book, block, held()).0, Settled::Draining);
        assert_eq!(book.held_by(Uid(1000)), bytes(5), "{:?}", held());
    }
    // A file that has lost its pages to pins counts with its lent length.
    book.record_growth(block, Pages::ZERO);
    book.record_memory(block, Pages::ZERO);
    assert_eq!(settled(&mut book, block, Reach::Pinned).0, Settled::Draining);
    assert_eq!(book.held_by(Uid(1000)), bytes(2));
    assert_eq!(settled(&mut book, block, Reach::Sole).1, [Effect::Remove(block)]);
    assert_eq!(book.held_by(Uid(1000)), bytes(0));
}

#[test]
fn filled_or_punched_block_is_judged_by_its_memory() {
    let mut book = book([in_place(0, 2)]);
    for (allocated, expected) in
        [(2, Settled::Zeroable), (1, Settled::Gone), (0, Settled::Gone), (3, Settled::Zeroable)]
    {
        for from_ready in [true, false] {
            book.release(None, None, Pages(99));
            if from_ready {
                make_ready(&mut book, key(0, 2), 1);
            }
            book.has_free(Node(0), PAGE, Pages(2));
            let (loan, _) = lend(&mut book, &ask(2));
            let block = loan.parts[0].block;
            book.end_lease(loan.lease);
            book.record_memory(block, Pages(allocated));
            assert_eq!(settled(&mut book, block, Reach::Sole).0, expected, "{allocated} pages");
        }
    }
}

#[test]
fn a_kernel_that_can_not_prove_reach_recycles_fresh() {
    let mut book = Book::new([in_place(0, 2)], false).expect("a good pool");
    assert_eq!(
        book.pool_status(key(0, 2), &Counts::default()).map(|p| p.recycle),
        Some(Recycle::Fresh)
    );
    make_ready(&mut book, key(0, 2), 1);
    let (loan, _) = lend(&mut book, &ask(2));
    book.end_lease(loan.lease);
    assert_eq!(settled(&mut book, loan.parts[0].block, Reach::Unknown).0, Settled::Gone);
}

#[test]
fn kept_content_is_given_up_when_its_time_is_over() {
    let mine = ask(2).kept("guest", 60);
    let (mut book, block) = returned(pool(0, 2), &mine);
    assert_eq!(settled(&mut book, block, Reach::Sole).0, Settled::Kept);
    let name = "b1-n0-p2-l1-i0-u1000-g2-k60-oguest-t160".to_owned();
    assert_eq!(book.place(block), Some((StateName::Kept, name)));
    assert_eq!(book.next_expiry(), Some(160));
    assert_eq!(book.expire(159), []);
    assert_eq!(book.expire(160), [Effect::Move(block)]);
    assert_eq!(book.next_expiry(), None);
    // It is draining like any return, and belongs to no owner any more.
    assert_eq!(state(&book, block), Some(StateName::Draining));
    assert_eq!(settled(&mut book, block, Reach::Sole).0, Settled::Gone);
    assert!(!lend(&mut book, &mine).0.kept);
}

#[test]
fn content_for_no_seconds_is_not_kept() {
    let mine = ask(2).kept("guest", 0);
    let (mut book, block) = returned(pool(0, 2), &mine);
    assert_eq!(settled(&mut book, block, Reach::Sole).0, Settled::Gone);
}

#[test]
fn content_for_ever_is_kept_for_ever() {
    let mine = ask(2).kept("guest", u64::MAX);
    let (mut book, block) = returned(pool(0, 2), &mine);
    assert_eq!(settled(&mut book, block, Reach::Sole).0, Settled::Kept);
    assert_eq!(book.next_expiry(), Some(u64::MAX));
    assert_eq!(book.expire(u64::MAX - 1), []);
}

#[test]
fn a_lease_ends_once_and_with_all_of_its_blocks() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 3);
    let (loan, _) = lend(&mut book, &ask(3));
    assert_eq!(book.loans()[0].pages, Pages(3));
    assert_eq!(book.end_lease(loan.lease).len(), 3);
    assert_eq!(book.end_lease(loan.lease), []);
    assert_eq!(book.end_lease(LeaseId(99)), []);
    assert!(book.loans().is_empty());
}

#[test]
fn forgotten_block_has_no_holder() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 2);
    let (loan, _) = lend(&mut book, &ask(2));
    book.forget(loan.parts[0].block);
    assert_eq!(book.held_by(Uid(1000)), bytes(1));
    assert_eq!(book.end_lease(loan.lease), [Effect::Move(loan.parts[1].block)]);
    book.has_free(Node(0), PAGE, Pages(1));
    let (order, _) = book.take_zeroing(Requester::User, None, None).expect("a page is free");
    book.forget(order.block().expect("a block"));
    assert_eq!(book.finish_zeroing(order.job, Pages(1), Reach::Sole), Ok(None));
}

/// Two ready blocks and one dirty one, of 2 pages each.
fn three_unlent() -> (Book, Vec<BlockId>, BlockId) {
    let mut book = book([in_place(0, 2)]);
    make_ready(&mut book, key(0, 2), 3);
    let (loan, _) = lend(&mut book, &ask(2));
    bring_back(&mut book, &loan, 100);
    let ready = book.in_state(StateName::Ready).map(crate::block::Block::id).collect();
    (book, ready, loan.parts[0].block)
}

#[test]
fn dirty_blocks_are_released_before_ready_ones() {
    let (mut book, ready, dirty) = three_unlent();
    let removed = |n: usize| [dirty, ready[0], ready[1]].map(Effect::Remove)[..n].to_vec();
    assert_eq!(book.release(Some(Node(1)), None, Pages(2)), (Bytes(0), vec![]));
    assert_eq!(book.release(None, Some(PageSize::GIB_1), Pages(2)), (Bytes(0), vec![]));
    assert_eq!(book.release(None, None, Pages(0)), (Bytes(0), vec![]));
    assert_eq!(book.release(Some(Node(0)), Some(PAGE), Pages(3)), (bytes(4), removed(2)));
    assert_eq!(book.counters().released_bytes, bytes(4));
    assert_eq!(book.release(None, None, Pages(99)), (bytes(2), removed(3)[2..].to_vec()));
}

#[test]
fn lent_kept_draining_and_zeroing_blocks_are_not_released() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 3);
    lend(&mut book, &ask(1));
    let (kept, _) = lend(&mut book, &ask(1).kept("guest", 60));
    bring_back(&mut book, &kept, 100);
    let (draining, _) = lend(&mut book, &ask(1));
    book.end_lease(draining.lease);
    book.has_free(Node(0), PAGE, Pages(1));
    book.take_zeroing(Requester::User, None, None).expect("a page is free");
    assert_eq!(book.release(None, None, Pages(99)), (Bytes(0), vec![]));
}

#[test]
fn relief_releases_the_shortage_of_others_and_no_more() {
    let (mut book, ready, dirty) = three_unlent();
    book.configure(PoolConfig { leave_free: Pages(3), ..in_place(0, 2) }).expect("a good pool");
    for enough in [3, 4] {
        book.has_free(Node(0), PAGE, Pages(enough));
        assert_eq!(book.relieve(), []);
    }
    book.has_free(Node(0), PAGE, Pages(0));
    assert_eq!(book.relieve(), [dirty, ready[0]].map(Effect::Remove));
    assert_eq!(book.relieve(), [], "what was given is counted until the next look");
}

#[test]
fn only_memory_that_a_block_has_counts_as_released() {
    let mut book = book([pool(0, 4)]);
    book.has_free(Node(0), PAGE, Pages(4));
    let (order, _) = book.take_zeroing(Requester::User, None, None).expect("pages are free");
    book.finish_zeroing(order.job, Pages(1), Reach::Sole).expect("a legal move");
    book.has_free(Node(0), PAGE, Pages(3));
    // Three pages free and one in the block: five cannot be promised.
    assert!(matches!(refusal(&mut book, &ask(5)), Refusal::NotEnough { .. }));
    assert_eq!(
        book.release(None, None, Pages(1)),
        (bytes(1), vec![Effect::Remove(order.block().expect("a block"))])
    );
}

#[test]
fn unwanted_pool_releases_unlent_blocks_and_then_the_rest() {
    let mut book = book([pool(0, 2), pool(0, 4)]);
    let ready = make_ready(&mut book, key(0, 2), 2);
    book.has_free(Node(0), PAGE, Pages(0));
    let (loan, _) = lend(&mut book, &ask(2));
    let lent = loan.parts[0].block;
    let left: Vec<_> = ready.into_iter().filter(|block| *block != lent).collect();
    let gone = book.reconfigure(vec![pool(0, 4)]).expect("a good pool");
    assert_eq!(gone, [Effect::Remove(left[0])]);
    assert_eq!(book.lease_blocks(loan.lease), [lent], "the loan goes on");
    bring_back(&mut book, &loan, 0);
    assert_eq!(book.relieve(), []);
    assert_eq!(book.pool_keys().collect::<Vec<_>>(), [key(0, 4)]);
}

#[test]
fn half_zeroed_block_of_a_removed_pool_is_not_zeroed_on() {
    let mut book = book([pool(0, 2)]);
    book.has_free(Node(0), PAGE, Pages(2));
    let (order, _) = book.take_zeroing(Requester::User, None, None).expect("two pages are free");
    let block = order.block().expect("a job on a block");
    assert_eq!(book.reconfigure(Vec::new()), Ok(Vec::new()), "it is in a worker's hands");
    book.finish_zeroing(order.job, Pages(1), Reach::Sole).expect("a legal move");
    assert_eq!(state(&book, block), Some(StateName::Zeroable));
    assert_eq!(book.zeroable(key(0, 2)), Pages::ZERO);
    assert_eq!(book.take_zeroing(Requester::User, None, None), None);
    assert_eq!(book.relieve(), [Effect::Remove(block)]);
    assert_eq!(book.pool_keys().count(), 0);
}

// Promise P60.
#[test]
fn pools_that_break_a_rule_change_nothing() {
    let mut book = book([pool(0, 2)]);
    make_ready(&mut book, key(0, 2), 1);
    let bad = PoolConfig { ready_low: Some(Pages(3)), ..pool(0, 8) };
    for pools in [vec![pool(0, 4), bad], vec![pool(0, 4), pool(0, 4)]] {
        book.reconfigure(pools).expect_err("bad pools");
        assert_eq!(book.pool_keys().collect::<Vec<_>>(), [key(0, 2)]);
        assert_eq!(book.in_state(StateName::Ready).count(), 1);
    }
}

#[test]
fn revoked_loan_is_counted_in_bytes_and_its_files_go() {
    let mut book = book([pool(0, 2)]);
    make_ready(&mut book, key(0, 2), 3);
    let (alive, _) = lend(&mut book, &ask(4));
    let (ended, _) = lend(&mut book, &ask(2));
    book.end_lease(ended.lease);
    let mut revoke = |loan: &Loan| {
        let (bytes, mut effects) = book.revoke(loan.lease).expect("it is there");
        for part in &loan.parts {
            effects.retain(|effect| *effect != Effect::Remove(part.block));
        }
        (bytes, effects)
    };
    assert_eq!(revoke(&alive), (bytes(4), vec![]));
    assert_eq!(revoke(&ended), (bytes(2), vec![]), "it was draining");
    assert_eq!(book.revoke(ended.lease), None, "nothing is left of it");
    assert!(!book.has_lease(alive.lease) && book.in_state(StateName::Draining).count() == 0);
    // A loan with lost files is alive, and has nothing to take.
    book.has_free(Node(0), PAGE, Pages(2));
    let (lost, _) = lend(&mut book, &ask(2));
    book.forget(lost.parts[0].block);
    assert_eq!(book.revoke(lost.lease), Some((bytes(0), vec![])));
}

#[test]
fn nothing_goes_where_the_free_target_is_met() {
    let mut book = book([pool(0, 1)]);
    make_ready(&mut book, key(0, 1), 2);
    book.configure(PoolConfig { leave_free: Pages(4), ..pool(0, 1) }).expect("a good pool");
    book.has_free(Node(0), PAGE, Pages(4));
    assert_eq!(book.relieve(), []);
    book.has_free(Node(0), PAGE, Pages(3));
    assert_eq!(book.relieve().len(), 1);
}
