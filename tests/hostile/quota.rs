// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A user that wants more than its quota.

use std::io::{Read, Write};
use std::time::Duration;

use client::{Client, Error, LendRequest};
use prezero_tests::Page;
use serde_json::{Value, json};
use units::{Pages, Uid};

use crate::attack::{Attack, POOL, WORKERS};
use crate::scene::{Got, Scene, call, error_of, message};
use crate::socket::as_many_as_can_be;
use crate::stage::Stage;
use crate::users::User;
use crate::victim::{Clock, Victim};

/// Two pages for the attacker, of 16.
fn two_pages() -> String {
    format!("quota_of = {{ {} = \"4M\" }}\n{POOL}{WORKERS}", User::Borrower.number())
}

/// Pages lent to the attackers, as root sees them.
fn lent_to(daemon: &prezero_tests::Daemon, user: User) -> u64 {
    let loans = daemon.status().loans;
    loans.iter().filter(|loan| loan.uid == Uid(user.number())).map(|loan| loan.pages.0).sum()
}

/// Many calls at once, of every kind: in one piece, without waiting, held by memory, for owners.
fn all_at_once(scene: &mut Scene<'_>) -> Got {
    let page = 2_u64 << 20;
    let mut held = Vec::new();
    scene.set_up();
    let mut granted = 0;
    while !scene.over() {
        let kinds: [Value; 5] = [
            json!({ "bytes": page }),
            json!({ "bytes": page, "single": true }),
            json!({ "bytes": page, "held_by_memory": true }),
            json!({ "bytes": page, "owner": "q", "keep_seconds": 0 }),
            json!({ "bytes": 2 * page }),
        ];
        let round = held.len() % kinds.len();
        let Ok(stream) = scene.socket() else { break };
        let mut call: Value = json!({
            "method": "io.prezero.Lend", "parameters": kinds[round].clone(),
        });
        for (flag, every) in [("oneway", 7), ("more", 5)] {
            if held.len() % every == 0 {
                call[flag] = json!(true);
            }
        }
        let mut bytes = call.to_string().into_bytes();
        bytes.push(0);
        let _ = (&stream).write_all(&bytes.repeat(4));
        held.push(stream);
        if held.len() >= 32 {
            for stream in held.drain(..) {
                stream.set_nonblocking(true).expect("a socket");
                let mut answer = vec![0; 1 << 16];
                let read = (&stream).read(&mut answer).unwrap_or(0);
                granted += String::from_utf8_lossy(&answer[..read]).matches("lease_fd").count();
            }
        }
    }
    Ok(if granted > 0 { "QuotaExceeded beyond it" } else { "QuotaExceeded" }.to_owned())
}

/// Times that add up to more than there is.
fn keep_for_ever(scene: &mut Scene<'_>) -> Got {
    scene.set_up();
    let mut got = Vec::new();
    for seconds in [u64::MAX, u64::MAX - 1, 1 << 62, i64::MAX.cast_unsigned()] {
        let mut stream = scene.socket().expect("everybody may connect");
        let asked = json!({ "bytes": 2 << 20, "owner": "ever", "keep_seconds": seconds });
        let error = error_of(&call(&mut stream, "Lend", &asked));
        got.push(if error.starts_with("granted") { "granted".to_owned() } else { error });
        drop(stream);
        // Given back, so that the end finds it empty.
        let last = json!({ "bytes": 2 << 20, "owner": "ever", "keep_seconds": 0 });
        let mut stream = scene.socket().expect("everybody may connect");
        let _ = call(&mut stream, "Lend", &last);
    }
    scene.wait();
    got.dedup();
    Ok(format!("keep_seconds = 2^64-1: {}", got.join(", ")))
}

