// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agents' socket, and what only some may call: revoke, holders, drain, configure.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use units::Uid;

use client::{Client, LendRequest};
use prezero_tests::{Daemon, Page};
use serde_json::{Value, json};

use crate::attack::{Attack, POOL, WORKERS};
use crate::scene::{Got, Scene, call, error_of, message};
use crate::socket::{MAX_FDS, as_many_as_can_be, ask_and_never_read, send_descriptors};
use crate::stage::Stage;
use crate::users::{AGENT_GROUP, User};
use crate::victim::{Clock, Victim};

fn knock(scene: &Scene<'_>) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(scene.daemon.agent_socket())?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    Ok(stream)
}

/// One call on a connection of its own, down to the name of its error.
fn ask(scene: &Scene<'_>, method: &str, parameters: &Value) -> String {
    match knock(scene) {
        Ok(mut stream) => error_of(&call(&mut stream, method, parameters)),
        Err(error) => format!("{:?}", error.kind()),
    }
}

fn name(text: &str, uid: User) -> LendRequest {
    let request = LendRequest::by_name(text.parse().expect("a name"), Page::Mib2.times(1));
    request.given_to(Some(Uid(uid.number())), None)
}

/// An agent that lends to a container, and takes it back.
fn lend_and_return(daemon: &Daemon) -> Result<Duration, String> {
    let request = name(&format!("victim/{}", std::process::id()), User::Victim);
    let clock = Clock::start(daemon);
    let done = Client::connect(daemon.agent_socket()).and_then(|mut agent| {
        agent.lend(&request)?;
        agent.return_loan(request.name().expect("a name").clone(), false)
    });
    let took = clock.stop();
    done.map(|()| took).map_err(|error| format!("lend and return by name: {error}"))
}

/// Root's agent.
const ROOTS: Victim = Victim { what: "root's agent", user: User::Root, act: lend_and_return };
/// Another agent of the group.
const DRIVER: Victim = Victim { what: "another agent", user: User::Driver, act: lend_and_return };

fn config(pages: u64) -> String {
    let pool = POOL.replace("max = 8", &format!("max = {pages}"));
    format!("{pool}{WORKERS}[agent]\ngroup = \"{AGENT_GROUP}\"\nquota_of = {{ team = \"4M\" }}\n")
}

/// Invalid names, unknown users, absent sizes.
fn ask_oddly(scene: &mut Scene<'_>) -> Got {
    let page = 2_u64 << 20;
    let long = "n".repeat(119);
    let names = [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        "../../ready/b1-n0-p1",
        "a/../b",
        "-a",
        ".",
        "a b",
        "a\0b",
        "a\nb",
        "%2e%2e",
        "a+b",
        "\u{e9}",
        "e\u{301}",
        "\u{202e}gnp",
        "a\\b",
        &long,
    ];
    let calls = names.iter().flat_map(|odd| {
        [
            ("Lend", json!({ "name": odd, "bytes": page })),
            ("agent.Return", json!({ "name": odd })),
            ("agent.ListLoans", json!({ "after": odd })),
        ]
    });
    let numbers = [
        json!({ "name": "n", "bytes": page, "uid": u32::MAX }),
        json!({ "name": "n", "bytes": page, "gid": u32::MAX }),
        json!({ "name": "n", "bytes": u64::MAX }),
        json!({ "name": "n", "bytes": !(page - 1), "whole": true }),
        json!({ "name": "n", "bytes": 0 }),
        json!({ "name": "n", "bytes": 1 }),
        json!({ "name": "n", "bytes": page, "page_bytes": 3 }),
        json!({ "name": "n", "bytes": page, "node": u32::MAX }),
    ];
    scene.set_up();
    let mut got = Vec::new();
    let numbers = numbers.into_iter().map(|odd| ("Lend", odd));
    for (method, parameters) in calls.chain(numbers) {
        let error = ask(scene, method, &parameters);
        if error.starts_with("granted") {
            return Err(format!("{method} {parameters}: {error}"));
        }
        got.push(error);
    }
    // Calls of the other interface are unknown here.
    for method in ["GetStatus", "Revoke", "FindHolders", "Drain", "Configure"] {
        let error = ask(scene, method, &json!({ "lease": 1, "on": true }));
        if error.starts_with("granted") {
            return Err(format!("{method} on the agents' socket: {error}"));
        }
    }
    scene.wait();
    got.sort_unstable();
    got.dedup();
    Ok(got.join(", "))
}

