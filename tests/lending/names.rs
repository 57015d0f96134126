// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans by name: made, found, refused and returned while others ask for the same.

use std::time::Instant;

use client::{LendRequest, LoanName};
use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::refused::refusal;
use units::{Bytes, Pages, Uid};
use wire::Error as Refused;

use super::*;

/// Enough that filling it takes a while.
const LARGE: u64 = 256;

fn named(name: &str) -> LoanName {
    name.parse().expect("a name")
}

fn whole(name: &str, pages: u64) -> LendRequest {
    LendRequest { whole: true, ..LendRequest::by_name(named(name), PAGE.times(pages)) }
}

fn names(daemon: &Daemon) -> Vec<String> {
    daemon.agent().loans("").expect("a list").into_iter().map(|loan| loan.name).collect()
}

#[test]
fn two_calls_for_one_name_make_one_loan() {
    let _alone = alone();
    let daemon = daemon("max = 300", "");
    let lend = || daemon.agent().lend(&whole("a/x", LARGE)).expect("a loan");
    let lent = std::thread::scope(|scope| {
        let both = [scope.spawn(lend), scope.spawn(lend)];
        both.map(|lent| lent.join().expect("no panic"))
    });
    let mut found = [lent[0].was_found(), lent[1].was_found()];
    found.sort_unstable();
    assert_eq!(found, [false, true], "{lent:?}");
    assert_eq!(
        lent[0].path().expect("a path").to_owned(),
        lent[1].path().expect("a path").to_owned()
    );
    assert_eq!(names(&daemon), ["a/x"]);
}

// Promise P270.
#[test]
fn a_loan_that_is_being_made_is_listed_and_a_return_ends_it() {
    let _alone = alone();
    let daemon = daemon("max = 300", "");
    std::thread::scope(|scope| {
        let lent = scope.spawn(|| daemon.agent().lend(&whole("a/x", LARGE)));
        let begun = Instant::now();
        let listed = loop {
            if let Some(loan) = daemon.agent().loans("a/").expect("a list").pop() {
                break loan;
            }
            assert!(begun.elapsed() < WAIT_TIMEOUT, "it was never made");
        };
        daemon.agent().return_loan(named("a/x"), false).expect("it is listed");
        match lent.join().expect("no panic") {
            Err(Error::Refused(Refused::Failed { what })) => {
                assert!(listed.pending && listed.path.is_empty(), "{listed:?}");
                assert!(what.contains("its name was returned"), "{what}");
            }
            // It was made before it was returned.
            Ok(lent) => assert!(lent.path().is_some()),
            Err(other) => panic!("{other}"),
        }
    });
    assert!(names(&daemon).is_empty());
    daemon.wait_for("returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
}

#[test]
fn a_name_is_one_loan_of_one_kind() {
    let _alone = alone();
    let daemon = daemon("max = 8", "");
    let mut agent = daemon.agent();
    let first = agent.lend(&whole("a/x", 2)).expect("a loan");
    assert!(!first.was_found() && !first.is_kept());
    assert_eq!(first.bytes(), PAGE.times(2));
    let again = agent.lend(&whole("a/x", 2)).expect("the same");
    assert_eq!(
        (again.was_found(), again.path().expect("a path")),
        (true, first.path().expect("a path"))
    );
    let other = whole("a/x", 2).given_to(Some(Uid(7)), None);
    for other in [whole("a/x", 1), other] {
        let refused = refusal(agent.lend(&other));
        assert!(matches!(refused, Refused::NameTaken { .. }), "{refused:?}");
    }
    agent.return_loan(named("a/x"), false).expect("its own");
    let refused = refusal(agent.return_loan(named("a/x"), false));
    assert!(matches!(refused, Refused::NoSuchName { .. }), "{refused:?}");
}

#[test]
fn unfillable_loan_is_refused_and_leaves_nothing() {
    let _alone = alone();
    let daemon = daemon("max = 8", "[agent]\nfill_max = \"4M\"\n");
    ready(&daemon, 1);
    let mut agent = daemon.agent();
    let reason = match refusal(agent.lend(&whole("a/x", 4))) {
        Refused::BadValue { field, reason, .. } if field == "whole" => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason.contains("agent.fill_max lets the daemon zero 4M"), "{reason}");
    assert!(names(&daemon).is_empty());
    daemon.wait_for("taken back", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
    // As much as it may is no more than it may.
    let lent = agent.lend(&whole("a/x", 2)).expect("two may be zeroed");
    let file = std::fs::metadata(lent.path().expect("a path")).expect("a file");
    let there = std::os::unix::fs::MetadataExt::blocks(&file) * 512;
    assert_eq!((file.len(), there), (4 << 20, 4 << 20), "all of it is there");
    let unbacked = LendRequest::by_name(named("a/y"), PAGE.times(4));
    let lent = agent.lend(&unbacked).expect("the borrower fills it");
    assert_eq!(std::fs::metadata(lent.path().expect("a path")).expect("a file").len(), 8 << 20);
    let supply = agent.supply().expect("what there is");
    assert_eq!(Bytes(supply[0].named_bytes.0), PAGE.times(6));
}

#[test]
fn owner_by_name_needs_a_scope_a_whole_loan_and_name_space() {
    let _alone = alone();
    let daemon = daemon("max = 8", "keep_seconds_max = 9");
    let mut agent = daemon.agent();
    let owned = |name: &str, owner: &str, seconds| LendRequest {
        owner: Some(owner.parse().expect("a name")),
        keep: Some(std::time::Duration::from_secs(seconds)),
        ..whole(name, 1)
    };
    let long = "o".repeat(64);
    let unbacked = LendRequest { whole: false, ..owned("a/x", "o", 9) };
    for (ask, field, says) in [
        (owned("x", "o", 9), "owner", "name the loan as SCOPE/REST"),
        (unbacked, "owner", "ask for the loan whole"),
        (owned("a/x", "o", 10), "keep_seconds", "more than 9"),
        (owned(&format!("a/{}", "x".repeat(60)), &long, 9), "owner", "characters, more than the"),
    ] {
        match refusal(agent.lend(&ask)) {
            Refused::BadValue { field: at, reason, .. } => {
                assert!(at == field && reason.contains(says), "{at}: {reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    let lent = agent.lend(&owned("a/x", "o", 9)).expect("all of it is as it may be");
    assert!(!lent.is_kept() && !lent.was_found(), "{lent:?}");
    agent.return_loan(named("a/x"), true).expect("its own");
    assert!(names(&daemon).is_empty());
}

#[test]
fn a_name_lasts_over_the_daemons_end_until_it_is_returned() {
    let _alone = alone();
    let mut daemon = daemon("max = 8", "");
    let lent = daemon.agent().lend(&whole("a/x", 2)).expect("a loan");
    let next = |daemon: &mut Daemon| {
        daemon.kill();
        daemon.launch();
        names(daemon)
    };
    assert_eq!(next(&mut daemon), ["a/x"]);
    let again = daemon.agent().lend(&whole("a/x", 2)).expect("the same");
    assert_eq!(
        (again.was_found(), again.path().expect("a path").to_owned()),
        (true, lent.path().expect("a path").to_owned())
    );
    daemon.agent().return_loan(named("a/x"), false).expect("its own");
    assert!(next(&mut daemon).is_empty());
    daemon.wait_for("returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
}
