// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that cannot be opened as a look wants to: one with a lease, which counts as a user, and a
//! removed one, which has none.

use std::fs::{File, remove_file};

use testkit::hold_lease;

use super::*;
use crate::base::error::Error;
use crate::storage::store::Returned;

/// A lease on a block, as its borrower can take one.
fn leased(bed: &Bed, block: BlockId) -> File {
    let file = File::options().write(true).open(bed.path(block)).expect("a file");
    hold_lease(&file).expect("nobody else has it open");
    file
}

/// A loan that its memory may hold and that has no user, without the description by which it would
/// be looked at.
fn unwatched(bed: &Bed) -> (LeaseId, BlockId) {
    let granted = bed.lend(&by_memory());
    let (lease, block) = (lease_of(&granted), block_of(&granted));
    drop(granted);
    bed.shell.borrow_mut().store.unwatch(block);
    // A user queue closes the description.
    bed.wait_for_user_queues();
    (lease, block)
}

#[test]
fn block_with_a_lease_is_not_lent() {
    let bed = Bed::new();
    bed.zero(1);
    bed.has_free(0);
    let lease = leased(&bed, bed.only(StateName::Ready));
    bed.try_lend(&pages(1)).expect_err("it has a user");
    assert_eq!(bed.count(StateName::Ready), 0);
    drop(lease);
}

#[test]
fn loan_with_leased_memory_goes_on() {
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
fn loan_with_a_missing_file_ends() {
    let mut bed = Bed::new();
    bed.zero(1);
    let (lease, block) = unwatched(&bed);
    remove_file(bed.path(block)).expect("a file");
    bed.shell.borrow_mut().close_lease(lease, None);
    bed.shell.borrow_mut().look_at_closed(block);
    bed.settle();
    assert!(!bed.has(lease), "nobody can have what cannot be opened");
}

// Promise P254.
#[test]
fn lent_block_is_opened_in_its_borrowers_queue_only() {
    let mut bed = Bed::new();
    bed.zero(1);
    let (lease, block) = unwatched(&bed);
    let busy = bed.hold_up(Some(Uid(BORROWER)));
    bed.shell.borrow_mut().close_lease(lease, None);
    for _ in 0..2 {
        bed.shell.borrow_mut().look_at_closed(block);
    }
    bed.wait_for_shared_queue();
    assert!(bed.returned.try_recv().is_err(), "to open it wakes whoever watches it");
    assert!(bed.has(lease));
    drop(busy);
    bed.settle();
    assert!(!bed.has(lease));
}

// Promise P257.
#[test]
fn job_result_is_of_its_holder_and_its_memory() {
    let bed = Bed::with("", "pages_per_block = 2");
    let taken = bed.shell.borrow_mut().take_zeroing(Requester::User, None, None);
    let (taken, _watch) = taken.expect("a pipe").expect("work");
    let (job, block) = (taken.order.job, taken.order.block().expect("a block of its own"));
    let look = || {
        let mut reported = bed.shell.borrow().look_at_report(job).expect("a job on a block");
        bed.wait_for_user_queues();
        reported.try_recv().expect("an answer")
    };
    let file = taken.block.expect("a file");
    assert_eq!(look().0, Reach::Shared, "its worker has it");
    fallocate(&file, FallocateFlags::empty(), 0, SIZE.bytes()).expect("room");
    drop(file);
    assert_eq!(look(), (Reach::Sole, Pages(1)));
    let mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(bed.path(block), mode).expect("a file");
    };
    mode(0o644);
    assert_eq!(look(), (Reach::Shared, Pages(1)), "anybody may open it");
    mode(0o600);
    let held = leased(&bed, block);
    assert_eq!(look(), (Reach::Shared, Pages::ZERO));
    drop(held);
    remove_file(bed.path(block)).expect("a file");
    assert!(bed.shell.borrow().look_at_report(job).is_none(), "there is nothing to look at");
    bed.shell.borrow_mut().lose_job(job);
    assert!(bed.shell.borrow().look_at_report(job).is_none(), "there is no such job");
}

#[test]
fn returned_block_with_a_borrowers_lease_is_draining() {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&pages(1));
    let (lease, block) = (lease_of(&granted), block_of(&granted));
    drop(granted);
    let held = leased(&bed, block);
    bed.shell.borrow_mut().end_lease(lease);
    bed.settle();
    assert_eq!(bed.count(StateName::Draining), 1);
    drop(held);
    bed.settle_all();
    assert_eq!(bed.count(StateName::Zeroable), 1);
}

