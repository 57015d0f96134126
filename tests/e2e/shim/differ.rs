// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs by seed: what `tests/c/differ.c` finds is the same untouched and under the shim.

use std::path::Path;
use std::process::{Command, Output};

use prezero_tests::{Daemon, c};
use units::Pages;

use super::{PAGE, reserve, served};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What it said and how it ended: also a signal is the same signal.
fn said(output: &Output) -> String {
    format!("{}ends: {}", String::from_utf8_lossy(&output.stdout), output.status)
}

/// Runs a program of `tests/c` by `seeds` seeds (or `PREZERO_TEST_SEEDS`, from `PREZERO_TEST_SEED`
/// on), with and without the shim; at least `least` calls are served.
pub(super) fn same_by_seed(name: &str, seeds: u64, least: usize) {
    let Some(pages) = reserve(PAGE, 260) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile(name, dir.path(), &[]);
    let pool = PAGE.pool("pages_per_block = 2\nready_low = 70\nready_high = 80\nleave_free = 120");
    let daemon = Daemon::start_with(Some(pages), &pool, &[]);
    daemon.wait_for("ready", |pool| pool.ready_pages == Pages(80));
    let shim = prezero_tests::daemon::binary().with_file_name("libprezero_preload.so");
    let log = dir.path().join("log");
    let run = |seed: u64, shim: Option<&Path>| {
        let mut command = Command::new(&program);
        command.arg(seed.to_string());
        if let Some(shim) = shim {
            command.env("LD_PRELOAD", shim).env("PREZERO_SOCKET", daemon.socket());
            command.env("PREZERO_WAIT_MS", "5000").env("PREZERO_SHIM_LOG", &log);
        }
        said(&command.output().expect("the program runs"))
    };
    let first = number("PREZERO_TEST_SEED", 1);
    for seed in first..first + number("PREZERO_TEST_SEEDS", seeds) {
        let (untouched, found) = (run(seed, None), run(seed, Some(&shim)));
        let lines = untouched.lines().zip(found.lines()).enumerate();
        for (at, (expected, found)) in lines {
            assert_eq!(found, expected, "seed {seed}, line {}", at + 1);
        }
        assert_eq!(found.lines().count(), untouched.lines().count(), "seed {seed}");
    }
    assert!(served(&log) > least, "only {} calls were served", served(&log));
    daemon.wait_for("all is returned", |p| p.lent_pages + p.draining_pages == Pages(0));
}

// Promise P101 (programs): A seeded program of every call that the shim knows ends in the same
// output natively and under it, of one thread and of several that fork beside each other's calls.
#[test]
fn programs_by_seed_find_under_the_shim_what_they_find_without() {
    same_by_seed("differ", 200, 50);
}
