// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans that wait for pages on their way to them, and loans without pages to wait for.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use client::Client;
use units::{Bytes, Pages};

use super::*;

/// How long a loan waits for pages on their way, but for what clocks may differ by.
const MIN_WAIT_PERIOD: Duration = Duration::from_millis(490);

/// More than any other use of the machine's memory.
const BLOCK: u64 = 1024;

/// A daemon with a block in a worker's hands: the worker, and the job's descriptors.
fn being_zeroed() -> (Daemon, Client, Vec<OwnedFd>) {
    let daemon = daemon(&format!("pages_per_block = {BLOCK}"), "");
    let mut worker = daemon.client();
    let (_, fds) = worker.take_zeroing(&wire::TakeZeroing::default()).expect("a job");
    (daemon, worker, fds)
}

/// More pages than are available at once, by this number.
fn more_than_free(daemon: &Daemon, pages: u64) -> LendRequest {
    let all = LendRequest::new(PAGE.times(1 << 30));
    match refusal(daemon.client().lend(&all)) {
        wire::Error::NotEnough { free_bytes, .. } => {
            LendRequest::new(Bytes(free_bytes.0) + PAGE.times(pages))
        }
        other => panic!("{other:?}"),
    }
}

/// How long a refusal took, at its quickest: the machine has other work, too.
fn quickest_refusal(daemon: &Daemon, request: &LendRequest) -> Duration {
    let refuse = || {
        let begun = Instant::now();
        let refused = refusal(daemon.client().lend(request));
        assert!(matches!(refused, wire::Error::NotEnough { .. }), "{refused:?}");
        begun.elapsed()
    };
    (0..5).map(|_| refuse()).min().expect("five of them")
}

#[test]
fn a_block_that_a_worker_has_is_waited_for_half_a_second() {
    let _alone = alone();
    let (daemon, _worker, _job) = being_zeroed();
    let took = quickest_refusal(&daemon, &more_than_free(&daemon, BLOCK / 2));
    assert!((MIN_WAIT_PERIOD..Duration::from_secs(5)).contains(&took), "it came after {took:?}");
}

#[test]
fn request_that_no_page_can_serve_is_refused_at_once() {
    let _alone = alone();
    let daemon = daemon("", "");
    let took = quickest_refusal(&daemon, &more_than_free(&daemon, BLOCK / 2));
    assert!(took < MIN_WAIT_PERIOD, "nothing was on its way, and yet it took {took:?}");
}

#[test]
fn a_report_is_of_pages_that_have_arrived() {
    let _alone = alone();
    let daemon = daemon("max = 8", "");
    for _ in 0..20 {
        ready(&daemon, 8);
        daemon.client().release(None, None, None).expect("root may");
        let pool = daemon.pool();
        assert_eq!((pool.ready_pages, pool.blocks), (Pages(0), 0), "{pool:?}");
    }
}
