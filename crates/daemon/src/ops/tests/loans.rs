// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hand-over, and the knowledge about it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use book::LoanPart;
use book::block::Block;
use pins::Opened;

use super::*;
use crate::ops::peers::MAX_MEASURE_TIME_SHARE;

#[test]
fn unbacked_part_is_left_to_its_borrower_ready_pages_are_not() {
    let bed = Bed::new();
    bed.zero(1);
    let loan = bed.lend(&pages(3)).handover.loan;
    let ready: Pages = loan.parts.iter().map(|part| part.ready).sum();
    assert_eq!(ready, Pages(1), "{loan:?}");
    assert_eq!(bed.shell.borrow().observed.unbacked.waiting(HERE), Pages(2));
    bed.shell.borrow_mut().end_lease(loan.lease);
    assert_eq!(
        bed.shell.borrow().observed.unbacked.waiting(HERE),
        Pages::ZERO,
        "nobody waits for it"
    );
}

#[test]
fn growth_of_a_file_is_seen_when_it_is_due_and_not_before() {
    let bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&pages(1));
    let (uid, length) = (Uid(BORROWER), Pages(2).bytes(SIZE).0);
    fallocate(&granted.handover.blocks[0], FallocateFlags::empty(), 0, length).expect("room");
    let mut shell = bed.shell.borrow_mut();
    let before = shell.book.held_by(uid);
    let later = Instant::now() + Duration::from_secs(3600);
    shell.peers.next_measure.insert(uid, later);
    shell.measure(uid);
    assert_eq!(shell.book.held_by(uid), before, "it was looked up a moment ago");
    assert_eq!(shell.peers.next_measure.get(&uid), Some(&later));
    shell.peers.next_measure.insert(uid, Instant::now());
    shell.measure(uid);
    assert_eq!(shell.book.held_by(uid), Pages(2).bytes(SIZE));
}

#[test]
fn looking_up_files_takes_a_small_part_of_the_daemons_time() {
    let bed = Bed::new();
    bed.zero(64);
    let _granted = bed.lend(&pages(64));
    let mut shell = bed.shell.borrow_mut();
    // The most of a few: it may lose its CPU between its last look and ours.
    let pauses = (0..5).map(|_| {
        shell.peers.next_measure.clear();
        let begin = Instant::now();
        shell.measure(Uid(BORROWER));
        let took = begin.elapsed();
        let pause =
            shell.peers.next_measure[&Uid(BORROWER)].saturating_duration_since(Instant::now());
        pause.as_secs_f64() / took.as_secs_f64()
    });
    let most = pauses.fold(0.0, f64::max);
    assert!(most > f64::from(MAX_MEASURE_TIME_SHARE) / 2.0, "{most} times as long as it took");
}

/// A bed with this number of ready blocks of two pages, in the order in which they are lent.
fn in_order(count: u64) -> (Bed, Vec<BlockId>) {
    let ready = || {
        let bed = Bed::with("", "pages_per_block = 2");
        bed.zero(usize::try_from(count).expect("few"));
        let shell = bed.shell.borrow();
        let mut all: Vec<_> = shell.book.in_state(StateName::Ready).map(Block::id).collect();
        all.sort_unstable();
        drop(shell);
        (bed, all)
    };
    // Which comes when is found out from blocks that were made in the same way.
    let order = {
        let (bed, all) = ready();
        let parts = bed.lend(&pages(2 * count)).handover.loan.parts;
        let nth = |part: &LoanPart| all.iter().position(|block| *block == part.block);
        parts.iter().map(|part| nth(part).expect("one of them")).collect::<Vec<_>>()
    };
    let (bed, all) = ready();
    let ordered = order.into_iter().map(|nth| all[nth]).collect();
    (bed, ordered)
}

/// Whether the check of a loan finds a byte other than zero: of `count` blocks of two pages, with
/// the `nth` one dirty at `at`, by a lease of that number.
fn is_found_dirty(count: u64, nth: usize, at: u64, lease: u64) -> bool {
    let (bed, order) = in_order(count);
    bed.write(order[nth], at, 1);
    bed.shell.borrow_mut().book.number_from(lease);
    let lent = catch_unwind(AssertUnwindSafe(|| bed.lend(&pages(2 * count)).handover.loan));
    if let Ok(loan) = &lent {
        assert_eq!((loan.lease.0, loan.parts[nth].block), (lease, order[nth]));
    }
    lent.is_err()
}

