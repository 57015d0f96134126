// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs as they are, under `prezero run`.
//!
//! `tests/c/shim.c` says what it finds of each thing that a program may expect of huge pages. What
//! it says untouched is the expectation for every other way to run it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prezero_tests::{Daemon, Page, c};
use testkit::hugepages;
use units::{Node, Pages};

mod answers;
mod behind;
mod cases;
mod differ;
mod environment;
mod handback;
mod malloc;
mod nodes;
mod threads;
mod unlinked;
mod wishes;

const PAGE: Page = Page::Mib2;
/// What the program and its copies need at most, and as many for the daemon to keep ready.
const PAGES: u64 = 360;
const POOL: &str = "ready_high = 240\nleave_free = 48";

/// An option that says nothing new, for a run whose daemon does not answer.
const STALLED: &str = "--private";

/// Free pages on node 0, where the pools are; `None` is a skip, which was counted.
fn reserve(page: Page, pages: u64) -> Option<hugepages::Guard> {
    hugepages::reserve_all(&[(page.size(), Some(Node(0)), pages)])
}

/// A program under the shim; its log is at `log`.
fn shim(socket: &Path, log: &Path, options: &[&str], program: &[&str]) -> Command {
    // The shim gives up on a daemon after 100 ms, and then for a second: too soon for a machine
    // that other tests keep busy, where that is not what is tested.
    let timeout = if options == ["--shm", STALLED] { "100" } else { "5000" };
    let mut command = Command::new(prezero_tests::daemon::binary());
    command
        .env("PREZERO_WAIT_MS", timeout)
        .args(["run", "--socket"])
        .arg(socket)
        .arg("--log")
        .arg(log)
        .args(options)
        .arg("--")
        .args(program);
    command
}

/// Runs it to its end.
fn shimmed(socket: &Path, log: &Path, options: &[&str], program: &[&str]) -> Output {
    shim(socket, log, options, program).output().expect("prezero runs")
}

fn text(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {stderr} after\n{stdout}", output.status);
    assert_eq!(stderr, "", "nothing is said on standard error");
    stdout
}

/// How often the log has `text`.
fn logged(log: &Path, text: &str) -> usize {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    log.lines().filter(|line| line.contains(text)).count()
}

/// How often the log says that something was served.
fn served(log: &Path) -> usize {
    logged(log, "is served")
}

/// In steps, since an emulated machine does not zero all of it in one wait's time.
fn wait_until_filled(daemon: &Daemon) {
    for step in [60, 120, 180] {
        daemon.wait_for("being filled", |pool| pool.ready_pages >= Pages(step));
    }
    daemon.wait_for("ready", |pool| pool.ready_pages == Pages(240));
}

fn assert_same(how: &str, found: &str, expected: &str) {
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected, "{how}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{how}");
}

// Promise P70 (programs): A program finds under the shim what it finds without: served, unserved,
// with nothing ready, without a daemon and with one that does not answer.
// Promise P81 (programs): What P70 says holds for zeros, forks, partial unmapping, rights, moves,
// advice, unbacked parts, seals, passed descriptors, threads and signals, and on the kernel of
// Debian's backports.
// Promise P112 (programs): A served segment of System V answers as the kernel's: owner, times,
// sizes, errors. Detached by any call and removed, it is the daemon's again.
#[test]
fn a_program_finds_under_the_shim_what_it_finds_without() {
    let Some(pages) = reserve(PAGE, PAGES) else { return };
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

    // Whether calls find ready memory is not for a busy machine to decide.
    let config = format!("{}[workers]\nmax = 1\nsched_idle = false\n", PAGE.pool(POOL));
    let daemon = Daemon::start_with(Some(pages), &config, &[]);
    wait_until_filled(&daemon);
    let log_path = log("served");
    let found = shimmed(&daemon.socket(), &log_path, &["--shm"], &[program, "--shm"]);
    assert_same("served", &text(&found), &expected);
    let calls = served(&log_path);
    assert!(calls >= 25, "{calls} calls were served: {:?}", std::fs::read_to_string(&log_path));
    // Of one page each, ready or about to be.
    daemon.wait_for("all is returned", |pool| {
        let there = pool.kernel_free_pages + Pages(pool.blocks);
        pool.lent_pages + pool.draining_pages == Pages(0) && there >= Pages(PAGES - 1)
    });

    let others =
        shimmed(&daemon.socket(), &log("only"), &["--only", "no-such-program,another"], &[program]);
    assert_same("not meant", &text(&others), &expected[..expected.find("segment:").unwrap_or(0)]);
    assert_eq!(served(&log("only")), 0);

    let pid = Pid::from_raw(i32::try_from(daemon.pid()).expect("a pid"));
    kill(pid, Signal::SIGSTOP).expect("our own child");
    let options = ["--shm", STALLED];
    let found = shimmed(&daemon.socket(), &log("stopped"), &options, &[program, "--shm"]);
    kill(pid, Signal::SIGCONT).expect("our own child");
    let said = String::from_utf8_lossy(&found.stderr).into_owned();
    assert!(said.lines().count() == 1 && said.contains("did not answer"), "{said}");
    let found = Output { stderr: Vec::new(), ..found };
    assert_same("with a daemon that does not answer", &text(&found), &expected);
    assert_eq!(served(&log("stopped")), 0);
}

