// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Events without a call, in an event loop and without the looks of maintenance: so every result
//! here comes from an event.

use std::mem::replace;

use crate::base::now::NowOrNever as _;
use book::Requester;
use book::block::StateName;
use linux::{Errno, Error};
use rustix::fs::{FallocateFlags, fallocate};
use tokio::sync::mpsc::unbounded_channel;

use super::*;
use crate::ops::testkit::{Bed, SIZE, WAIT_TIMEOUT, by_memory, map, pages};
use crate::ops::{Granted, Handover};

/// Runs a test where a daemon's events are heard.
fn with_events<F: Future>(test: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("an event loop");
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

/// Waits until that is so.
async fn until(mut is_so: impl FnMut() -> bool) {
    let seen = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, seen).await.expect("nothing was heard");
}

/// Lets everything be heard that is there to be heard.
async fn hear() {
    sleep(Duration::from_millis(20)).await;
}

fn lend(bed: &Bed) -> (LeaseId, Handover, DaemonEnd) {
    let Granted { handover, watch, .. } = bed.lend(&pages(1));
    (handover.loan.lease, handover, watch.expect("an end of its own"))
}

#[test]
fn job_ends_with_its_worker_and_not_with_written_text() {
    with_events(async {
        let bed = Bed::new();
        let taken = bed.shell.borrow_mut().take_zeroing(Requester::User, None, None);
        let (taken, watch) = taken.expect("a pipe").expect("work");
        let file = taken.block.as_ref().expect("a file");
        fallocate(file, FallocateFlags::empty(), 0, SIZE.bytes()).expect("room");
        job(&bed.shell, taken.order.job, watch);
        hear().await;
        assert_eq!(bed.count(StateName::Zeroing), 1);
        // More than one read takes.
        rustix::io::write(&taken.job, &[1; 100]).expect("room");
        hear().await;
        assert_eq!(bed.count(StateName::Zeroing), 1, "its worker is there");
        drop(taken);
        until(|| bed.count(StateName::Zeroing) == 0).await;
        assert_eq!(bed.shell.borrow().book().counters().lost_workers, 1);
    });
}

#[test]
fn leases_found_at_start_end_when_they_have_no_holder() {
    with_events(async {
        let bed = Bed::new();
        bed.zero(3);
        let [(held, handover, end), (gone, _, _), (unknown, _, _)] = [(); 3].map(|()| lend(&bed));
        let (notify, later) = unbounded_channel();
        leases(&bed.shell, later);
        for found in [
            (unknown, Err(Error::Call { call: "open".into(), errno: Errno::MFILE, advice: None })),
            (held, Ok(Some(end))),
            (gone, Ok(None)),
        ] {
            notify.send(found).expect("somebody listens");
        }
        until(|| !bed.has(gone)).await;
        hear().await;
        assert!(bed.has(held) && bed.has(unknown), "somebody has it, or may have");
        drop(handover);
        until(|| !bed.has(held)).await;
        assert!(bed.has(unknown));
    });
}

#[tokio::test(start_paused = true)]
async fn unwatchable_lease_is_polled_until_it_has_no_holder() {
    let bed = Bed::new();
    bed.zero(1);
    let (_, handover, end) = lend(&bed);
    let seen = seen_unheld(&end);
    tokio::pin!(seen);
    for _ in 0..3 {
        assert!(seen.as_mut().now_or_never().is_none(), "its borrower has it");
        tokio::time::advance(POLL_INTERVAL).await;
    }
    drop(handover);
    assert!(seen.now_or_never().is_some());
}

#[test]
fn the_end_of_a_mapping_ends_its_loan_and_so_does_the_next_ones() {
    with_events(async {
        let bed = Bed::new();
        bed.zero(1);
        unmap_events(&bed.shell);
        for _ in 0..2 {
            let granted = bed.lend(&by_memory());
            let (lease, memory) = (granted.handover.loan.lease, map(&granted));
            drop(granted);
            bed.shell.borrow_mut().close_lease(lease, None);
            hear().await;
            assert!(bed.has(lease), "its mapping holds it");
            drop(memory);
            until(|| !bed.has(lease)).await;
        }
    });
}

#[test]
fn returned_block_is_free_after_its_queue_has_checked_it() {
    with_events(async {
        let mut bed = Bed::new();
        bed.zero(1);
        let granted = bed.lend(&pages(1));
        bed.end(granted);
        bed.wait_for_user_queues();
        hear().await;
        assert_eq!(bed.count(StateName::Draining), 1, "nobody has heard it");
        let (_, nothing) = unbounded_channel();
        returned(&bed.shell, replace(&mut bed.returned, nothing));
        until(|| bed.count(StateName::Zeroable) == 1).await;
    });
}
