// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that cannot be opened as a look wants to: one on which somebody has a lease, which is
//! somebody who has it, and one that is gone, which nobody has.

use std::fs::{File, remove_file};

use linux::testkit::hold_lease;

use super::*;

/// Somebody's lease on a block, as its borrower can take one.
fn leased(bed: &Bed, block: BlockId) -> File {
    let file = File::options().write(true).open(bed.path(block)).expect("a file");
    hold_lease(&file).expect("nobody else has it open");
    file
}

/// A loan whose memory may hold it and that nobody has, without the description by which it would
/// be looked at.
fn unwatched(bed: &Bed) -> (LeaseId, BlockId) {
    let granted = bed.lend(&by_memory());
    let (lease, block) = (lease_of(&granted), block_of(&granted));
    drop(granted);
    bed.shell.borrow_mut().store.unwatch(block);
    (lease, block)
}

#[test]
fn a_block_on_which_somebody_has_a_lease_is_not_lent() {
    let bed = Bed::new();
    bed.zero(1);
    bed.has_free(0);
    let lease = leased(&bed, bed.only(StateName::Ready));
    bed.try_lend(&pages(1)).expect_err("it has a user");
    assert_eq!(bed.count(StateName::Ready), 0);
    drop(lease);
}

#[test]
fn a_loan_whose_memory_somebody_has_by_a_lease_goes_on() {
    let mut bed = Bed::new();
    bed.zero(1);
    let (lease, block) = unwatched(&bed);
    let held = leased(&bed, block);
    bed.shell.borrow_mut().close_lease(lease, None);
    bed.shell.borrow_mut().look_at_closed(block);
    bed.settle();
    assert!(bed.has(lease), "who has a lease on it has it open");
    drop(held);
    bed.shell.borrow_mut().look_at_closed(block);
    bed.settle();
    assert!(!bed.has(lease));
}

#[test]
fn a_loan_whose_file_is_gone_ends() {
    let mut bed = Bed::new();
    bed.zero(1);
    let (lease, block) = unwatched(&bed);
    remove_file(bed.path(block)).expect("a file");
    bed.shell.borrow_mut().close_lease(lease, None);
    bed.shell.borrow_mut().look_at_closed(block);
    bed.settle();
    assert!(!bed.has(lease), "nobody can have what cannot be opened");
}

#[test]
fn a_lent_block_is_opened_in_its_borrowers_lane_only() {
    let mut bed = Bed::new();
    bed.zero(1);
    let (lease, block) = unwatched(&bed);
    let busy = bed.hold_up(Some(Uid(BORROWER)));
    bed.shell.borrow_mut().close_lease(lease, None);
    for _ in 0..2 {
        bed.shell.borrow_mut().look_at_closed(block);
    }
    bed.wait_for_ours();
    assert!(bed.has(lease), "to open it is an event, for which its borrower may wait");
    drop(busy);
    bed.settle();
    assert!(!bed.has(lease));
}

#[test]
fn a_report_is_of_who_has_the_block_and_of_the_memory_that_it_has() {
    let bed = Bed::with("", "pages_per_block = 2");
    let taken = bed.shell.borrow_mut().take_zeroing(Who::User, None, None);
    let (taken, _watch) = taken.expect("a pipe").expect("work");
    let (job, block) = (taken.order.job, taken.order.block().expect("a block of its own"));
    let look = || {
        let mut told = bed.shell.borrow().look_at_report(job).expect("a job on a block");
        bed.wait_for_lanes();
        told.try_recv().expect("an answer")
    };
    let file = taken.block.expect("a file");
    assert_eq!(look().0, Reach::Shared, "its worker has it");
    fallocate(&file, FallocateFlags::empty(), 0, SIZE.bytes()).expect("room");
    drop(file);
    assert_eq!(look(), (Reach::Sole, Pages(1)));
    let held = leased(&bed, block);
    assert_eq!(look(), (Reach::Shared, Pages::ZERO));
    drop(held);
    remove_file(bed.path(block)).expect("a file");
    assert!(bed.shell.borrow().look_at_report(job).is_none(), "there is nothing to look at");
    bed.shell.borrow_mut().lose_job(job);
    assert!(bed.shell.borrow().look_at_report(job).is_none(), "there is no such job");
}

#[test]
fn a_returned_block_on_which_its_borrower_has_a_lease_lingers() {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&pages(1));
    let (lease, block) = (lease_of(&granted), block_of(&granted));
    drop(granted);
    let held = leased(&bed, block);
    bed.shell.borrow_mut().end_lease(lease);
    bed.settle();
    assert_eq!(bed.count(StateName::Lingering), 1);
    drop(held);
    bed.settle_all();
    assert_eq!(bed.count(StateName::Zeroable), 1);
}