// Promise P70.
#[test]
fn a_program_gets_what_the_kernel_has_when_nothing_is_ready() {
    let Some(pages) = reserve(PAGE, PAGES) else { return };
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

// Promise P73 (programs): `run` ends with the code of its command.
#[test]
fn run_ends_with_the_code_of_its_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let run = |words: &[&str]| shimmed(dir.path(), &log, &[], words).status.code();
    assert_eq!(run(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(run(&["/nowhere/at-all"]), Some(127));
    assert_eq!(run(&["/"]), Some(126));
}

// Promise P114 (programs): `run` says in a line of what programs it can serve nothing.
/// A line on standard error for what nothing can be preloaded into, or is of no use to.
#[test]
fn run_says_of_what_programs_it_can_serve_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("program.c");
    let go =
        "__attribute__((section(\".note.go.buildid\"), used)) static const char id[] = \"x\";\n";
    let log = dir.path().join("log");
    for (name, text, arguments, said) in [
        ("static", "", &["-static"][..], "is static, so that nothing is preloaded into it"),
        ("static-pie", "", &["-static-pie"], "is static, so that nothing is preloaded into it"),
        ("go", go, &[], "is a Go program, which makes its calls past the C library"),
        (
            "asan",
            "",
            &["-fsanitize=address"],
            "has GCC's AddressSanitizer, which must be the first library",
        ),
        (
            "musl",
            "",
            &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"],
            "is linked with musl, and the shim needs glibc",
        ),
        ("dynamic", "", &[], ""),
    ] {
        std::fs::write(&source, format!("{text}int main(void) {{ return 3; }}\n"))
            .expect("written");
        let program = dir.path().join(name);
        let built =
            Command::new("gcc").arg("-o").arg(&program).arg(&source).args(arguments).status();
        assert!(built.expect("gcc runs").success(), "{name}");
        let program = program.to_str().expect("a plain path");
        let script = dir.path().join("script");
        std::fs::write(&script, format!("#!{program} -x\n")).expect("written");
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("our own file");
        for command in [program, script.to_str().expect("a plain path")] {
            let output = shimmed(dir.path(), &log, &[], &[command]);
            let line = format!(
                "prezero: {program} {said}: it gets no lent memory, but the kernel module serves it\n"
            );
            let expected = if said.is_empty() { "" } else { line.as_str() };
            assert_eq!(String::from_utf8_lossy(&output.stderr), expected, "{name}");
            // There need be no linker of musl's here.
            let has_linker = name != "musl" || Path::new("/lib/ld-musl-x86_64.so.1").exists();
            assert!(!has_linker || output.status.code() == Some(3), "{name}: {output:?}");
        }
    }
}

/// What `tests/c/page_size.c` finds of pages of one size is the same untouched and lent.
fn one_page_is_the_same(page: Page) {
    let Some(pages) = reserve(page, 2) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("page_size", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let shift = page.size().bytes().trailing_zeros().to_string();
    let kinds = ["shared", "shared-row", "memfd"];
    let expected = kinds.map(|kind| {
        let untouched = Command::new(program).args([&shift, kind]).output();
        text(&untouched.expect("the program runs"))
    });
    let daemon = Daemon::start_with(Some(pages), &page.pool("pages_per_block = 1"), &[]);
    for (kind, expected) in kinds.into_iter().zip(expected) {
        daemon.zero("max");
        daemon.wait_for("two ready pages", |pool| pool.ready_pages == Pages(2));
        let log = dir.path().join(kind);
        let found = shimmed(&daemon.socket(), &log, &[], &[program, &shift, kind]);
        assert_same(kind, &text(&found), &expected);
        let log_text = std::fs::read_to_string(&log).unwrap_or_default();
        let calls = if kind.ends_with("row") { 1 } else { 2 };
        assert_eq!(served(&log), calls, "{kind}: all calls are served: {log_text}");
        daemon.wait_for("all is returned", |p| p.lent_pages + p.draining_pages == Pages(0));
    }
}

// Promise P70.
#[test]
fn a_program_that_names_pages_of_2_mib_finds_the_same() {
    one_page_is_the_same(Page::Mib2);
}

// Promise P70.
#[test]
fn a_program_that_names_pages_of_1_gib_finds_the_same() {
    one_page_is_the_same(Page::Gib1);
}

/// What `tests/c/private.c` finds: `child` is whether children have private memory.
fn private_lines(child: bool) -> String {
    let (one, two) = (u8::from(child), u8::from(child) * 2);
    format!(
        "child: has its parent's private memory: {one}\n\
         child: ... all of it: {one}\n\
         child: shares shared memory: 1\n\
         child: maps zeros of its own: 1\n\
         child: a grandchild has its own, and its parent's: {}\n\
         child: its own stays: 3\n\
         child: unmaps its parent's: done\n\
         child: ... and nothing else: 3\n\
         parent: a child ends: 0\n\
         parent: the content is its own: 2\n\
         parent: the child's shared write is seen: 2\n\
         parent: it goes on writing: 2\n\
         parent: system: 7\n\
         parent: posix_spawn: 9\n\
         parent: a vfork shares: 3\n\
         parent: daemon() has what was mapped before it: {one}\n\
         parent: MADV_DONTFORK: done\n\
         parent: a child has the first page, and the second: {one}\n\
         parent: MADV_DOFORK: done\n\
         parent: a child has the first page, and the second: {}\n\
         parent: a child that lived on has the memory: {one}\n\
         parent: fork without room for a copy: done\n\
         parent: its child has the memory: {one}\n",
        one + two,
        one + two,
    )
}

// Promise P76 (programs): `run --private` serves private memory that a forked child does not have;
// nothing else lies in its place. Without the option private memory is the kernel's. A child that
// lives on holds nothing of its parent's loan.
#[test]
fn private_lent_memory_is_not_in_children() {
    let Some(pages) = reserve(PAGE, PAGES) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("private", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let found = Command::new(program).stdin(Stdio::null()).output().expect("the program runs");
    assert_same("untouched", &text(&found), &private_lines(true));

    // Whether calls find ready memory is not for a busy machine to decide.
    let config = format!("{}[workers]\nmax = 1\nsched_idle = false\n", PAGE.pool(POOL));
    let daemon = Daemon::start_with(Some(pages), &config, &[]);
    for (options, expected) in [(&["--private"][..], false), (&[], true)] {
        wait_until_filled(&daemon);
        let log = dir.path().join(expected.to_string());
        let mut command = shim(&daemon.socket(), &log, options, &[program]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = command.spawn().expect("prezero runs");
        // The child that lives on holds nothing of its parent's.
        daemon.wait_for("lent", |p| p.lent_pages > Pages(0));
        daemon.wait_for("all is returned", |p| p.lent_pages + p.draining_pages == Pages(0));
        assert!(running.try_wait().expect("our own child").is_none(), "it waits for us");
        drop(running.stdin.take());
        let found = running.wait_with_output().expect("our own child");
        assert_same(&format!("{options:?}"), &text(&found), &private_lines(expected));
    }

    let nobody = dir.path().join("no-socket");
    let mut command = shim(&nobody, &dir.path().join("log"), &["--private"], &[program]);
    let found = command.stdin(Stdio::null()).output().expect("prezero runs");
    assert_same("memory that is not lent is a child's", &text(&found), &private_lines(true));
}
