// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes in unusual states find under the shim what they find without, and costs stay small
//! whatever is lent.

use std::process::Command;

use prezero_tests::{Daemon, c};
use units::Pages;

use super::{PAGE, assert_same, reserve, served, shimmed};

/// The cases of `tests/c/shim_cases.c`, and the least calls that are served of each.
const CASES: [(&str, usize); 12] = [
    ("user", 2),
    ("root", 2),
    ("descriptors", 2),
    ("address_space", 2),
    ("filtered", 2),
    ("filtered_early", 0),
    ("signal_stack", 2),
    ("forks", 2),
    ("process_madvise", 2),
    ("memfds", 4),
    ("locked", 2),
    ("meminfo", 2),
];

// Promise P194 (programs): Under the shim a program of another user, without descriptors, `/proc`
// or address space, under a seccomp filter, on a small signal stack, or beside threads that fork
// finds what it finds without. `/proc/meminfo` is the kernel's.
#[test]
fn programs_in_unusual_states_find_the_same() {
    let Some(pages) = reserve(PAGE, 60) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("shim_cases", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let pool = PAGE.pool("pages_per_block = 2\nready_high = 24\nleave_free = 30");
    let daemon = Daemon::start_with(Some(pages), &pool, &[]);
    let said = |output: std::process::Output| {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        format!("{}{errors}{}", String::from_utf8_lossy(&output.stdout), output.status)
    };
    for (case, least) in CASES {
        daemon.wait_for("ready", |pool| pool.ready_pages == Pages(24));
        let untouched = said(Command::new(program).arg(case).output().expect("it runs"));
        let log = dir.path().join(case);
        let found = said(shimmed(&daemon.socket(), &log, &[], &[program, case]));
        let why = std::fs::read_to_string(&log).unwrap_or_default();
        assert_same(&format!("{case}: {why}"), &found, &untouched);
        assert!(untouched.contains("exit status: 0"), "{case}: {untouched}");
        assert!(served(&log) >= least, "{case}: {} calls were served: {why}", served(&log));
        daemon.wait_for("all is returned", |p| p.lent_pages + p.draining_pages == Pages(0));
    }
}

/// What `tests/c/shim_costs.c` measures, in nanoseconds of CPU time.
fn costs(output: &std::process::Output) -> Vec<(String, f64)> {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |line: &str| {
        let (name, cost) = line.rsplit_once(' ')?;
        Some((name.to_owned(), cost.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

// Promise P320 (programs): Each of n memfds under the shim costs the same, and calls about
// ordinary memory cost what they cost without the shim, whatever was lent.
/// Four times as many memfds cost four times as much, and calls about ordinary memory cost the
/// same beside lent memory. The bounds are wide for a busy machine: what they replace was 16 times
/// as much, and 6 to 5,700 times as much.
#[test]
fn costs_do_not_grow_with_what_is_lent() {
    let Some(pages) = reserve(PAGE, 40) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("shim_costs", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let pool = PAGE.pool("pages_per_block = 2\nready_high = 16\nleave_free = 20");
    let daemon = Daemon::start_with(Some(pages), &pool, &[]);
    daemon.wait_for("ready", |pool| pool.ready_pages == Pages(16));
    let untouched = costs(&Command::new(program).output().expect("it runs"));
    let log = dir.path().join("log");
    let found = costs(&shimmed(&daemon.socket(), &log, &["--shm"], &[program]));
    let names = |costs: &[(String, f64)]| costs.iter().map(|one| one.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&untouched));
    assert!(served(&log) >= 2, "{:?}", std::fs::read_to_string(&log));
    for ((name, native), (_, shim)) in untouched.iter().zip(&found) {
        if !name.starts_with("memfd") {
            assert!(shim < &(native * 3.0 + 1000.0), "{name}: {native} ns became {shim} ns");
        }
    }
    let memfd = |count: &str| found.iter().find(|(name, _)| name == count).expect("measured").1;
    let (few, many) = (memfd("memfd of 500"), memfd("memfd of 2000"));
    assert!(many < 2.5 * few, "each of 2,000 memfds costs {many} ns, each of 500 {few} ns");
}