/// Names that look alike are loans of their own, and no scope's quota is another's.
fn confuse_names(scene: &mut Scene<'_>) -> Got {
    let fail = |error: client::Error| error.to_string();
    let mut agent = Client::connect(scene.daemon.agent_socket()).map_err(fail)?;
    scene.set_up();
    let alike = ["a", "a/b", "a.b", "A/b", "a/b/c", "a-b", "a_b", "a/B"];
    let mut paths = Vec::new();
    for one in alike {
        let loan = agent.lend(&name(one, User::Victim)).map_err(fail)?;
        paths.push(loan.path().expect("a loan by name").to_owned());
    }
    paths.sort_unstable();
    paths.dedup();
    if paths.len() < alike.len() {
        return Err(format!("{} names, but {} files", alike.len(), paths.len()));
    }
    // The same name for another user would be that user's memory.
    let taken = agent.lend(&name("a/b", User::Borrower));
    if let Ok(lent) = taken {
        return Err(format!("a name of another user's loan was granted: {lent:?}"));
    }
    for one in alike {
        agent.return_loan(one.parse().expect("a name"), false).map_err(fail)?;
        if agent.return_loan(one.parse().expect("a name"), false).is_ok() {
            return Err(format!("{one} was returned twice"));
        }
    }
    scene.wait();
    Ok("NameTaken, NoSuchName".to_owned())
}

/// As many names of one scope at once as it can.
fn exceed_a_scope(scene: &mut Scene<'_>) -> Got {
    scene.set_up();
    let own = std::process::id();
    let mut round = 0;
    while !scene.over() {
        // All of them on their way before the first is answered.
        let mut crowd = Vec::new();
        for number in 0..4 {
            let Ok(mut stream) = knock(scene) else { continue };
            let name = format!("team/{own}.{round}.{number}");
            let asked = json!({ "name": name, "bytes": 2 << 20 });
            let _ = stream.write_all(&message("Lend", &asked));
            crowd.push(stream);
        }
        for stream in &crowd {
            let _ = crate::socket::receive(stream);
        }
        // Its own connections may have left no place for another of its own.
        drop(crowd);
        let begun = Instant::now();
        for number in 0..4 {
            let name = format!("team/{own}.{round}.{number}");
            let asked = json!({ "name": name });
            while !matches!(
                ask(scene, "agent.Return", &asked).as_str(),
                "granted {}" | "granted null" | "NoSuchName"
            ) {
                if begun.elapsed() > Duration::from_secs(5) {
                    return Err(format!("{name} is not to be returned"));
                }
            }
        }
        round += 1;
    }
    Ok("QuotaExceeded beyond it".to_owned())
}

fn scene_agent(scene: &Scene<'_>) -> Result<Client, String> {
    Client::connect(scene.daemon.agent_socket()).map_err(|error| error.to_string())
}

/// What the scope holds, as root's agent sees it.
fn count_scope(daemon: &Daemon) -> Result<Duration, String> {
    let loans = Client::connect(daemon.agent_socket()).and_then(|mut a| a.loans("team/"));
    let loans = loans.map_err(|error| error.to_string())?;
    let bytes: u64 = loans.iter().map(|loan| loan.bytes.0).sum();
    if bytes > 4 << 20 {
        return Err(format!("{bytes} bytes are lent to a scope with a quota of 4M"));
    }
    Ok(Duration::ZERO)
}

/// Silent connections.
fn idle_agents(scene: &mut Scene<'_>) -> Got {
    let crowd: Vec<_> = (0..200).filter_map(|_| knock(scene).ok()).collect();
    scene.set_up();
    scene.wait();
    Ok(format!("{} connections, those too many hung up on", crowd.len()))
}

