// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel refuses, or answers otherwise than the caller's bytes suggest, leaves a program
//! under the shim with the memory that it has without.

use std::io::Write as _;
use std::process::{Command, Stdio};
use units::Pages;

use prezero_tests::{Daemon, c};

use super::{PAGE, assert_same, logged, reserve, served, shim, shimmed, text};

/// `tests/c/answers.c` with a word, untouched and served; its log is handed to `look`.
fn compare(word: &str, least: usize, look: impl FnOnce(&std::path::Path)) {
    compare_with(&[], word, least, look);
}

fn compare_with(options: &[&str], word: &str, least: usize, look: impl FnOnce(&std::path::Path)) {
    let Some(pages) = reserve(PAGE, 200) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("answers", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let expected = text(&Command::new(program).arg(word).output().expect("the program runs"));
    let pool = PAGE.pool("pages_per_block = 2\nready_high = 100\nleave_free = 40");
    let daemon = Daemon::start_with(Some(pages), &pool, &[]);
    daemon.wait_for("ready", |pool| pool.ready_pages == Pages(100));
    let log = dir.path().join("log");
    let found = shimmed(&daemon.socket(), &log, options, &[program, word]);
    let why = std::fs::read_to_string(&log).unwrap_or_default();
    assert_same(&format!("{word}: {why}"), &text(&found), &expected);
    assert!(served(&log) >= least, "{word}: only {} calls were served", served(&log));
    daemon.wait_for("all is returned", |p| p.lent_pages + p.draining_pages == Pages(0));
    look(&log);
}

// Promise P100 (programs): The shim believes the kernel's answer and not its caller's wish:
// refused and partial calls change nothing, what is given up stays promised, a closed number means
// nothing.
/// Advice for parts of pages and then a fork, refused `munmap`, `mmap` and `mremap`, a shrinking
/// `mremap`, memory exchanged behind the shim's back, a fork beside an allocator that has handlers,
/// and a full table of descriptors.
#[test]
fn the_kernels_answer_is_believed_and_not_the_callers_wish() {
    compare("all", 0, |_| {});
}

// Promise P76.
// Promise P100.
/// The same of private memory that is lent, except what concerns children.
#[test]
fn private_lent_memory_answers_as_the_kernels() {
    compare_with(&["--private"], "alone", 3, |_| {});
    compare_with(&["--private"], "promise", 1, |_| {});
}

// Promise P113 (programs): Code runs in lent memory; calls that are looked up in the C library's
// own handle are served.
#[test]
fn code_compiled_at_run_time_lies_in_lent_memory() {
    compare("code", 3, |_| {});
}

// Promise P115 (programs): A memfd is served once no seal can be added any more; one whose seals
// may change, or that is sealed against writing, is the kernel's.
#[test]
fn a_memfd_whose_seals_may_change_is_the_kernels() {
    compare("sealed", 0, |log| assert_eq!(served(log), 0));
}

// Promise P113.
/// As Python's ctypes finds them.
#[test]
fn calls_looked_up_in_the_c_librarys_handle_are_served() {
    compare("handle", 1, |_| {});
    let Some(pages) = reserve(PAGE, 8) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(Some(pages), &PAGE.pool(""), &[]);
    daemon.zero("max");
    let log = dir.path().join("python");
    let script = "import ctypes; mmap = ctypes.CDLL('libc.so.6').mmap; mmap.restype = ctypes.c_void_p; \
                  at = mmap(None, ctypes.c_size_t(2 << 20), 3, 0x40021, -1, ctypes.c_long(0)); \
                  print(ctypes.string_at(at, 2 << 20) == bytes(2 << 20))";
    let found = shimmed(&daemon.socket(), &log, &[], &["python3", "-c", script]);
    assert_eq!((text(&found).as_str(), served(&log)), ("True\n", 1));
}

// Promise P201 (programs): A memfd made by number, as ZGC makes its heap, is served as one made by
// name, and other calls by number pass as they came.
/// As ZGC and others do that are older than the C library's `memfd_create`.
#[test]
fn memfd_by_system_call_number_is_served_and_other_numbers_pass() {
    compare("by_number", 1, |log| {
        assert_eq!(logged(log, "a memfd of 4194304 bytes is served"), 1);
    });
}

// Promise P112.
/// Detached by `munmap`, before or after its removal, a segment is the daemon's again while its
/// program goes on.
#[test]
fn a_segment_that_is_removed_and_attached_nowhere_is_returned() {
    let Some(pages) = reserve(PAGE, 8) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("answers", dir.path(), &[]);
    let daemon = Daemon::start_with(Some(pages), &PAGE.pool(""), &[]);
    daemon.zero("max");
    let log = dir.path().join("log");
    let words = [program.to_str().expect("a plain path"), "gone"];
    let mut command = shim(&daemon.socket(), &log, &["--shm"], &words);
    let mut running =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("prezero runs");
    for round in 1..=2 {
        daemon.wait_for("two loans", |_| daemon.status().counters.loans == round);
        daemon.wait_for("all is returned", |p| p.lent_pages + p.draining_pages == Pages(0));
        assert!(running.try_wait().expect("our own child").is_none(), "it waits for us");
        running.stdin.as_mut().expect("a pipe").write_all(b"x").expect("it reads");
    }
    assert!(running.wait().expect("our own child").success());
    assert_eq!(served(&log), 2);
}

// Promise P100.
// Promise P115.
#[test]
fn a_memfd_is_served_after_another_of_its_number_was_closed() {
    compare("probe", 2, |log| {
        assert_eq!(logged(log, "a memfd of 4194304 bytes is served"), 1);
        assert_eq!(logged(log, "more seals may follow"), 1);
    });
}
