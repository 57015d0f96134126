// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Content that is kept for an owner, and how long a loan waits for it.

use std::time::{Duration, Instant};

use client::Loan;
use linux::Mapping;
use units::{Owner, Pages};

use super::*;
use prezero_tests::MapAlone as _;

/// How long a loan waits for its owner's content, but for what clocks may differ by.
const MIN_OWNER_WAIT_PERIOD: Duration = Duration::from_millis(1990);

fn owned(owner: &str, keep: Duration) -> LendRequest {
    let owner: Owner = owner.parse().expect("a name");
    LendRequest { owner: Some(owner), keep: Some(keep), ..one_file(1) }
}

/// An owner with an ended loan and content that a process still maps.
fn still_mapped() -> (Daemon, LendRequest, Mapping) {
    let daemon = daemon("max = 4", "");
    ready(&daemon, 2);
    let request = owned("guest", Duration::from_secs(60));
    let first: Loan = daemon.client().lend(&request).expect("a loan");
    let memory = first.map_alone().expect("a mapping");
    memory.fill(0..1, 7);
    drop(first);
    daemon.wait_for("draining", |pool| pool.draining_pages == Pages(1));
    (daemon, request, memory)
}

#[test]
fn an_owner_waits_for_its_former_self_and_finds_its_content() {
    let _alone = alone();
    let (daemon, request, memory) = still_mapped();
    let again = std::thread::scope(|scope| {
        let again = scope.spawn(|| daemon.client().lend(&request).expect("a loan"));
        std::thread::sleep(Duration::from_millis(200));
        drop(memory);
        again.join().expect("no panic")
    });
    assert!(again.is_kept(), "it was on its way");
    let mut byte = [0];
    again.map_alone().expect("a mapping").read(0, &mut byte);
    assert_eq!(byte, [7]);
}

#[test]
fn after_two_seconds_an_owner_has_new_memory() {
    let _alone = alone();
    let (daemon, request, memory) = still_mapped();
    let begun = Instant::now();
    let again = std::thread::scope(|scope| {
        // What others do meanwhile makes it wait no less.
        scope.spawn(|| {
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(300));
                drop(daemon.client().lend(&one_file(1)).expect("a loan"));
            }
        });
        daemon.client().lend(&request).expect("a loan")
    });
    let took = begun.elapsed();
    assert!(!again.is_kept(), "somebody has it mapped");
    assert!(
        (MIN_OWNER_WAIT_PERIOD..Duration::from_secs(10)).contains(&took),
        "it came after {took:?}"
    );
    drop(memory);
}

#[test]
fn content_is_kept_for_an_owner_and_the_configured_time() {
    let _alone = alone();
    let daemon = daemon("max = 2", "keep_seconds_max = 9");
    let refused = |request: &LendRequest| match refusal(daemon.client().lend(request)) {
        wire::Error::BadValue { field, reason, .. } => (field, reason),
        other => panic!("{other:?}"),
    };
    let nobody = LendRequest { owner: None, ..owned("x", Duration::from_secs(1)) };
    let (field, reason) = refused(&nobody);
    assert!(field == "keep_seconds" && reason.contains("needs an owner"), "{field}: {reason}");
    let (field, reason) = refused(&owned("x", Duration::from_secs(10)));
    assert!(field == "keep_seconds" && reason.contains("more than 9"), "{field}: {reason}");
    daemon.client().lend(&owned("x", Duration::from_secs(9))).expect("as long as it may be");
}

#[test]
fn content_stays_for_its_time_over_daemon_restarts() {
    let _alone = alone();
    let mut daemon = daemon("max = 2", "");
    ready(&daemon, 2);
    let [long, short] = [("long", 60), ("short", 1)]
        .map(|(owner, seconds)| owned(owner, Duration::from_secs(seconds)));
    for request in [&long, &short] {
        drop(daemon.client().lend(request).expect("a loan"));
    }
    daemon.wait_for("given up", |pool| {
        pool.kept_pages == Pages(1) && pool.draining_pages == Pages(0)
    });
    for again in [false, true] {
        if again {
            daemon.kill();
            daemon.launch();
        }
        assert!(daemon.client().lend(&long).expect("a loan").is_kept());
        daemon.wait_for("kept again", |pool| {
            pool.kept_pages == Pages(1) && pool.draining_pages == Pages(0)
        });
    }
    assert!(!daemon.client().lend(&short).expect("a loan").is_kept());
}
