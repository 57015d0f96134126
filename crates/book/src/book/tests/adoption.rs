// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a restarted daemon makes of each file that it finds.

use units::LeaseId;

use super::kernel::Seen;
use super::*;
use crate::block::{Settled, Unheld};
use crate::book::Found;
use crate::config::Recycle;
use crate::journal;

const DEAD: bool = false;
const ALIVE: bool = true;

/// A file of pool (0, 2) unless its name says otherwise.
fn found(state: StateName, name: &str, allocated: u64, reach: Reach, lease_alive: bool) -> Found {
    let entry = journal::parse(name, PAGE).expect("a name that the book writes");
    Found { state, entry, allocated: Pages(allocated), reach, lease_alive }
}

/// Adopts one file into a book of pool (0, 2). Returns its state then.
fn adopted(file: &Found) -> (Book, StateName) {
    let mut book = book([PoolConfig { recycle: Recycle::InPlace, ..pool(0, 2) }]);
    assert_eq!(book.adopt(file), [Effect::Move(file.entry.block)]);
    let state = state(&book, file.entry.block).expect("it is in the book");
    (book, state)
}

#[test]
fn unheld_whole_ready_file_stays_ready() {
    use Reach::{Shared, Sole, Unknown};
    for (allocated, reach, expected) in [
        (2, Sole, StateName::Ready),
        (1, Sole, StateName::Draining),
        (0, Sole, StateName::Draining),
        (3, Sole, StateName::Draining),
        (2, Shared, StateName::Draining),
        (2, Unknown, StateName::Draining),
    ] {
        let seen = format!("{reach:?}");
        let file = found(StateName::Ready, "b5-n0-p2", allocated, reach, DEAD);
        let (mut book, state) = adopted(&file);
        assert_eq!(state, expected, "{allocated} pages, {seen}");
        let lendable = book.lend(&ask(2)).is_ok();
        assert_eq!(lendable, expected == StateName::Ready, "{allocated} pages, {seen}");
    }
}

#[test]
fn a_ready_file_with_a_borrower_in_its_name_is_not_ready() {
    let file = found(StateName::Ready, "b5-n0-p2-l3-i0-u1000-g2", 2, Reach::Sole, DEAD);
    assert_eq!(adopted(&file).1, StateName::Draining);
}

#[test]
fn zeroing_and_dirty_files_are_dirty() {
    for state in [StateName::Zeroing, StateName::Zeroable, StateName::Draining] {
        let (mut book, now) = adopted(&found(state, "b5-n0-p2", 2, Reach::Sole, DEAD));
        assert_eq!(now, StateName::Draining, "{state}");
        let (settled, _) = book.settle(BlockId(5), Reach::Sole, 100).expect("it is draining");
        assert_eq!(settled, Settled::Zeroable, "{state}");
        let (order, _) = book.take_zeroing(Requester::User, None, None).expect("a dirty block");
        assert_eq!(order.first, Pages::ZERO, "{state}: what was done before is unproven");
        assert_eq!(order.by(), wire::ZeroBy::Clear, "{state}");
    }
}

#[test]
fn a_file_that_is_not_whole_is_not_cleared_in_place() {
    let (mut book, _) = adopted(&found(StateName::Zeroing, "b5-n0-p2", 1, Reach::Sole, DEAD));
    let (settled, _) = book.settle(BlockId(5), Reach::Sole, 100).expect("it is draining");
    assert_eq!(settled, Settled::Gone);
}

#[test]
fn a_live_lease_stays_lent_with_all_its_blocks() {
    let mut book = book([pool(0, 2)]);
    for name in ["b5-n0-p2-l3-i0-u1000-g2", "b6-n0-p2-l3-i1-u1000-g1"] {
        book.adopt(&found(StateName::Lent, name, 2, Reach::Shared, ALIVE));
    }
    assert_eq!(book.leases().collect::<Vec<_>>(), [LeaseId(3)]);
    assert_eq!(
        (book.loans()[0].uid, book.loans()[0].pages, book.loans()[0].blocks),
        (Uid(1000), Pages(3), 2)
    );
    assert_eq!(book.held_by(Uid(1000)), bytes(3));
    assert_eq!(book.end_lease(LeaseId(3)).len(), 2);
}

#[test]
fn a_dead_lease_is_returned() {
    let name = "b5-n0-p2-l3-i0-u1000-g2";
    let (mut book, state) = adopted(&found(StateName::Lent, name, 2, Reach::Sole, DEAD));
    assert_eq!(state, StateName::Draining);
    assert_eq!(book.leases().count(), 0);
    let (settled, _) = book.settle(BlockId(5), Reach::Sole, 100).expect("it is draining");
    assert_eq!(settled, Settled::Zeroable);
}

#[test]
fn a_dead_lease_with_an_owner_is_kept_for_it() {
    let name = "b5-n0-p2-l3-i0-u1000-g2-k60-oguest";
    for state in [StateName::Lent, StateName::Draining] {
        let (mut book, _) = adopted(&found(state, name, 2, Reach::Sole, DEAD));
        let (settled, _) = book.settle(BlockId(5), Reach::Sole, 100).expect("it is draining");
        assert_eq!(settled, Settled::Kept);
        assert!(lend(&mut book, &ask(2).kept("guest", 1)).0.kept);
    }
}