// Promise P256 (isolation): A free block with a memory error goes back to the kernel within a
// second of the kernel's report.
#[test]
fn a_ready_block_with_a_memory_error_is_not_lent() {
    let bed = Bed::new();
    bed.zero(1);
    bed.has_free(0);
    let block = bed.only(StateName::Ready);
    let found = |block| Returned { block, reach: Reach::Poisoned, memory: Pages(0), file: None };
    bed.shell.borrow_mut().settled(found(block));
    assert_eq!(bed.count(StateName::Ready), 0);
    bed.wait_for_user_queues();
    assert_eq!(bed.names("ready").len() + bed.names("gone").len(), 0, "the kernel has it");
    // Lent, it is its borrower's until it comes back.
    bed.has_free(9);
    bed.zero(1);
    let granted = bed.lend(&pages(1));
    bed.shell.borrow_mut().settled(found(block_of(&granted)));
    assert_eq!(bed.count(StateName::Lent), 1);
}

/// A block of a page that is lent and has come back: what its borrower did with the file before.
fn returned(act: impl Fn(&File)) -> (Bed, BlockId) {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&pages(1));
    let block = block_of(&granted);
    let file = File::options().read(true).write(true).open(bed.path(block)).expect("a file");
    act(&file);
    drop(file);
    bed.end(granted);
    bed.settle();
    bed.wait_for_user_queues();
    (bed, block)
}

fn allocate(file: &File, how: FallocateFlags, page: u64) {
    fallocate(file, how, page * SIZE.bytes(), SIZE.bytes()).expect("room");
}

// Promise P253 (isolation): Nothing behind the end of a returned file reaches a later loan,
// whether or not the kernel shows pins.
#[test]
fn pages_behind_the_end_of_a_returned_file_are_the_kernels() {
    let (bed, block) = returned(|file| allocate(file, FallocateFlags::KEEP_SIZE, 1));
    assert_eq!(bed.count(StateName::Zeroable), 1, "it is as it was lent");
    let memory = bed.shell.borrow().store.allocated(block, SIZE).expect("a file");
    assert_eq!(memory, Pages(1));
}

// Promise P253.
#[test]
fn a_page_behind_the_end_does_not_stand_for_one_that_was_lent() {
    // As many pages as were lent: they add up, and are elsewhere.
    let (bed, _) = returned(|file| {
        allocate(file, FallocateFlags::KEEP_SIZE, 1);
        allocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0);
    });
    assert_eq!(bed.count(StateName::Zeroable), 0);
    assert_eq!(bed.names("draining").len() + bed.names("gone").len(), 0);
}

// Promise P253.
#[test]
fn block_of_set_length_has_nothing_behind_its_end() {
    let bed = Bed::new();
    bed.zero(1);
    let block = bed.only(StateName::Ready);
    let file = File::options().write(true).open(bed.path(block)).expect("a file");
    allocate(&file, FallocateFlags::KEEP_SIZE, 1);
    drop(file);
    let resize = book::Effect::Resize { block, pages: Pages(1) };
    bed.shell.borrow_mut().apply(|_| vec![resize]);
    let memory = bed.shell.borrow().store.allocated(block, SIZE).expect("a file");
    assert_eq!(memory, Pages(1), "also where that is its length");
}

// Promise P254 (isolation): The daemon's thread opens and closes no file that a borrower has: both
// are events that wake every waiter of the borrower's inotify descriptor, and the user's user
// queue does them.
#[test]
fn description_of_a_borrowers_file_is_closed_in_its_queue() {
    let bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&by_memory());
    let block = block_of(&granted);
    drop(granted);
    let file = File::options().write(true).open(bed.path(block)).expect("a file");
    let is_open = || hold_lease(&file).is_err();
    assert!(is_open(), "the daemon looks at it by that");
    let busy = bed.hold_up(Some(Uid(BORROWER)));
    bed.shell.borrow_mut().store.unwatch(block);
    bed.wait_for_shared_queue();
    assert!(is_open(), "to close it wakes whoever watches it");
    drop(busy);
    bed.wait_for_user_queues();
    assert!(!is_open());
}

// Promise P255 (isolation): A program that runs from lent memory holds its block as a mapping
// does, until it ends.
#[test]
fn returned_block_of_a_running_program_drains_until_it_exits() {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&pages(1));
    let (lease, path) = (lease_of(&granted), bed.path(block_of(&granted)));
    drop(granted);
    let program = fs::read("/bin/sleep").expect("a program");
    std::os::unix::fs::FileExt::write_all_at(
        &File::options().write(true).open(&path).expect("a file"),
        &program,
        0,
    )
    .expect("room");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&path, mode).expect("a file");
    let Ok(mut runs) = std::process::Command::new(&path).arg("60").spawn() else {
        return testkit::skip("programs do not run from /dev/shm");
    };
    bed.shell.borrow_mut().end_lease(lease);
    bed.settle();
    let block = bed.only(StateName::Draining);
    let opened = bed.shell.borrow().store.open_block(block);
    let is_use = |error: &Error| matches!(error, Error::Kernel(error) if error.is_in_use());
    assert!(opened.as_ref().is_err_and(is_use), "it is no line of the log: {opened:?}");
    runs.kill().and_then(|()| runs.wait()).expect("a child");
    bed.settle_all();
    assert_eq!(bed.count(StateName::Zeroable), 1);
}
