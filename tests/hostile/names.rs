// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans by name with an agent that hangs up, or a tenant that delays them. Over plain memory,
//! which has room for loans that take a second.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use client::LendRequest;
use prezero_tests::Daemon;
use prezero_tests::daemon::WAIT_TIMEOUT;
use serde_json::{Value, json};
use testkit::child::alone;
use units::{Bytes, Pages};

use crate::scene::{call, error_of, message};
use crate::socket::receive;

/// The pages are small, so that there are many: each is a call, after which the daemon may stop.
const PAGE: u64 = 4 << 10;
/// 4 GiB, which takes seconds. Every test ends before.
const LARGE: u64 = 1 << 20;
/// What takes a fraction of a second.
const SMALL: u64 = 4 << 10;

fn daemon(pages: u64) -> Daemon {
    let pool = format!("[[pool]]\npage_size = \"4K\"\nmax = {pages}\nready_high = 0\n");
    Daemon::start_with(None, &format!("{pool}[workers]\nmax = 0\n"), &["--plain"])
}

fn connect(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(daemon.agent_socket()).expect("root may");
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a timeout");
    stream
}

fn whole(name: &str, pages: u64) -> Value {
    json!({ "name": name, "bytes": pages * PAGE, "whole": true })
}

/// A connection with a loan in the making.
fn begun(daemon: &Daemon, name: &str) -> UnixStream {
    let mut stream = connect(daemon);
    stream.write_all(&message("Lend", &whole(name, LARGE))).expect("it listens");
    let end = Instant::now() + WAIT_TIMEOUT;
    loop {
        let listed = daemon.agent().loans(name).expect("a list");
        if let [loan] = &listed[..] {
            assert!(loan.pending, "a loan is listed before it is made");
            assert_eq!(loan.path, "", "nobody gets the path of a file that is not ready");
            return stream;
        }
        assert!(Instant::now() < end, "a loan that is being made is listed: {listed:?}");
    }
}

// Promise P270 (names): A loan that is being made is listed as pending and has no path. It ends
// within a page when its agent hangs up or its name is returned.
#[test]
fn an_agent_that_goes_amid_a_loan_leaves_none() {
    let _alone = alone();
    let daemon = daemon(2 * LARGE);
    for round in 0..3 {
        let name = format!("team/claim.{round}");
        let stream = begun(&daemon, &name);
        // What it sent ahead of that is not waited for either.
        if round == 1 {
            (&stream).write_all(&message("agent.ListLoans", &json!({}))).expect("room");
        }
        drop(stream);
        let gone = Instant::now();
        while !daemon.agent().loans("").expect("a list").is_empty() {
            assert!(
                gone.elapsed() < Duration::from_secs(2),
                "the loan of round {round} is made to its end"
            );
        }
        daemon.wait_for("given back", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
        // It stays absent later, and its name is free.
        std::thread::sleep(Duration::from_millis(500));
        assert!(daemon.agent().loans("").expect("a list").is_empty());
        let mut next = connect(&daemon);
        let answer = call(&mut next, "Lend", &whole(&name, 1));
        assert!(error_of(&answer).starts_with("granted"), "{answer:?}");
        daemon.agent().return_loan(name.parse().expect("a name"), false).expect("it is lent");
    }
}

// Promise P270.
#[test]
fn an_agent_that_has_said_all_and_reads_gets_its_loan() {
    let _alone = alone();
    let daemon = daemon(SMALL);
    let mut stream = connect(&daemon);
    stream.write_all(&message("Lend", &whole("team/x", SMALL))).expect("it listens");
    stream.shutdown(Shutdown::Write).expect("it is connected");
    drop(receive(&stream));
    let loans = daemon.agent().loans("").expect("a list");
    assert!(matches!(&loans[..], [loan] if !loan.pending), "{loans:?}");
}

// Promise P271 (names): A tenant with loans that wait for what it holds open delays no loan of
// another tenant.
#[test]
fn tenant_with_waiting_loans_delays_no_other_tenant() {
    const LOANS: usize = 8;
    let _alone = alone();
    let daemon = daemon(SMALL);
    let owned = |nth: usize| LendRequest {
        whole: true,
        owner: Some(format!("o{nth}").parse().expect("a name")),
        keep: Some(Duration::from_secs(600)),
        ..LendRequest::by_name(format!("foe/{nth}").parse().expect("a name"), Bytes(PAGE))
    };
    let kept: Vec<_> = (0..LOANS)
        .map(|nth| {
            let lent = daemon.agent().lend(&owned(nth)).expect("a loan");
            let file = std::fs::File::open(lent.path().expect("a path")).expect("root may");
            daemon
                .agent()
                .return_loan(owned(nth).name().expect("a name").clone(), false)
                .expect("it is lent");
            file
        })
        .collect();
    let took = std::thread::scope(|scope| {
        let foes: Vec<_> = (0..LOANS)
            .map(|nth| {
                let daemon = &daemon;
                let request = owned(nth);
                scope.spawn(move || {
                    let begun = Instant::now();
                    daemon.agent().lend(&request).expect("other memory");
                    begun.elapsed()
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        let victims = LendRequest::by_name("victim/x".parse().expect("a name"), Bytes(PAGE));
        daemon.agent().lend(&victims).expect("a loan");
        let took = begun.elapsed();
        assert!(foes.iter().any(|foe| !foe.is_finished()), "nobody waited beside it");
        for foe in foes {
            let foe = foe.join().expect("no panic");
            assert!(foe < Duration::from_secs(5), "each waits for itself: {foe:?}");
        }
        took
    });
    assert!(took < Duration::from_secs(1), "it waited for another tenant's: {took:?}");
    drop(kept);
}
