// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Wishes of the operator beside calls for huge pages: plain memory, and counts.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use client::LendRequest;
use prezero_tests::{Daemon, c};
use units::Pages;

use super::{PAGE, assert_same, logged, served, shim, shimmed, text};

// Promise P367 (programs): With `--anonymous SIZE` shared mappings without `MAP_HUGETLB` of that
// size or more are served where all of it is ready, and a program finds in them what it finds
// without the shim. Smaller, private and odd ones are the kernel's, and all are without the flag.
#[test]
fn plain_shared_memory_is_served_from_the_wished_size_on() {
    let Some(daemon) = Daemon::start(PAGE, 32, &PAGE.pool("max = 32")) else { return };
    daemon.zero("16");
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("plain", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let cases = [("64", "8M", 0), ("8", "8M", 1), ("8", "10M", 0), ("8", "", 0)];
    for (nth, (mib, min, calls)) in cases.into_iter().enumerate() {
        let expected = text(&Command::new(program).arg(mib).output().expect("it runs"));
        let log = dir.path().join(nth.to_string());
        let words: &[&str] = if min.is_empty() { &[] } else { &["--anonymous", min] };
        let found = shimmed(&daemon.socket(), &log, words, &[program, mib]);
        let log_text = std::fs::read_to_string(&log).unwrap_or_default();
        assert_same(&log_text, &text(&found), &expected);
        assert_eq!(served(&log), calls, "{mib} MiB from {min}: {log_text}");
        let short = logged(&log, "not all of it is ready");
        assert_eq!(short, usize::from(mib == "64"), "{mib} MiB from {min}: {log_text}");
        daemon.wait_for("returned", |p| p.lent_pages + p.draining_pages == Pages(0));
        daemon.zero("max");
    }
}

// Promise P368 (programs): With `--count-ready` a program that reads `/proc/meminfo` finds the
// ready pages of that moment in `MemAvailable`, also by a descriptor that stays open; without it
// the kernel's number.
#[test]
fn ready_pages_are_available_where_that_is_wished() {
    let Some(daemon) = Daemon::start(PAGE, 32, &PAGE.pool("max = 32")) else { return };
    daemon.zero("max");
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("available", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    for is_wished in [true, false] {
        let words: &[&str] = if is_wished { &["--count-ready"] } else { &[] };
        let mut command = shim(&daemon.socket(), &dir.path().join("log"), words, &[program]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut asks = child.stdin.take().expect("a pipe");
        let mut answers = BufReader::new(child.stdout.take().expect("a pipe"));
        // The two reads of one answer lie apart, and the machine goes on between them.
        let mut shows = |pages: u64| {
            let wanted = PAGE.times(pages).0.cast_signed() / 1024;
            (0..200).any(|_| {
                asks.write_all(b".").expect("it asks");
                let mut answer = String::new();
                answers.read_line(&mut answer).expect("it answers");
                let more: i64 = answer.trim().parse().expect("a number");
                (more - wanted).abs() <= 1024
            })
        };
        assert!(shows(if is_wished { 32 } else { 0 }), "all are ready");
        let loan = daemon.client().lend(&LendRequest::new(PAGE.times(16))).expect("half of it");
        assert!(shows(if is_wished { 16 } else { 0 }), "half are lent");
        drop(loan);
        daemon.wait_for("returned", |p| p.lent_pages + p.draining_pages == Pages(0));
        daemon.zero("max");
        assert!(shows(if is_wished { 32 } else { 0 }), "all are ready again");
        drop(asks);
        assert!(child.wait().expect("it ends").success());
    }
}
