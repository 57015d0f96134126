// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket against every peer: half messages, wrong descriptors, crowds.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use client::LendRequest;
use prezero_tests::{Daemon, Page};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};
use units::Pages;
use wire::LoanStatus;

fn connect(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(daemon.socket()).expect("the daemon listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    stream
}

fn call(stream: &mut UnixStream, method: &str, parameters: &Value) -> Value {
    let mut message = match parameters {
        Value::Null => json!({ "method": method }),
        _ => json!({ "method": method, "parameters": parameters }),
    }
    .to_string()
    .into_bytes();
    message.push(0);
    stream.write_all(&message).expect("the daemon reads");
    let mut reply = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).expect("the daemon answers") == 1 && byte[0] != 0 {
        reply.push(byte[0]);
    }
    serde_json::from_slice(&reply).unwrap_or_else(|e| panic!("{method} {parameters}: {e}"))
}

fn small(page: Page) -> Option<Daemon> {
    let daemon = Daemon::start(page, 2, &page.pool(""))?;
    daemon.zero("max");
    Some(daemon)
}

/// The daemon still does its work, and has kept everything.
fn still_lends(daemon: &Daemon, page: Page) {
    daemon.wait_for("quiet", |p| p.lent_pages + p.draining_pages + p.zeroing_pages == Pages(0));
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, Pages(2));
    drop(daemon.lend(page, 1));
    daemon.wait_for("returned", |p| p.lent_pages == Pages(0));
}

// Promise P26 (socket): Both interfaces are files, which the daemon serves as they are and which
// have every field of the messages.
#[test]
fn the_interface_describes_itself() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    let agents = format!("{}{}", daemon.socket().display(), wire::agent::SOCKET_ENDING);
    let both = (wire::INTERFACE, wire::DESCRIPTION);
    let of_agents = (wire::agent::INTERFACE, wire::agent::DESCRIPTION);
    for (path, served) in [
        (daemon.socket().display().to_string(), vec![wire::SERVICE, both]),
        (agents, vec![wire::SERVICE, both, of_agents]),
    ] {
        let mut stream = UnixStream::connect(path).expect("the daemon listens");
        let info = call(&mut stream, "org.varlink.service.GetInfo", &json!({}));
        let names: Vec<_> = served.iter().map(|(name, _)| *name).collect();
        assert_eq!(info["parameters"]["interfaces"], json!(names), "{info}");
        for (interface, definition) in served {
            let description = call(
                &mut stream,
                "org.varlink.service.GetInterfaceDescription",
                &json!({ "interface": interface }),
            );
            assert_eq!(description["parameters"]["description"], definition, "{interface}");
        }
    }
}

// Promise P24.
#[test]
fn errors_carry_their_name_and_the_value_at_fault() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    let mut stream = connect(&daemon);
    let cases = [
        ("io.prezero.Lend", json!({ "bytes": 5 }), "io.prezero.BadValue"),
        ("io.prezero.Lend", json!({ "bytes": 2097152, "page_bytes": 3 }), "io.prezero.BadValue"),
        ("io.prezero.Lend", json!({ "bytes": 2097152, "node": 77 }), "io.prezero.NoSuchPool"),
        ("io.prezero.Lend", json!({ "bytes": 2097152, "owner": "a/b" }), "io.prezero.BadValue"),
        ("io.prezero.Lend", json!({ "bytes": 2097152, "keep_seconds": 1 }), "io.prezero.BadValue"),
        (
            "io.prezero.Lend",
            json!({ "bytes": 2097152, "owner": "a", "keep_seconds": u64::MAX }),
            "io.prezero.BadValue",
        ),
        ("io.prezero.Lend", json!({ "bytes": 1_u64 << 60 }), "io.prezero.NotEnough"),
        (
            "io.prezero.FinishZeroing",
            json!({ "job": 999, "pages_done": 1 }),
            "io.prezero.NoSuchJob",
        ),
    ];
    for (method, parameters, expected) in cases {
        let reply = call(&mut stream, method, &parameters);
        assert_eq!(reply["error"], expected, "{method} {parameters}: {reply}");
    }
    still_lends(&daemon, page);
}