/// Halves of messages with as many descriptors as there may be.
fn half_agents(scene: &mut Scene<'_>) -> Got {
    as_many_as_can_be();
    let null = std::fs::File::open("/dev/null").expect("there is one");
    let fds = vec![std::os::fd::AsFd::as_fd(&null); MAX_FDS];
    scene.set_up();
    while !scene.over() {
        let crowd: Vec<_> = (0..12).filter_map(|_| knock(scene).ok()).collect();
        for mut stream in &crowd {
            for _ in 0..50 {
                if send_descriptors(stream, b"[", &fds).is_err() {
                    break;
                }
            }
            let _ = stream.write_all(&vec![b'['; 5000]);
        }
    }
    Ok("its descriptors closed, hung up on".to_owned())
}

/// Endless lists and supplies, left unread.
fn deaf_agents(scene: &mut Scene<'_>) -> Got {
    let crowd: Vec<_> = (0..12).filter_map(|_| knock(scene).ok()).collect();
    let list = message("agent.ListLoans", &json!({}));
    let asked = [list, message("agent.GetSupply", &json!({}))].concat().repeat(300);
    Ok(ask_and_never_read(scene, &crowd, &asked))
}

/// The longest lists that there are, read as fast as they come.
fn list_for_ever(scene: &mut Scene<'_>) -> Got {
    const LOANS: usize = 270;
    let mut agent = scene_agent(scene)?;
    let names: Vec<_> = (0..LOANS).map(|n| format!("list/{n}-{}", "x".repeat(90))).collect();
    for one in &names {
        let lent = agent.lend(&name(one, User::Victim));
        lent.map_err(|error| format!("{one}: {error}"))?;
    }
    let mut stream = knock(scene).map_err(|error| error.to_string())?;
    scene.set_up();
    while !scene.over() {
        let listed = call(&mut stream, "agent.ListLoans", &json!({}))?;
        let listed = listed["parameters"]["loans"].as_array().map_or(0, Vec::len);
        if listed != 256 {
            return Err(format!("{listed} loans in a list of {LOANS}"));
        }
    }
    for one in &names {
        agent
            .return_loan(one.parse().expect("a name"), false)
            .map_err(|error| error.to_string())?;
    }
    Ok("256 loans a list".to_owned())
}

// Promise P163.
// Promise P164 (names): One agent, by any message, leaves others of its group and root their
// places, and gets no user a file that is not lent.
#[test]
fn agents_get_errors_delay_no_user_and_leave_nothing() {
    let Some(mut stage) = Stage::set(320, &config(300)) else { return };
    let stage = &mut stage;
    for user in [User::Stranger, User::Borrower, User::Zeroer] {
        let name = format!("the agents' socket by a {}", user.name());
        let knock = |scene: &mut Scene<'_>| {
            scene.set_up();
            let error = ask(scene, "agent.ListLoans", &json!({}));
            scene.wait();
            if error == "PermissionDenied" { Ok("EACCES".to_owned()) } else { Err(error) }
        };
        Attack::new(name, user, knock).run(stage);
    }
    let run = |stage: &mut Stage, name: &str, act: fn(&mut Scene<'_>) -> Got| {
        Attack::new(name, User::Agent, act).also(ROOTS).also(DRIVER).run(stage);
    };
    run(stage, "odd names, users and sizes of an agent", ask_oddly);
    run(stage, "names that look alike", confuse_names);
    let count = Victim { what: "count", user: User::Root, act: count_scope };
    Attack::new("an agent beyond a scope's quota", User::Agent, exceed_a_scope)
        .attackers(3)
        .also(count)
        .also(DRIVER)
        .run(stage);
    run(stage, "200 idle connections of an agent", idle_agents);
    run(stage, "descriptors in an agent's unfinished messages", half_agents);
    run(stage, "deaf pipelining connections of an agent", deaf_agents);
    run(stage, "the longest lists of an agent", list_for_ever);
}

