// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happens without a call, in an event loop and without the looks of the housekeeping: so what
//! is heard here is heard by events.

use std::mem::replace;

use crate::base::now::NowOrNever as _;
use book::Who;
use book::block::StateName;
use linux::{Errno, Error};
use rustix::fs::{FallocateFlags, fallocate};
use tokio::sync::mpsc::unbounded_channel;

use super::*;
use crate::ops::testkit::{Bed, PATIENCE, SIZE, by_memory, map, pages};
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
    tokio::time::timeout(PATIENCE, seen).await.expect("nothing was heard");
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
fn a_job_ends_with_its_workers_end_and_not_with_what_is_written_there() {
    with_events(async {
        let bed = Bed::new();
        let taken = bed.shell.borrow_mut().take_zeroing(Who::User, None, None);
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
fn leases_that_are_found_later_end_when_it_is_found_that_nobody_has_them() {
    with_events(async {
        let bed = Bed::new();
        bed.zero(3);
        let [(held, handover, end), (gone, _, _), (unknown, _, _)] = [(); 3].map(|()| lend(&bed));
        let (tell, later) = unbounded_channel();
        leases(&bed.shell, later);
        for found in [
            (unknown, Err(Error::Call { call: "open".into(), errno: Errno::MFILE, advice: None })),
            (held, Ok(Some(end))),
            (gone, Ok(None)),
        ] {
            tell.send(found).expect("somebody listens");
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
async fn a_lease_that_cannot_be_watched_is_looked_at_until_nobody_has_it() {
    let bed = Bed::new();
    bed.zero(1);
    let (_, handover, end) = lend(&bed);
    let seen = seen_unheld(&end);
    tokio::pin!(seen);
    for _ in 0..3 {
        assert!(seen.as_mut().now_or_never().is_none(), "its borrower has it");
        tokio::time::advance(LOOK).await;
    }
    drop(handover);
    assert!(seen.now_or_never().is_some());
}

#[test]
fn the_end_of_a_mapping_ends_its_loan_and_so_does_the_next_ones() {
    with_events(async {
        let bed = Bed::new();
        bed.zero(1);
        closings(&bed.shell);
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
fn a_returned_block_is_nobodys_when_its_lane_has_seen_that() {
    with_events(async {
        let mut bed = Bed::new();
        bed.zero(1);
        let granted = bed.lend(&pages(1));
        bed.end(granted);
        bed.wait_for_lanes();
        hear().await;
        assert_eq!(bed.count(StateName::Lingering), 1, "nobody has heard it");
        let (_, nothing) = unbounded_channel();
        returned(&bed.shell, replace(&mut bed.returned, nothing));
        until(|| bed.count(StateName::Zeroable) == 1).await;
    });
}