// Promise P300 (socket): An unknown method, and a parameter that is unknown, missing or of another
// type, get the standard errors with its name and what was meant, and the connection goes on.
#[test]
fn standard_errors_name_their_cause_and_the_connection_goes_on() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    let mut stream = connect(&daemon);
    let lend = "io.prezero.Lend";
    let describe = "org.varlink.service.GetInterfaceDescription";
    let change = json!({ "node": 0, "page_bytes": 4096, "pages_per_block": 1, "colour": 1 });
    let cases = [
        ("io.prezero.Borrow", json!({}), "MethodNotFound", "method", "io.prezero.Borrow"),
        (
            "org.varlink.service.Get",
            json!({}),
            "MethodNotFound",
            "method",
            "org.varlink.service.Get",
        ),
        (
            "io.prezero.agent.Return",
            json!({}),
            "InterfaceNotFound",
            "interface",
            "io.prezero.agent",
        ),
        ("Lend", json!({}), "InterfaceNotFound", "interface", ""),
        (describe, json!({ "interface": "a.b" }), "InterfaceNotFound", "interface", "a.b"),
        (describe, json!({}), "InvalidParameter", "parameter", "interface"),
        (lend, Value::Null, "InvalidParameter", "parameter", "bytes"),
        (lend, json!({}), "InvalidParameter", "parameter", "bytes"),
        (lend, json!({ "bytes": "many" }), "InvalidParameter", "parameter", "bytes"),
        (lend, json!({ "bytes": 4096, "node": [0] }), "InvalidParameter", "parameter", "node"),
        (lend, json!({ "bytes": 4096, "colour": 1 }), "InvalidParameter", "parameter", "colour"),
        (lend, json!([1]), "InvalidParameter", "parameter", "parameters"),
        ("io.prezero.GetStatus", json!({ "a": 1 }), "InvalidParameter", "parameter", "a"),
        ("io.prezero.Watch", json!({ "below": "x" }), "InvalidParameter", "parameter", "below"),
        (
            "io.prezero.Configure",
            json!({ "change": change }),
            "InvalidParameter",
            "parameter",
            "colour",
        ),
    ];
    for (method, parameters, error, field, value) in cases {
        let reply = call(&mut stream, method, &parameters);
        assert_eq!(reply["error"], format!("org.varlink.service.{error}"), "{method}: {reply}");
        assert_eq!(reply["parameters"][field], value, "{method} {parameters}");
        let says = reply["parameters"]["reason"].as_str();
        assert_eq!(says.is_some(), error == "InvalidParameter", "{method}: {reply}");
    }
    let typing_error = call(&mut stream, lend, &json!({ "byts": 4096 }));
    let says = &typing_error["parameters"]["reason"];
    assert_eq!(says, "is unknown: did you mean `bytes`?", "{typing_error}");
    let upgrade = json!({ "method": "io.prezero.GetStatus", "upgrade": true }).to_string();
    stream.write_all(format!("{upgrade}\0").as_bytes()).expect("the daemon reads");
    let reply = call(&mut stream, "io.prezero.GetStatus", &json!({}));
    assert_eq!(reply["error"], "org.varlink.service.MethodNotImplemented", "{reply}");
    still_lends(&daemon, page);
}

// Promise P300.
#[test]
fn agents_get_standard_errors_too() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    let path = format!("{}{}", daemon.socket().display(), wire::agent::SOCKET_ENDING);
    let mut stream = UnixStream::connect(path).expect("the daemon listens");
    for (method, parameters, error) in [
        ("io.prezero.agent.Release", json!({}), "MethodNotFound"),
        ("io.prezero.Borrow", json!({}), "MethodNotFound"),
        ("io.systemd.Lend", json!({}), "InterfaceNotFound"),
        ("io.prezero.Lend", json!({ "name": "a" }), "InvalidParameter"),
        ("io.prezero.agent.Return", json!({ "name": "a", "keep": true }), "InvalidParameter"),
        ("io.prezero.agent.ListLoans", json!({ "prefix": 1 }), "InvalidParameter"),
    ] {
        let reply = call(&mut stream, method, &parameters);
        assert_eq!(reply["error"], format!("org.varlink.service.{error}"), "{method}: {reply}");
    }
    // What only the other socket takes.
    let mut other = connect(&daemon);
    let by_name = json!({ "name": "a", "bytes": 4096 });
    for (refused, says) in [
        (call(&mut stream, "io.prezero.Lend", &json!({ "bytes": 4096 })), "socket for borrowers"),
        (call(&mut stream, "io.prezero.GetStatus", &json!({})), "socket for borrowers"),
        (call(&mut stream, "io.prezero.Drain", &json!({ "on": true })), "socket for borrowers"),
        (call(&mut other, "io.prezero.Lend", &by_name), "socket for agents"),
    ] {
        assert_eq!(refused["error"], "io.prezero.NotPermitted", "{refused}");
        assert!(refused["parameters"]["needed"].to_string().contains(says), "{refused}");
    }
    // Parameters that exclude each other.
    for parameters in [
        json!({ "bytes": 4096, "whole": true }),
        json!({ "bytes": 4096, "name": "a", "held_by_memory": true }),
    ] {
        let refused = call(&mut other, "io.prezero.Lend", &parameters);
        assert_eq!(refused["error"], "io.prezero.BadValue", "{refused}");
        assert_eq!(refused["parameters"]["field"], "parameters", "{refused}");
    }
    let listed = call(&mut stream, "io.prezero.agent.ListLoans", &json!({}));
    assert_eq!(listed["parameters"]["loans"], json!([]), "{listed}");
}

