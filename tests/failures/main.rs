// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every system call of the daemon's fails once.
//!
//! The daemon's life (start, fill, lend, return, keep, reload, give back, stop) is lived under
//! strace(1), which has the k-th call of one kind fail in each of its threads and workers. After
//! each failure a second daemon starts and serves. Every page is where the kernel's counters say it
//! should be, every file is known, borrowers have read only their own bytes, and where the failure
//! was felt, the log names it.
//!
//! `PREZERO_FAILURES` is how many of the failures are tried, as `PREZERO_TEST_SEED` picks them
//! (12 unless told otherwise), or `all`; `PREZERO_FAILURES_OF` are names of calls.

mod calls;
mod life;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use testkit::child::alone;

use calls::{FAILING, OTHERS};
use life::{Failure, Life, Outcome};

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Every call of a life, by which errors it can fail.
fn failures(life: &mut Life) -> Vec<Failure> {
    let counts = life.count_calls();
    let unknown = |name: &&String| {
        !OTHERS.contains(&name.as_str()) && !FAILING.iter().any(|(call, _)| call == name)
    };
    let unknown: Vec<_> = counts.keys().filter(unknown).collect();
    assert!(unknown.is_empty(), "how can these fail? calls.rs does not say: {unknown:?}");
    let mut failures = Vec::new();
    for (call, errors) in FAILING {
        for nth in 1..=counts.get(*call).copied().unwrap_or(0) {
            failures.extend(errors.iter().map(|error| Failure { call, error, nth }));
        }
    }
    failures
}

// Promise P171 (crashes): Any system call of the daemon may fail, by any error (out of
// descriptors, memory or space, interrupted, a bad medium). No page, no file and no byte is lost
// or leaked, the next daemon serves, and where a client felt it a line gives the cause.
#[test]
fn failing_system_call_loses_no_page_and_the_next_daemon_serves() {
    let _alone = alone();
    let Some(mut life) = Life::can_be().then(Life::new).flatten() else { return };
    let mut failures = failures(&mut life);
    if let Some(only) = variable("PREZERO_FAILURES_OF") {
        failures.retain(|failure| only.split(',').any(|name| name == failure.call));
    }
    let there = failures.len();
    let seed = variable("PREZERO_TEST_SEED").and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or(1);
    // Each by itself, so that the same are picked again where a life has some calls more or fewer.
    failures.sort_by_cached_key(|failure| {
        let mut hasher = DefaultHasher::new();
        (seed, failure.call, failure.error, failure.nth).hash(&mut hasher);
        hasher.finish()
    });
    let most = variable("PREZERO_FAILURES").unwrap_or_else(|| "12".to_owned());
    failures.truncate(most.parse().unwrap_or(there));
    eprintln!("{} of {there} failures; PREZERO_TEST_SEED={seed} repeats them", failures.len());
    let outcomes = live_with(&mut life, &failures);
    let felt = failures.len() < 12 || outcomes.keys().any(|outcome| *outcome != Outcome::Missed);
    assert!(felt, "no call failed at all: {outcomes:?}");
}

// Promise P214.
/// All answers with descriptors: a loan that did not get to its owner was its content for the next
/// daemon, each time.
#[test]
fn an_answer_that_cannot_be_sent_leaves_its_owner_no_zeros() {
    let _alone = alone();
    let Some(mut life) = Life::can_be().then(Life::new).flatten() else { return };
    let mut failures = failures(&mut life);
    failures.retain(|failure| (failure.call, failure.error) == ("sendmsg", "ENOBUFS"));
    let outcomes = live_with(&mut life, &failures);
    assert!(outcomes.contains_key(&Outcome::Felt), "nobody lacked an answer: {outcomes:?}");
}

/// What became of each failure; none of them does harm.
fn live_with(life: &mut Life, failures: &[Failure]) -> BTreeMap<Outcome, u32> {
    let (mut outcomes, mut harm) = (BTreeMap::new(), Vec::new());
    for (tried, failure) in failures.iter().enumerate() {
        if tried > 0 && tried % 250 == 0 {
            eprintln!("{tried}: {outcomes:?}, harm: {}", harm.len());
        }
        match life.live(*failure) {
            Ok(outcome) => *outcomes.entry(outcome).or_default() += 1,
            Err(what) => {
                eprintln!("{failure}: {what}");
                harm.push(format!("{failure}: {what}"));
            }
        }
    }
    eprintln!("{outcomes:?}, harm: {}", harm.len());
    assert!(harm.is_empty(), "{}", harm.join("\n"));
    outcomes
}