#[test]
fn debug_build_checks_page_edges_before_it_lends_them() {
    let page = SIZE.bytes();
    let edges = [0, 4095, page - 4096, page - 1];
    for at in edges.into_iter().chain(edges.map(|edge| page + edge)) {
        assert!(is_found_dirty(1, 0, at, 1 << 50), "byte {at}");
    }
    for at in [4096, page - 4097, page + 4096, 2 * page - 4097] {
        assert!(!is_found_dirty(1, 0, at, 1 << 50), "byte {at} is not looked at");
    }
}

#[test]
fn of_many_blocks_some_are_looked_at_and_others_the_next_time() {
    let first = 1 << 50;
    assert!(is_found_dirty(32, 31, 0, first), "each of so many");
    // Of 40 every second one: the even ones by an even lease.
    let found = [(4, 0), (5, 0), (4, 1), (5, 1)];
    let found = found.map(|(nth, odd)| is_found_dirty(40, nth, 0, first + odd));
    assert_eq!(found, [true, false, false, true]);
}

#[test]
fn owners_content_is_lent_as_it_is() {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&owned());
    let block = block_of(&granted);
    bed.write(block, 0, 1);
    bed.end(granted);
    bed.settle();
    let again = bed.lend(&owned());
    assert!(again.handover.loan.kept && block_of(&again) == block);
}

#[test]
fn unsent_zeros_have_no_owner() {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.try_lend(&owned()).expect("a loan");
    // As when its peer goes away before its answer.
    bed.end(granted);
    bed.settle();
    assert_eq!((bed.count(StateName::Kept), bed.count(StateName::Zeroable)), (0, 1));
}

#[test]
fn content_lent_again_stays_its_owners_sent_or_not() {
    let mut bed = Bed::new();
    bed.zero(1);
    let first = bed.lend(&owned());
    bed.end(first);
    bed.settle();
    let again = bed.try_lend(&owned()).expect("a loan");
    assert!(again.handover.loan.kept);
    bed.end(again);
    bed.settle();
    assert_eq!(bed.count(StateName::Kept), 1);
}

// Promise P243 (isolation): Zeros that the daemon had not sent when it crashed are not kept
// either. A loan goes on if its files cannot be marked as its owner's, and is not kept.
#[test]
fn killed_daemon_leaves_owners_their_content_not_unsent_zeros() {
    for (is_sent, kept, zeroable) in [(false, 0, 1), (true, 1, 0)] {
        let mut bed = Bed::new();
        bed.zero(1);
        let granted = bed.try_lend(&owned()).expect("a loan");
        if is_sent {
            bed.shell.borrow_mut().sent(lease_of(&granted));
        }
        drop(granted);
        bed = bed.killed();
        bed.shell.borrow_mut().settle_some(9);
        bed.settle();
        let left = (bed.count(StateName::Kept), bed.count(StateName::Zeroable));
        assert_eq!(left, (kept, zeroable), "sent: {is_sent}");
    }
}

// Promise P243.
#[test]
fn loan_with_unmarkable_files_goes_on_and_is_not_kept() {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.try_lend(&owned()).expect("a loan");
    let (lease, block) = (lease_of(&granted), block_of(&granted));
    let of_it = bed.path(block).parent().expect("a block has a directory").to_owned();
    let aside = bed.dir.path().join("aside");
    fs::rename(&of_it, &aside).expect("the block's");
    bed.shell.borrow_mut().sent(lease);
    fs::rename(&aside, &of_it).expect("the same");
    assert!(bed.has(lease) && bed.count(StateName::Lent) == 1, "its borrower has it");
    bed.end(granted);
    bed.settle();
    assert_eq!((bed.count(StateName::Kept), bed.count(StateName::Zeroable)), (0, 1));
}

#[test]
fn a_loan_that_could_not_be_sent_is_over_at_once() {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.try_lend(&owned()).expect("a loan");
    let lease = lease_of(&granted);
    drop(granted);
    bed.shell.borrow_mut().end_lease(lease);
    assert!(!bed.has(lease));
    bed.settle();
    assert_eq!((bed.count(StateName::Kept), bed.count(StateName::Zeroable)), (0, 1));
    // An ended loan has nothing to end.
    bed.shell.borrow_mut().end_lease(lease);
}

