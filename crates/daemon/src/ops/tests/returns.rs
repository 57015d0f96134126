// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of loans, and which look finds it.

use std::time::Instant;

use super::*;
use crate::ops::MIN_HELD_PERIOD;
use crate::peers::metrics::OwnProcess;

/// The blocks with a description that went: the kernel reports it a moment later.
fn closed(bed: &Bed) -> Vec<BlockId> {
    let end = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(blocks) = bed.shell.borrow_mut().closed_blocks() {
            return blocks;
        }
        assert!(Instant::now() < end, "nothing was told");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The event comes before the description is quite gone.
fn look_until_gone(bed: &Bed, block: BlockId) {
    let end = Instant::now() + WAIT_TIMEOUT;
    while bed.shell.borrow_mut().look_at_closed(block) {
        assert!(Instant::now() < end, "somebody still has it");
    }
}

/// A loan that nothing holds any more but its memory.
fn held_by_a_mapping(bed: &Bed) -> (LeaseId, BlockId, Mapping) {
    let granted = bed.lend(&by_memory());
    let (lease, block, memory) = (lease_of(&granted), block_of(&granted), map(&granted));
    drop(granted);
    bed.shell.borrow_mut().close_lease(lease, None);
    assert!(bed.has(lease), "its mapping holds it");
    (lease, block, memory)
}

#[test]
fn the_end_of_its_lease_ends_a_loan_that_nothing_else_holds() {
    let bed = Bed::new();
    bed.zero(2);
    for request in [pages(1), by_memory()] {
        let granted = bed.lend(&request);
        let lease = lease_of(&granted);
        drop(granted);
        bed.shell.borrow_mut().close_lease(lease, None);
        assert!(!bed.has(lease), "{request:?}");
    }
}

#[test]
fn last_unmap_is_an_event_and_ends_the_loan() {
    let bed = Bed::new();
    bed.zero(1);
    let (lease, block, memory) = held_by_a_mapping(&bed);
    drop(memory);
    assert_eq!(closed(&bed), [block]);
    look_until_gone(&bed, block);
    assert!(!bed.has(lease));
}

#[test]
fn loan_with_a_held_lease_is_not_checked_when_a_descriptor_goes() {
    let bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&by_memory());
    let (lease, block) = (lease_of(&granted), block_of(&granted));
    assert!(!bed.shell.borrow_mut().look_at_closed(block), "it is worth no other look");
    drop(granted);
    assert!(!bed.shell.borrow_mut().look_at_closed(block), "its lease is held as far as is known");
    assert!(bed.has(lease));
}

#[test]
fn clock_ends_loans_without_events_by_age_or_when_waited_for() {
    let mut bed = Bed::new();
    bed.zero(2);
    let begin = Instant::now();
    let (lease, _, memory) = held_by_a_mapping(&bed);
    drop(memory);
    bed.shell.borrow_mut().settle_some(9);
    let is_there = bed.has(lease);
    // A machine that stood still meanwhile has no young loan to show.
    assert!(is_there || begin.elapsed() >= MIN_HELD_PERIOD, "its client faults its pages in");
    let waits = bed.shell.borrow().peers.waiting.begin();
    bed.shell.borrow_mut().settle_some(9);
    assert!(!bed.has(lease), "somebody waits for it");
    drop(waits);
    let (lease, _, memory) = held_by_a_mapping(&bed);
    drop(memory);
    std::thread::sleep(MIN_HELD_PERIOD);
    bed.shell.borrow_mut().settle_some(9);
    assert!(!bed.has(lease), "it is old enough");
    bed.settle();
    assert_eq!(bed.count(StateName::Draining), 0);
}

#[test]
fn mapped_block_drains_until_its_mapping_goes() {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&pages(1));
    let (block, memory) = (block_of(&granted), map(&granted));
    bed.end(granted);
    bed.settle();
    assert_eq!(bed.count(StateName::Draining), 1);
    assert_eq!(bed.shell.borrow_mut().closed_blocks(), None, "nothing went since it is watched");
    drop(memory);
    assert_eq!(closed(&bed), [block]);
    assert!(bed.shell.borrow_mut().look_at_closed(block), "another look may be needed");
    bed.settle_all();
    assert_eq!(bed.count(StateName::Zeroable), 1);
    assert!(!bed.shell.borrow_mut().look_at_closed(block), "it is nobody's");
}

#[test]
fn watched_block_is_checked_on_an_event_and_not_before() {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&pages(1));
    let memory = map(&granted);
    bed.end(granted);
    // One look finds that it has to be watched, one that nothing went in between.
    let mut looks = 0;
    loop {
        bed.wait_for_user_queues();
        let Ok(found) = bed.returned.try_recv() else { break };
        looks += 1;
        assert!(looks <= 2, "it is looked at again and again");
        bed.shell.borrow_mut().settled(found);
    }
    assert_eq!((looks, bed.count(StateName::Draining)), (2, 1));
    drop(memory);
}

#[test]
fn ended_loan_leaves_nothing() {
    let bed = Bed::new();
    bed.zero(1);
    let granted = bed.try_lend(&pages(2)).expect("a loan");
    let (lease, block) = (lease_of(&granted), block_of(&granted));
    let mut shell = bed.shell.borrow_mut();
    shell.record_borrower(lease, Some(1));
    shell.loans.begin_filling(block, Pages(1));
    assert_eq!(shell.peers.borrowers.pid(lease), Some(1));
    shell.end_lease(lease);
    assert_eq!(shell.peers.borrowers.pid(lease), None);
    assert!(shell.loans.filling().next().is_none());
    assert_eq!(shell.observed.unbacked.waiting(HERE), Pages::ZERO);
    let status = shell.status();
    let text = shell.metrics.text(&status, Duration::ZERO, OwnProcess::default());
    let ended = "prezero_loan_seconds_count{up_to=\"64M\"} 1\n";
    assert!(text.contains(ended), "{text}");
    shell.record_borrower(lease, Some(1));
    assert_eq!(shell.peers.borrowers.pid(lease), None, "it has ended");
    shell.store.user_queues().wait(WAIT_TIMEOUT);
    drop(shell);
    assert_eq!(bed.names("loans").len(), 0);
}