#[test]
fn many_calls_and_endless_kept_content_stay_within_the_quota() {
    let act = |daemon: &prezero_tests::Daemon| {
        let lent = lent_to(daemon, User::Borrower);
        if lent > 2 {
            return Err(format!("{lent} pages are lent with a quota of 2"));
        }
        Ok(Duration::ZERO)
    };
    let count = Victim { what: "count", user: User::Root, act };
    let Some(mut stage) = Stage::set(24, &two_pages()) else { return };
    Attack::new("32 calls at once beyond a quota", User::Borrower, all_at_once)
        .attackers(3)
        .also(count)
        .run(&mut stage);
    Attack::new("keep_seconds without bound", User::Borrower, keep_for_ever).run(&mut stage);
}

/// Calls with numbers that do not fit anywhere.
fn numbers(scene: &mut Scene<'_>) -> Got {
    scene.set_up();
    let mut got = Vec::new();
    let huge = [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - (2 << 20), 1 << 50, 0, 1];
    for bytes in huge {
        for parameters in [
            json!({ "bytes": bytes }),
            json!({ "bytes": bytes & !0x1f_ffff, "single": true, "node": 0 }),
            json!({ "bytes": 2 << 20, "page_bytes": bytes }),
            json!({ "bytes": 2 << 20, "node": bytes | 64 }),
        ] {
            let mut stream = scene.socket().expect("everybody may connect");
            let error = error_of(&call(&mut stream, "Lend", &parameters));
            if error.starts_with("granted") {
                return Err(format!("{parameters}: {error}"));
            }
            got.push(error);
        }
    }
    // Meaningless values.
    let mut stream = scene.socket().expect("everybody may connect");
    let _ = stream.write_all(&message("Lend", &json!({ "bytes": -1.5e308 })));
    scene.wait();
    got.sort_unstable();
    got.dedup();
    Ok(got.join(", "))
}

pub(crate) fn numbers_without_bound_are_refused(stage: &mut Stage) {
    Attack::new("sizes up to 2^64", User::Borrower, numbers).run(stage);
}

/// An empty call.
pub(crate) const NOTHING: Victim =
    Victim { what: "Release of nothing", user: User::Root, act: give_nothing };

fn give_nothing(daemon: &prezero_tests::Daemon) -> Result<Duration, String> {
    let clock = Clock::start(daemon);
    let given = Client::connect(daemon.socket())
        .and_then(|mut client| client.release(None, None, Some(Pages(0))));
    let took = clock.stop();
    given.map(|_| took).map_err(|error| format!("Release: {error}"))
}

/// Loans of unmapped unbacked parts: each is a file, a lease and a descriptor of the daemon's.
fn loans_of_nothing(scene: &mut Scene<'_>) -> Got {
    const WANTED: usize = 2000;
    as_many_as_can_be();
    let mut client = scene.client();
    let mut held = Vec::new();
    let mut refused = None;
    while held.len() < WANTED && refused.is_none() {
        match client.lend(&LendRequest::new(Page::Mib2.times(1))) {
            Ok(loan) => held.push(loan),
            Err(Error::Refused(error)) => refused = Some(error.to_string()),
            Err(error) => return Err(format!("after {} loans: {error}", held.len())),
        }
    }
    scene.set_up();
    // A report of them is 100 kB, which the daemon has to write.
    while !scene.over() {
        client.status().map_err(|error| format!("GetStatus: {error}"))?;
    }
    match (held.len(), refused) {
        (held, Some(refused)) if held < WANTED => {
            let why = refused.split(':').next().unwrap_or_default();
            Ok(format!("{held} loans, then {why}"))
        }
        (held, _) => Err(format!("{held} loans of a page each on a machine that has 16")),
    }
}

// Promise P119 (socket): A status report costs the daemon what it is long, however many loans
// there are.
#[test]
fn unmapped_loans_are_bounded() {
    let Some(mut stage) = Stage::set(640, &format!("{POOL}{WORKERS}")) else { return };
    Attack::new("loans of unbacked parts", User::Borrower, loans_of_nothing)
        .only(NOTHING)
        .run(&mut stage);
}