#[test]
fn unresized_loan_gets_its_length_before_it_is_kept() {
    // Killed between the rename and the resize of a block of 2 pages, grown to 3 for its owner.
    let name = "b5-n0-p2-l3-i0-u1000-g3-k60-oguest";
    let (mut book, _) = adopted(&found(StateName::Lent, name, 2, Reach::Sole, DEAD));
    let (_, effects) = book.settle(BlockId(5), Reach::Sole, 100).expect("it is draining");
    let length = Effect::Resize { block: BlockId(5), pages: Pages(3) };
    assert_eq!(effects, [length, Effect::Move(BlockId(5))]);
}

#[test]
fn unheld_kept_content_stays_its_owners() {
    let name = "b5-n0-p2-l3-i0-u1000-g2-k60-oguest-t160";
    let mine = ask(2).kept("guest", 60);
    let (mut book, state) = adopted(&found(StateName::Kept, name, 2, Reach::Sole, DEAD));
    assert_eq!((state, book.next_expiry()), (StateName::Kept, Some(160)));
    assert_eq!(book.held_by(Uid(1000)), bytes(2));
    assert!(lend(&mut book, &mine).0.kept);

    let (mut book, _) = adopted(&found(StateName::Kept, name, 2, Reach::Sole, DEAD));
    assert_eq!(book.expire(160), [Effect::Move(BlockId(5))], "its time ran on meanwhile");

    for reach in [Reach::Shared, Reach::Unknown] {
        let seen = format!("{reach:?}");
        let (mut book, state) = adopted(&found(StateName::Kept, name, 2, reach, DEAD));
        assert_eq!(state, StateName::Draining, "{seen}");
        let (settled, _) = book.settle(BlockId(5), Reach::Sole, 100).expect("it is draining");
        assert_ne!(settled, Settled::Kept, "whoever had it may have changed it");
        book.has_free(Node(0), PAGE, Pages(2));
        assert!(!lend(&mut book, &mine).0.kept, "{seen}");
    }
}

#[test]
fn a_kept_file_without_a_deadline_is_given_up() {
    let name = "b5-n0-p2-l3-i0-u1000-g2-k60-oguest";
    let (mut book, state) = adopted(&found(StateName::Kept, name, 2, Reach::Sole, DEAD));
    assert_eq!(state, StateName::Draining);
    let (settled, _) = book.settle(BlockId(5), Reach::Sole, 100).expect("it is draining");
    assert_eq!(settled, Settled::Zeroable);
}

#[test]
fn unconfigured_pool_honours_loans_and_gets_nothing_new() {
    let mut book = book([pool(0, 2)]);
    let files = [
        found(StateName::Ready, "b5-n1-p4", 4, Reach::Sole, DEAD),
        found(StateName::Ready, "b6-n1-p4", 4, Reach::Sole, DEAD),
        found(StateName::Lent, "b7-n1-p4-l3-i0-u1000-g4", 4, Reach::Shared, ALIVE),
        found(StateName::Kept, "b8-n1-p4-l2-i0-u1000-g4-k60-oguest-t160", 4, Reach::Sole, DEAD),
    ];
    for file in &files {
        book.adopt(file);
    }
    let now = files.each_ref().map(|f| state(&book, f.entry.block).expect("it is in the book"));
    use StateName::{Draining, Kept, Lent};
    assert_eq!(now, [Draining, Draining, Lent, Kept], "not even a ready file stays ready");
    book.has_free(Node(1), PAGE, Pages(64));
    assert!(book.take_zeroing(Requester::User, Some(Node(1)), None).is_none());
    let there = ask(4).on(1);
    assert_eq!(refusal(&mut book, &there), Refusal::NoSuchPool);
    let mine = there.kept("guest", 60);
    assert!(lend(&mut book, &mine).0.kept, "but what was left there is still its owner's");
    for (block, reach) in [(5, Reach::Sole), (6, Reach::Nobody(Unheld::by(Seen)))] {
        let settled = book.settle(BlockId(block), reach, 100).map(|s| s.0);
        assert_eq!(settled, Some(Settled::Gone), "however much is proven");
    }
    book.configure(pool(1, 4)).expect("a good pool");
    assert!(book.take_zeroing(Requester::User, Some(Node(1)), None).is_some());
}

#[test]
fn numbers_in_use_are_not_given_again() {
    let mut book = book([pool(0, 2)]);
    let name = "b50-n0-p2-l30-i0-u1000-g2";
    book.adopt(&found(StateName::Lent, name, 2, Reach::Shared, ALIVE));
    book.has_free(Node(0), PAGE, Pages(8));
    let (order, _) = book.take_zeroing(Requester::User, None, None).expect("pages are free");
    assert_eq!(order.block().expect("a block"), BlockId(51));
    assert_eq!(lend(&mut book, &ask(2)).0.lease, LeaseId(31));
    book.number_from(10);
    assert_eq!(lend(&mut book, &ask(2)).0.lease, LeaseId(32));
}

#[test]
fn numbers_start_where_the_callers_clock_is() {
    let mut book = book([pool(0, 1)]);
    book.number_from(7_000_000);
    book.has_free(Node(0), PAGE, Pages(4));
    let (order, _) = book.take_zeroing(Requester::User, None, None).expect("pages are free");
    assert_eq!((order.block().expect("a block").0, order.job.0), (7_000_000, 7_000_000));
    assert_eq!(lend(&mut book, &ask(1)).0.lease, LeaseId(7_000_000));
}
