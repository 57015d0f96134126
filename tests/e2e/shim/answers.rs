// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel refuses, or answers otherwise than the caller's bytes suggest, leaves a program
//! under the shim with the memory that it has without.

use std::process::Command;

use prezero_tests::{Daemon, c};

use super::{PAGE, assert_same, logged, reserve, served, shimmed, text};

/// `tests/c/answers.c` with a word, untouched and served; its log is handed to `look`.
fn compare(word: &str, least: usize, look: impl FnOnce(&std::path::Path)) {
    let Some(pages) = reserve(PAGE, 200) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("answers", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let expected = text(&Command::new(program).arg(word).output().expect("the program runs"));
    let pool = PAGE.pool("pages_per_block = 2\nready_high = 100\nleave_free = 40");
    let daemon = Daemon::start_with(Some(pages), &pool, &[]);
    daemon.wait_for("ready", |pool| pool.ready_pages == 100);
    let log = dir.path().join("log");
    let found = shimmed(&daemon.socket(), &log, &[], &[program, word]);
    assert_same(word, &text(&found), &expected);
    assert!(served(&log) >= least, "{word}: only {} calls were served", served(&log));
    daemon.wait_for("all is returned", |p| p.lent_pages + p.lingering_pages == 0);
    look(&log);
}

/// Advice for parts of pages and then a fork, refused `munmap`, `mmap` and `mremap`, a shrinking
/// `mremap`, memory exchanged behind the shim's back, a fork beside an allocator that has handlers,
/// and a full table of descriptors.
#[test]
fn the_kernels_answer_is_believed_and_not_the_callers_wish() {
    compare("all", 15, |_| {});
}

#[test]
fn what_is_given_up_for_zeros_stays_promised() {
    compare("promise", 1, |_| {});
}

#[test]
fn a_memfd_is_served_after_another_of_its_number_was_closed() {
    compare("probe", 1, |log| {
        assert_eq!(logged(log, "a memfd of 4194304 bytes is served"), 1);
        assert_eq!(logged(log, "sealed against writing is the kernel's again"), 1);
        assert_eq!(logged(log, "to be executed is the kernel's again"), 1);
    });
}