// Promise P26.
#[test]
fn every_method_of_the_files_is_carried_out() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    let agents = format!("{}{}", daemon.socket().display(), wire::agent::SOCKET_ENDING);
    for (path, interface, definition) in [
        (daemon.socket().display().to_string(), wire::INTERFACE, wire::DESCRIPTION),
        (agents, wire::agent::INTERFACE, wire::agent::DESCRIPTION),
    ] {
        let mut stream = UnixStream::connect(path).expect("the daemon listens");
        let names = definition.split("\nmethod ").skip(1).filter_map(|text| text.split_once('('));
        let names: Vec<_> = names.map(|(name, _)| format!("{interface}.{name}")).collect();
        assert!(names.len() >= 3, "{names:?}");
        for name in names {
            // No method has it: nothing is carried out but what asks for nothing.
            let reply = call(&mut stream, &name, &json!({ "unheard": 1 }));
            assert_eq!(reply["error"], "org.varlink.service.InvalidParameter", "{name}: {reply}");
        }
    }
}

// Promise P25.
#[test]
fn messages_that_are_no_calls_end_their_connection() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    for message in
        ["", "x", "{}", "[]", "{\"method\":7}", "{\"method\":\"a.b\",\"more\":1}", "\u{1}"]
    {
        let mut stream = connect(&daemon);
        stream.write_all(format!("{message}\0").as_bytes()).expect("the daemon reads");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("closed, not reset");
        assert_eq!(rest, b"", "{message}");
    }
    still_lends(&daemon, page);
}

// Promise P300.
/// Calls with random parameters of the right and the wrong types, sent whole: each has its reply.
#[test]
fn random_parameters_are_answered_and_the_connection_goes_on() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    let mut random = StdRng::seed_from_u64(11);
    let names = ["bytes", "page_bytes", "node", "owner", "single", "lease", "job", "on", "x"];
    let methods = ["Lend", "FindHolders", "Revoke", "FinishZeroing", "Release", "Watch", "Y"];
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0.5),
        json!(u64::MAX),
        json!("a/b"),
        json!([[]]),
        json!({ "a": {} }),
        json!(3),
    ];
    let mut stream = connect(&daemon);
    for _ in 0..2000 {
        let mut parameters = serde_json::Map::new();
        for _ in 0..random.random_range(0..4) {
            let name = names[random.random_range(0..names.len())];
            let value = values[random.random_range(0..values.len())].clone();
            parameters.insert(name.to_owned(), value);
        }
        let method = format!("io.prezero.{}", methods[random.random_range(0..methods.len())]);
        let reply = call(&mut stream, &method, &Value::Object(parameters));
        assert!(reply["error"].is_string() || reply["parameters"].is_object(), "{reply}");
    }
    still_lends(&daemon, page);
}

// Promise P25 (socket): Half messages, garbage, endless messages, stray descriptors and idle
// crowds harm no other user.
#[test]
fn half_messages_and_garbage_cost_only_their_connection() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    let whole = json!({ "method": "io.prezero.Lend", "parameters": { "bytes": 2_097_152 } })
        .to_string()
        .into_bytes();
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..500 {
        let mut stream = connect(&daemon);
        let mut message = whole.clone();
        message.push(0);
        message.truncate(random.random_range(0..=message.len()));
        for _ in 0..random.random_range(0..4) {
            if let Some(at) = message.len().checked_sub(1).map(|n| random.random_range(0..=n)) {
                message[at] = random.random();
            }
        }
        // The daemon may have hung up already.
        let _ = stream.write_all(&message);
        if random.random_bool(0.3) {
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
    }
    still_lends(&daemon, page);
}