#[test]
fn opened_ready_block_is_not_lent() {
    let mut bed = Bed::new();
    bed.zero(2);
    let reached = bed.shell.borrow().book.in_state(StateName::Ready).next().expect("two").id();
    let open = fs::File::open(bed.path(reached)).expect("a file");
    let loan = bed.lend(&pages(2)).handover.loan;
    assert!(loan.parts.iter().all(|part| part.block != reached), "{loan:?}");
    assert_eq!(bed.count(StateName::Draining), 2, "both are looked at");
    bed.settle();
    assert_eq!((bed.count(StateName::Draining), bed.count(StateName::Zeroable)), (1, 1));
    drop(open);
    bed.shell.borrow_mut().settle_some(9);
    bed.settle();
    assert_eq!((bed.count(StateName::Draining), bed.count(StateName::Zeroable)), (0, 2));
}

// Promise P257 (isolation): A ready block that another user may open is not lent.
#[test]
fn a_ready_block_that_others_may_open_is_not_lent() {
    let bed = Bed::new();
    bed.zero(1);
    bed.has_free(0);
    let path = bed.path(bed.only(StateName::Ready));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(path, mode).expect("a file");
    bed.try_lend(&pages(1)).expect_err("whoever opens it next may have been let in before");
    assert_eq!(bed.count(StateName::Ready), 0);
}

// Promise P258 (isolation): A loan that cannot be handed over ends, a start frees what a crash
// left on its way to the kernel, and lost events have every watched block looked at.
#[test]
fn a_loan_that_cannot_be_handed_over_is_over() {
    let mut bed = Bed::new();
    bed.zero(1);
    fs::remove_dir(bed.directory("loans")).expect("no lease is there");
    let asked = bed.ask(pages(1), BORROWER);
    let error = bed.shell.borrow_mut().lend(&asked, (0, 0));
    assert!(matches!(error, Err(wire::Error::Failed { .. })), "{error:?}");
    assert_eq!(bed.count(StateName::Lent), 0, "nobody has it");
    bed.settle();
    assert_eq!(bed.count(StateName::Zeroable), 1);
}

#[test]
fn files_of_loans_are_found_with_draining_ones() {
    let mut bed = Bed::new();
    bed.zero(3);
    let [lent, mapped, pinned] = [0, 1, 2].map(|_| bed.lend(&pages(1)));
    let memory = map(&mapped);
    let block = block_of(&pinned);
    let ids = [lease_of(&lent), bed.end(mapped), bed.end(pinned)];
    bed.wait_for_user_queues();
    // No plain memory shows pins: as its user queue would say it.
    while let Ok(mut found) = bed.returned.try_recv() {
        if found.block == block {
            found.reach = Reach::Pinned;
        }
        bed.shell.borrow_mut().settled(found);
    }
    let of = |lease| {
        let mut files = bed.shell.borrow().lent_files(lease);
        files.sort_unstable_by_key(|file| file.lease);
        let short = files.into_iter().map(|f| (f.lease, f.uid, f.draining, f.is_pinned, f.pages));
        short.collect::<Vec<_>>()
    };
    let uid = Some(Uid(BORROWER));
    let all = [
        (Some(ids[0]), uid, false, false, Pages(1)),
        (Some(ids[1]), uid, true, false, Pages(1)),
        (Some(ids[2]), uid, true, true, Pages(1)),
    ];
    assert_eq!(of(None), all);
    for (lease, file) in ids.into_iter().zip(all) {
        assert_eq!(of(Some(lease)), [file]);
    }
    drop(memory);
}

#[test]
fn holders_are_seen_by_a_description_opened_before_the_loan() {
    let bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&by_memory());
    let block = block_of(&granted);
    let opened = || bed.shell.borrow().store.holders_while_lent(block).expect("a file");
    assert_eq!(opened(), Opened::Open);
    drop(granted);
    assert_eq!(opened(), Opened::Nobody);
}

#[test]
fn content_is_kept_for_its_owner_and_a_bounded_time() {
    let bed = Bed::with("keep_seconds_max = 9", "pages_per_block = 1");
    let refused = |request: LendRequest| {
        let uid = Uid(BORROWER);
        match bed.shell.borrow_mut().ask(request, uid, uid, None) {
            Ok(_) => None,
            Err(wire::Error::BadValue { field, .. }) => Some(field),
            Err(other) => panic!("{other:?}"),
        }
    };
    let keep = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(refused(LendRequest { keep: keep(9), ..owned() }), None);
    assert_eq!(refused(LendRequest { keep: None, ..owned() }), None);
    for request in [
        LendRequest { keep: keep(10), ..owned() },
        LendRequest { keep: keep(1), ..pages(1) },
        LendRequest { keep: keep(0), ..pages(1) },
    ] {
        assert_eq!(refused(request).as_deref(), Some("keep_seconds"));
    }
}
