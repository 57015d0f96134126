// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that count as free, and when they are looked up; and jobs that end without a report.

use std::time::Instant;

use units::Bytes;

use super::*;

/// How much the book takes for free.
fn free(bed: &Bed) -> Bytes {
    bed.shell.borrow_mut().look_again();
    match bed.try_lend(&pages(1 << 20)) {
        Err(Refusal::NotEnough { free, .. }) => free,
        other => panic!("{other:?}"),
    }
}

fn pages_of(count: u64) -> Bytes {
    Pages(count).bytes(SIZE)
}

#[test]
fn pages_about_to_be_taken_by_a_worker_are_not_free() {
    let bed = Bed::with("", "pages_per_block = 4");
    bed.has_free(10);
    assert_eq!(free(&bed), pages_of(10));
    let taken = bed.shell.borrow_mut().take_zeroing(Requester::User, None, None);
    let (taken, _watch) = taken.expect("a pipe").expect("work");
    assert_eq!(free(&bed), pages_of(6), "it was promised 4");
    // What it has taken is the kernel's to count.
    let file = taken.block.as_ref().expect("a file");
    fallocate(file, FallocateFlags::empty(), 0, pages_of(3).0).expect("room");
    assert_eq!(free(&bed), pages_of(9));
}

#[test]
fn unbacked_loan_is_not_free_until_it_is_mapped() {
    let bed = Bed::new();
    bed.has_free(10);
    let lease = bed.lend(&pages(3)).handover.loan.lease;
    assert_eq!(free(&bed), pages_of(7));
    bed.shell.borrow_mut().end_lease(lease);
    assert_eq!(free(&bed), pages_of(10));
}

#[test]
fn counts_are_looked_up_when_they_are_old_or_pages_were_freed() {
    let bed = Bed::new();
    bed.zero(1);
    bed.has_free(5);
    // The machine has other pages now, and the daemon has yet to look.
    bed.set_free_unobserved(9);
    let sees = |bed: &Bed, observed| {
        let mut shell = bed.shell.borrow_mut();
        shell.observed.at = observed;
        shell.observe();
        shell.observed.counts(HERE).free
    };
    let young = Instant::now() + Duration::from_secs(3600);
    assert_eq!(sees(&bed, Some(young)), Pages(5));
    let old = Instant::now().checked_sub(Duration::from_secs(1));
    assert_eq!(sees(&bed, old), Pages(9));
    bed.set_free_unobserved(7);
    assert_eq!(sees(&bed, Some(young)), Pages(9));
    bed.shell.borrow_mut().apply(|book| book.release(None, None, Pages(1)));
    bed.wait_for_user_queues();
    assert_eq!(sees(&bed, Some(young)), Pages(7), "pages were freed");
    assert_eq!(sees(&bed, None), Pages(7));
}

#[test]
fn dead_worker_leaves_its_block_to_the_next() {
    let mut bed = Bed::new();
    let take = |bed: &Bed| {
        let taken = bed.shell.borrow_mut().take_zeroing(Requester::User, None, None);
        taken.expect("a pipe").expect("work")
    };
    let (taken, watch) = take(&bed);
    let (job, block) = (taken.order.job, taken.order.block());
    fallocate(taken.block.as_ref().expect("a file"), FallocateFlags::empty(), 0, SIZE.bytes())
        .expect("room");
    // Its end of the job says when it is gone: nothing is ever written there.
    let read = || rustix::io::read(&watch, &mut [0]);
    assert_eq!(read(), Err(rustix::io::Errno::AGAIN));
    drop(taken);
    assert_eq!(read(), Ok(0));
    bed.shell.borrow_mut().lose_job(job);
    assert_eq!(bed.count(StateName::Draining), 1, "nobody knows what it wrote");
    bed.settle();
    assert_eq!((bed.count(StateName::Draining), bed.count(StateName::Zeroable)), (0, 1));
    let (again, _watch) = take(&bed);
    assert_eq!(again.order.block(), block);
    let lost = bed.shell.borrow().book().counters().lost_workers;
    bed.shell.borrow_mut().lose_job(job);
    assert_eq!(
        (lost, bed.shell.borrow().book().counters().lost_workers),
        (1, 1),
        "it was lost before"
    );
}

#[test]
fn the_daemons_own_workers_get_what_the_thresholds_ask_for() {
    let bed = Bed::with("", "pages_per_block = 1\nready_low = 1\nready_high = 2");
    let ours = |bed: &Bed| {
        let taken = bed.shell.borrow_mut().take_zeroing(Requester::Background, None, None);
        taken.expect("a pipe").map(|(taken, _)| taken.order.job)
    };
    bed.shell.borrow_mut().config.workers.max = 1;
    assert!(ours(&bed).is_some(), "none is ready, and nobody has counted workers yet");
    bed.shell.borrow_mut().drain(true).expect("a marker");
    assert!(ours(&bed).is_none(), "it is drained");
    let by_user = bed.shell.borrow_mut().take_zeroing(Requester::User, None, None).expect("a pipe");
    assert!(by_user.is_none(), "for whoever asks");
}
