// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs as they are, under `prezero run`.
//!
//! `tests/c/shim.c` says what it finds of each thing that a program may expect of huge pages. What it
//! says untouched is the expectation for every other way to run it.

use std::path::Path;
use std::process::{Command, Output};

use linux::testkit::hugepages;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prezero_tests::{Daemon, Page, c};

const PAGE: Page = Page::Mib2;
/// What the program and its copies need at most, and as many for the daemon to keep ready.
const PAGES: u64 = 360;
const POOL: &str = "ready_high = 240\nleave_free = 48";

/// An option that says nothing new, for a run whose daemon does not answer.
const STALLED: &str = "--private=copy";

/// Runs a program under the shim; its log is at `log`.
fn shimmed(socket: &Path, log: &Path, options: &[&str], program: &[&str]) -> Output {
    // The shim gives up on a daemon after 100 ms, and then for a second: too soon for a machine that
    // other tests keep busy, where that is not what is tested.
    let patience = if options.contains(&STALLED) { "100" } else { "5000" };
    Command::new(prezero_tests::daemon::binary())
        .env("PREZERO_WAIT_MS", patience)
        .args(["run", "--socket"])
        .arg(socket)
        .arg("--log")
        .arg(log)
        .args(options)
        .arg("--")
        .args(program)
        .output()
        .expect("prezero runs")
}

fn text(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    assert_eq!(stderr, "", "nothing is said on standard error");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How often the log says that something was served.
fn served(log: &Path) -> usize {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    log.lines().filter(|line| line.contains("is served")).count()
}

fn assert_same(how: &str, found: &str, expected: &str) {
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected, "{how}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{how}");
}

#[test]
fn a_program_finds_under_the_shim_what_it_finds_without() {
    let Some(pages) = hugepages::reserve(PAGE.bytes(), PAGES) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("shim", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let log = |how: &str| dir.path().join(format!("{how}.log"));

    let untouched = Command::new(program).arg("--shm").output().expect("the program runs");
    let expected = text(&untouched);
    assert!(expected.lines().count() > 150, "it says something: {expected}");

    let nobody = dir.path().join("no-socket");
    let found = shimmed(&nobody, &log("dead"), &["--shm"], &[program, "--shm"]);
    assert_same("without a daemon", &text(&found), &expected);
    assert_eq!(served(&log("dead")), 0);

    let config = format!("{}[workers]\nmax = 1\n", PAGE.pool(POOL));
    let daemon = Daemon::start_with(Some(pages), &config, &[]);
    for private in ["copy", "no"] {
        daemon.wait_for("ready", |pool| pool.ready_pages == 240);
        let log = log(private);
        let options = ["--shm", "--private", private];
        let found = shimmed(&daemon.socket(), &log, &options, &[program, "--shm"]);
        assert_same(private, &text(&found), &expected);
        let least = if private == "copy" { 80 } else { 40 };
        assert!(served(&log) > least, "{private}: only {} calls were served", served(&log));
    }
    let gone = daemon.wait_for("all is returned", |p| p.lent_pages + p.lingering_pages == 0);
    assert!(
        gone.kernel_free_pages + gone.ready_pages + gone.zeroing_pages >= PAGES - 1,
        "{gone:?}"
    );

    let others =
        shimmed(&daemon.socket(), &log("only"), &["--only", "no-such-program,another"], &[program]);
    assert_same("not meant", &text(&others), &expected[..expected.find("segment:").unwrap_or(0)]);
    assert_eq!(served(&log("only")), 0);

    let pid = Pid::from_raw(i32::try_from(daemon.pid()).expect("a pid"));
    kill(pid, Signal::SIGSTOP).expect("our own child");
    let options = ["--shm", STALLED];
    let found = shimmed(&daemon.socket(), &log("stopped"), &options, &[program, "--shm"]);
    kill(pid, Signal::SIGCONT).expect("our own child");
    assert_same("with a daemon that does not answer", &text(&found), &expected);
    assert_eq!(served(&log("stopped")), 0);
}

#[test]
fn a_program_gets_what_the_kernel_has_when_nothing_is_ready() {
    let Some(pages) = hugepages::reserve(PAGE.bytes(), PAGES) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("shim", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let expected = text(&Command::new(program).output().expect("the program runs"));
    let daemon = Daemon::start_with(Some(pages), &PAGE.pool(""), &[]);
    let log = dir.path().join("log");
    let found = shimmed(&daemon.socket(), &log, &[], &[program]);
    assert_same("with nothing ready", &text(&found), &expected);
    assert_eq!(served(&log), 0);
}

#[test]
fn run_ends_with_the_code_of_its_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let run = |words: &[&str]| shimmed(dir.path(), &log, &[], words).status.code();
    assert_eq!(run(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(run(&["/nowhere/at-all"]), Some(127));
    assert_eq!(run(&["/"]), Some(126));
}