// Promise P25.
#[test]
fn a_message_without_end_is_cut_off_early() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    let mut stream = connect(&daemon);
    let piece = vec![b'['; 1 << 16];
    let mut sent = 0;
    while stream.write_all(&piece).is_ok() {
        sent += piece.len();
        assert!(sent < 4 << 20, "the daemon reads {sent} bytes of one message");
    }
    still_lends(&daemon, page);
}

// Promise P25.
#[test]
fn unexpected_descriptors_are_closed() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    let descriptors = || {
        let dir = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("our own child");
        dir.count()
    };
    let mut stream = connect(&daemon);
    call(&mut stream, "io.prezero.GetStatus", &json!({}));
    let before = descriptors();
    let null = std::fs::File::open("/dev/null").expect("there is one");
    for _ in 0..20 {
        let fds = [null.as_fd(); 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let mut message = json!({ "method": "io.prezero.GetStatus" }).to_string().into_bytes();
        message.push(0);
        let pieces = [IoSlice::new(&message)];
        rustix::net::sendmsg(&stream, &pieces, &mut control, SendFlags::empty()).expect("sent");
        let mut byte = [1];
        while byte[0] != 0 {
            assert_eq!(stream.read(&mut byte).expect("an answer"), 1);
        }
    }
    assert_eq!(descriptors(), before);
}

// Promise P25.
#[test]
fn thousand_idle_connections_delay_no_user() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    let idle: Vec<_> = (0..1000).map(|_| connect(&daemon)).collect();
    for _ in 0..20 {
        drop(daemon.lend(page, 1));
    }
    still_lends(&daemon, page);
    drop(idle);
}

#[test]
fn unread_replies_return_their_loans() {
    let page = Page::Mib2;
    let Some(daemon) = small(page) else { return };
    for _ in 0..50 {
        let mut stream = connect(&daemon);
        let mut message =
            json!({ "method": "io.prezero.Lend", "parameters": { "bytes": 2_097_152 } })
                .to_string()
                .into_bytes();
        message.push(0);
        stream.write_all(&message).expect("the daemon reads");
        // Gone before, while or after the reply is sent.
        drop(stream);
    }
    still_lends(&daemon, page);
}

// Promise P119.
/// A report of many loans takes another way out of the daemon than one of few.
#[test]
fn a_report_of_many_loans_is_the_same_as_of_few() {
    const LOANS: usize = 40;
    let Some(daemon) = Daemon::start(Page::Mib2, 48, &Page::Mib2.pool("")) else { return };
    let mut client = daemon.client();
    let mut loans = Vec::new();
    for number in 0..LOANS {
        let mut request = LendRequest::new(Page::Mib2.times(1));
        request.owner = Some(format!("o{number}").parse().expect("a name"));
        request.keep = Some(Duration::ZERO);
        loans.push(client.lend(&request).expect("a page for each"));
    }
    let many = daemon.status();
    let owners: Vec<_> = many.loans.iter().filter_map(|loan| loan.owner.clone()).collect();
    assert_eq!(owners, (0..LOANS).map(|number| format!("o{number}")).collect::<Vec<_>>());
    // A one-way call has no answer, and the next call gets its own.
    let mut stream = UnixStream::connect(daemon.socket()).expect("a connection");
    let calls = "{\"method\":\"io.prezero.GetStatus\",\"oneway\":true}\0\
                 {\"method\":\"io.prezero.TakeZeroing\",\"parameters\":{\"node\":77}}\0\
                 {\"method\":\"io.prezero.GetStatus\"}\0";
    stream.write_all(calls.as_bytes()).expect("a connection");
    let mut answers = Vec::new();
    let mut byte = [0];
    while answers.iter().filter(|byte| **byte == 0).count() < 2 {
        stream.read_exact(&mut byte).expect("two answers");
        answers.push(byte[0]);
    }
    let answers: Vec<Value> = answers
        .split(|byte| *byte == 0)
        .filter(|answer| !answer.is_empty())
        .map(|answer| serde_json::from_slice(answer).expect("JSON"))
        .collect();
    assert_eq!(answers[0]["error"], "io.prezero.NothingToZero");
    assert_eq!(answers[1]["parameters"]["loans"].as_array().map(Vec::len), Some(LOANS));
    loans.truncate(3);
    let few = client.status().expect("a status");
    let without_age = |loans: &[LoanStatus]| -> Vec<_> {
        loans.iter().map(|loan| LoanStatus { age: None, ..loan.clone() }).collect()
    };
    assert_eq!(without_age(&few.loans), without_age(&many.loans[..3]));
}