#[test]
fn name_of_a_lease_ends_in_its_borrowers_queue() {
    let bed = Bed::new();
    bed.zero(2);
    let leases = [0, 1].map(|_| lease_of(&bed.lend(&pages(1))));
    let busy = bed.hold_up(Some(Uid(BORROWER)));
    bed.shell.borrow_mut().end_lease(leases[0]);
    // Also when it is revoked.
    assert_eq!(bed.shell.borrow_mut().revoke(leases[1]), Some(Pages(1).bytes(SIZE)));
    bed.wait_for_shared_queue();
    assert_eq!(bed.names("loans").len(), 2, "whoever holds its user queue up holds up its own");
    drop(busy);
    bed.wait_for_user_queues();
    assert_eq!(bed.names("loans").len(), 0);
}

#[test]
fn daemons_end_of_a_lease_is_closed_in_its_borrowers_queue() {
    let bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&pages(1));
    let lease = lease_of(&granted);
    let (theirs, ours) = rustix::pipe::pipe().expect("a pipe");
    let busy = bed.hold_up(Some(Uid(BORROWER)));
    bed.shell.borrow_mut().close_lease(lease, Some(ours));
    bed.wait_for_shared_queue();
    let is_open = || {
        let mut polled = [rustix::event::PollFd::new(&theirs, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&now)).expect("a look") == 0
    };
    assert!(is_open());
    drop(busy);
    bed.wait_for_user_queues();
    assert!(!is_open());
}

#[test]
fn only_pages_in_flight_are_waited_for() {
    let mut bed = Bed::with("", "pages_per_block = 1\nrecycle = \"in-place\"\nmax = 2");
    let may_come = |bed: &Bed| bed.shell.borrow().may_come(&pages(1));
    assert!(!may_come(&bed), "nothing is there");
    bed.zero(2);
    assert!(!may_come(&bed), "what is ready is not on its way");

    let (lease, block, memory) = held_by_a_mapping(&bed);
    assert!(may_come(&bed), "its last mapping may go");
    drop(memory);
    assert_eq!(closed(&bed), [block]);
    look_until_gone(&bed, block);
    assert!(!bed.has(lease));
    bed.settle();
    assert!(!may_come(&bed));

    let busy = bed.hold_up(None);
    assert!(may_come(&bed), "a user queue has something to do");
    drop(busy);
    bed.wait_for_user_queues();
    assert!(!may_come(&bed));

    bed.shell.borrow_mut().loans.begin_filling(block, Pages(1));
    assert!(may_come(&bed), "a file takes its pages from the kernel's pool");
    bed.shell.borrow_mut().filled(block, Pages(1));
    assert!(!may_come(&bed));

    let taken = bed.shell.borrow_mut().take_zeroing(Requester::User, None, None);
    let (taken, _watch) = taken.expect("a pipe").expect("the block that came back");
    assert!(may_come(&bed), "a worker has it");
    bed.shell.borrow_mut().finish_zeroing(taken.order.job, Pages::ZERO, None);
    drop(taken);
    bed.settle();
    assert!(!may_come(&bed));

    let granted = bed.lend(&pages(1));
    let memory = map(&granted);
    bed.end(granted);
    bed.settle();
    assert!(may_come(&bed), "it is draining");
    drop(memory);
}

#[test]
fn revoking_what_there_is_not_is_said() {
    let bed = Bed::new();
    assert_eq!(bed.shell.borrow_mut().revoke(LeaseId(1)), None);
}

#[test]
fn kept_content_is_given_up_at_its_time() {
    let mut bed = Bed::new();
    bed.zero(1);
    let granted = bed.lend(&LendRequest { keep: Some(Duration::ZERO), ..owned() });
    let lease = lease_of(&granted);
    drop(granted);
    assert_eq!(bed.shell.borrow_mut().expire(), None, "nothing is kept");
    bed.shell.borrow_mut().end_lease(lease);
    bed.settle();
    assert_eq!(bed.shell.borrow_mut().expire(), None, "its time is over");
    bed.settle();
    assert_eq!((bed.count(StateName::Kept), bed.count(StateName::Zeroable)), (0, 1));
    bed.zero(1);
    bed.end(bed.lend(&owned()));
    bed.settle();
    let until = bed.shell.borrow_mut().expire().expect("it is kept");
    let left = until - crate::ops::boot_seconds();
    assert!((1..=60).contains(&left), "{left} seconds");
    assert_eq!(bed.count(StateName::Kept), 1);
}

#[test]
fn drained_daemon_releases_returned_blocks() {
    let mut bed = Bed::new();
    bed.zero(2);
    let lease = lease_of(&bed.lend(&pages(1)));
    bed.shell.borrow_mut().drain(true).expect("a marker");
    assert_eq!(bed.count(StateName::Ready), 0);
    bed.shell.borrow_mut().end_lease(lease);
    bed.settle();
    assert_eq!(bed.count(StateName::Zeroable), 1);
    bed.shell.borrow_mut().relieve();
    assert_eq!(bed.count(StateName::Zeroable), 0);
}
