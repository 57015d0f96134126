// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Long or many answers: only their caller waits for them.

use std::io::{Read, Write};
use std::time::Duration;

use client::{Client, LendRequest};
use prezero_tests::{Daemon, Page};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use crate::attack::{Attack, POOL, WORKERS};
use crate::quota::NOTHING;
use crate::scene::{Got, Scene, message};
use crate::socket::{as_many_as_can_be, crowd};
use crate::stage::Stage;
use crate::users::User;
use crate::victim::{Clock, Victim};

/// Blocks of a page each in one loan.
const PARTS: u64 = 500;

/// One loan of as many blocks as there are, again and again.
fn lend_in_many_parts(scene: &mut Scene<'_>) -> Got {
    as_many_as_can_be();
    let mut request = LendRequest::new(Page::Mib2.times(PARTS));
    request.most_blocks = Some(1024);
    let mut client = scene.client();
    let mut most = 0;
    scene.set_up();
    while !scene.over() {
        match client.lend(&request) {
            Ok(loan) => most = most.max(loan.parts().len()),
            // What it has returned is on its way.
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    if most < 100 {
        return Err(format!("only {most} parts: nothing was tried"));
    }
    Ok("a loan of hundreds of blocks".to_owned())
}

/// Root that searches for the holders of the blocks.
const FIND: Victim = Victim { what: "FindHolders", user: User::Root, act: find };

fn find(daemon: &Daemon) -> Result<Duration, String> {
    let clock = Clock::start(daemon);
    let found = Client::connect(daemon.socket()).and_then(|mut client| client.find_holders(None));
    let took = clock.stop();
    found.map_err(|error| format!("FindHolders: {error}"))?;
    // A search of all processes takes what it takes; what counts is that others do not wait.
    Ok(took.min(Duration::from_millis(1)))
}

/// Loans that make every report long which has a line for each.
fn many_loans(scene: &mut Scene<'_>) -> Got {
    as_many_as_can_be();
    let mut client = scene.client();
    let mut held = Vec::new();
    while (held.len() as u64) < PARTS {
        match client.lend(&LendRequest::new(Page::Mib2.times(1))) {
            Ok(loan) => held.push(loan),
            Err(error) => return Err(format!("after {} loans: {error}", held.len())),
        }
    }
    scene.set_up();
    scene.wait();
    Ok(format!("{} loans", held.len()))
}

// Promise P163 (socket): An answer of many entries is written once, whichever it is: of loans,
// blocks, names or holders.
#[test]
fn long_answers_delay_only_their_caller() {
    let ready = "max = 600\nready_low = 560\nready_high = 600\n";
    let pool = POOL.replace("max = 8\nready_low = 6\nready_high = 8\n", ready);
    let Some(mut stage) = Stage::set(640, &format!("{pool}{WORKERS}")) else { return };
    Attack::new("loans of 500 blocks", User::Borrower, lend_in_many_parts)
        .also(NOTHING)
        .windows_of(Duration::from_secs(1))
        .run(&mut stage);
    Attack::new("500 loans, and root that looks for their holders", User::Borrower, many_loans)
        .only(NOTHING)
        .also(FIND)
        .windows_of(Duration::from_secs(1))
        .run(&mut stage);
}

/// Watches of everything, each read as soon as there is news.
fn watch_and_read(scene: &mut Scene<'_>) -> Got {
    let crowd = crowd(scene, 1000);
    let asked = json!({
        "method": "io.prezero.Watch", "parameters": { "interval_ms": 0 }, "more": true,
    });
    let asked = [asked.to_string().as_bytes(), &[0]].concat();
    for mut stream in &crowd {
        stream.write_all(&asked).expect("a short call");
        stream.set_nonblocking(true).expect("a socket");
    }
    scene.set_up();
    let (mut reports, mut piece) = (0_usize, vec![0; 1 << 16]);
    while !scene.over() {
        let mut fds: Vec<_> =
            crowd.iter().map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
        let soon = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        let _ = poll(&mut fds, Some(&soon));
        for mut stream in &crowd {
            while let Ok(read @ 1..) = stream.read(&mut piece) {
                reports += piece[..read].iter().filter(|byte| **byte == 0).count();
            }
        }
    }
    Ok(if reports > crowd.len() { "its reports" } else { "a report each" }.to_owned())
}

pub(crate) fn watches_of_one_user_delay_no_other_user(stage: &mut Stage) {
    Attack::new("1000 watches that are read", User::Borrower, watch_and_read)
        .windows_of(Duration::from_millis(500))
        .run(stage);
}

/// Watches with odd times and invalid names.
fn watch_oddly(scene: &mut Scene<'_>) -> Got {
    let odd = [
        json!({ "interval_ms": u64::MAX }),
        json!({ "interval_ms": u64::MAX / 1000 }),
        json!({ "below": u64::MAX, "interval_ms": 0 }),
        json!({ "node": u32::MAX }),
        json!({ "page_bytes": 3 }),
        json!({ "page_bytes": u64::MAX }),
        json!({ "page_bytes": 1_u64 << 63 }),
    ];
    scene.set_up();
    let mut held = Vec::new();
    for parameters in odd {
        for more in [true, false] {
            let mut stream = scene.socket().expect("everybody may connect");
            let mut call: serde_json::Value =
                json!({ "method": "io.prezero.Watch", "parameters": parameters });
            if more {
                call["more"] = json!(true);
            }
            let mut bytes = call.to_string().into_bytes();
            bytes.push(0);
            // The second call comes while the first is answered for ever.
            bytes.extend(message("GetStatus", &json!({})));
            let _ = stream.write_all(&bytes);
            held.push(stream);
        }
    }
    scene.wait();
    Ok("nothing, BadValue".to_owned())
}

pub(crate) fn odd_watches_delay_no_user(stage: &mut Stage) {
    Attack::new("watches with odd times", User::Borrower, watch_oddly).run(stage);
}