/// Calls for root alone, and calls for the zeroing group as well.
fn call_what_is_others(scene: &mut Scene<'_>, may_drain: bool) -> Got {
    let pool = json!({ "node": 0, "page_bytes": 2 << 20, "pages_per_block": 3, "ready_high": 6 });
    let mut calls = vec![
        ("FindHolders", json!({})),
        ("FindHolders", json!({ "lease": 1 })),
        ("Revoke", json!({ "lease": 1 })),
        ("Revoke", json!({ "lease": u64::MAX })),
        ("Configure", json!({ "change": pool })),
    ];
    if !may_drain {
        calls.extend([("Drain", json!({ "on": true })), ("Drain", json!({ "on": false }))]);
        calls.push(("Release", json!({})));
    }
    scene.set_up();
    let mut got = Vec::new();
    while !scene.over() || got.is_empty() {
        for (method, parameters) in &calls {
            let mut stream = scene.socket().expect("everybody may connect");
            let error = error_of(&call(&mut stream, method, parameters));
            if error != "NotPermitted" {
                return Err(format!("{method} {parameters}: {error}"));
            }
            got.push(error);
        }
    }
    got.dedup();
    Ok(got.join(", "))
}

pub(crate) fn root_only_calls_are_refused_to_others(stage: &mut Stage) {
    for user in [User::Stranger, User::Borrower, User::Zeroer] {
        let name = format!("revoke, holders, drain, new pools by a {}", user.name());
        let act = |scene: &mut Scene<'_>| call_what_is_others(scene, user == User::Zeroer);
        Attack::new(name, user, act).run(stage);
    }
}

/// Numbers that do not fit anywhere, in what the zeroing group may call, and pools without end.
fn configure_oddly(scene: &mut Scene<'_>) -> Got {
    let huge = [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 50, 3, 1, 0];
    let mut changes = Vec::new();
    for odd in huge {
        for (node, page, block) in [(0, 2 << 20, odd), (0, odd, 1), (odd & 0xffff_ffff, 2 << 20, 1)]
        {
            if (node, page, block) == (0, 2 << 20, 1) {
                continue;
            }
            changes.push(json!({
                "node": node, "page_bytes": page, "pages_per_block": block, "ready_high": 1,
            }));
        }
    }
    let many =
        (2..600).map(|block| json!({ "node": 0, "page_bytes": 2 << 20, "pages_per_block": block }));
    scene.set_up();
    let mut stream = scene.socket().expect("everybody may connect");
    for change in changes.into_iter().chain(many) {
        let error = error_of(&call(&mut stream, "Configure", &json!({ "change": change })));
        if error.starts_with("granted") {
            return Err(format!("a pool of a member of the zeroing group: {change}"));
        }
    }
    for (method, parameters) in [
        ("Release", json!({ "node": u32::MAX, "pages": u64::MAX })),
        ("Release", json!({ "page_bytes": 3 })),
        ("TakeZeroing", json!({ "node": u32::MAX, "page_bytes": u64::MAX })),
        ("FinishZeroing", json!({ "job": u64::MAX, "pages_done": u64::MAX })),
    ] {
        let _ = call(&mut stream, method, &parameters);
    }
    // Thresholds are its to set; as it does, so it undoes.
    let own = |low: u64, high: u64, leave: u64| {
        json!({ "change": { "node": 0, "page_bytes": 2 << 20, "pages_per_block": 1,
                            "ready_low": low, "ready_high": high, "leave_free": leave } })
    };
    for (low, high, leave) in [(u64::MAX, u64::MAX, 0), (8, 8, u64::MAX), (6, 8, 0)] {
        let _ = call(&mut stream, "Configure", &own(low, high, leave));
    }
    scene.wait();
    Ok("NotPermitted, BadValue".to_owned())
}

pub(crate) fn pools_and_numbers_without_bound_are_refused(stage: &mut Stage) {
    Attack::new("pools and thresholds without bound", User::Zeroer, configure_oddly).run(stage);
}

/// On and off, as fast as it is answered.
fn drain_and_fill(scene: &mut Scene<'_>) -> Got {
    let mut client = scene.client();
    scene.set_up();
    let mut last = Ok(());
    while !scene.over() {
        for on in [true, false] {
            last = client.drain(on).map(|_| ());
        }
    }
    last.map(|()| "what is ready given back".to_owned()).map_err(|error| error.to_string())
}

pub(crate) fn switching_drain_on_and_off_costs_no_loan(stage: &mut Stage) {
    Attack::new("draining on and off", User::Zeroer, drain_and_fill).run(stage);
}
