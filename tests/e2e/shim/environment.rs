// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the environment says to the shim, in programs that never asked for it: whatever that is, it
//! breaks none.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, c};

use super::{PAGE, assert_same, reserve, text};

/// What answers anything with something that is no answer.
fn babble(socket: &Path) {
    let listener = std::os::unix::net::UnixListener::bind(socket).expect("a new path");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Whoever hangs up early is none the worse.
            let _ = stream.and_then(|mut stream| stream.write_all(b"{\"error\":\xff}\0[[[\0"));
        }
    });
}

// Promise P78 (programs): No value of a `PREZERO_` variable, no log that cannot be written and no
// daemon that hangs up breaks a program under the shim: malformed values are ignored.
#[test]
fn environment_breaks_no_program() {
    let Some(pages) = reserve(PAGE, 8) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("page_size", dir.path(), &[]);
    let words = ["21", "shared"];
    let expected = text(&Command::new(&program).args(words).output().expect("the program runs"));
    let daemon = Daemon::start_with(Some(pages), &PAGE.pool("leave_free = 4"), &[]);
    let shim = binary().with_file_name("libprezero_preload.so");

    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).expect("a new path");
    let babbler = dir.path().join("babbler");
    babble(&babbler);
    let long = "x/".repeat(4000);
    let nowhere = dir.path().join("no/such/directory");
    let (dir_path, file) = (dir.path().as_os_str(), program.as_os_str());
    let bad = OsStr::from_bytes(b"\xff\xfe");
    let os = OsStr::new;
    // The value, and whether calls are still served.
    let table: &[(&str, &[(&OsStr, bool)])] = &[
        (
            "PREZERO_WAIT_MS",
            &[
                (os(""), true),
                (os("0"), true),
                (os("-1"), true),
                (os("soon"), true),
                (os("1e3"), true),
                (os("60001"), true),
                (os("18446744073709551615"), true),
                (os("99999999999999999999999"), true),
                (bad, true),
            ],
        ),
        ("PREZERO_PRIVATE", &[(os(""), true), (os("copy"), true), (os("11"), true), (bad, true)]),
        ("PREZERO_SECCOMP_FILTERS", &[(os(""), true), (os("many"), true), (os("7"), false)]),
        ("PREZERO_SHM", &[(os(""), true), (os("yes"), true), (os("11"), true), (bad, true)]),
        (
            "PREZERO_ONLY",
            &[
                (os(""), true),
                (os(",,,"), false),
                (os(&long), false),
                (bad, false),
                (os("another,page_size,"), true),
            ],
        ),
        (
            "PREZERO_SOCKET",
            &[
                (os(""), false),
                (os(&long), false),
                (nowhere.as_os_str(), false),
                (dir_path, false),
                (file, false),
                (bad, false),
                (babbler.as_os_str(), false),
            ],
        ),
        (
            "PREZERO_SHIM_LOG",
            &[
                (os(""), true),
                (os("0"), true),
                (os(&long), true),
                (nowhere.as_os_str(), true),
                (dir_path, true),
                (fifo.as_os_str(), true),
                (os("/dev/full"), true),
                (bad, true),
            ],
        ),
    ];
    for (name, values) in table {
        for (value, served_then) in *values {
            daemon.zero("max");
            let before = daemon.status().counters.loans;
            let how = format!("{name}={value:?}");
            let mut command = Command::new(&program);
            command
                .args(words)
                .current_dir(dir.path())
                .env("LD_PRELOAD", &shim)
                .env("PREZERO_SOCKET", daemon.socket())
                .env(name, value);
            let found = text(&command.output().expect("the program runs"));
            assert_same(&how, &found, &expected);
            let granted = daemon.status().counters.loans - before;
            assert_eq!(granted > 0, *served_then, "{how}: {granted} loans");
        }
    }
}

// Promise P78.
/// A shell that has closed its end, as `program 2>&1 | head -1` does.
#[test]
fn unread_log_ends_no_program() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("page_size", dir.path(), &[]);
    let Some(_pages) = reserve(PAGE, 2) else { return };
    let (read, write) = std::io::pipe().expect("a pipe");
    drop(read);
    let words = ["21", "shared"];
    let expected = text(&Command::new(&program).args(words).output().expect("the program runs"));
    let shim = binary().with_file_name("libprezero_preload.so");
    let mut command = Command::new(&program);
    command
        .args(words)
        .env("LD_PRELOAD", &shim)
        .env("PREZERO_SOCKET", dir.path().join("no-socket"))
        .env("PREZERO_SHIM_LOG", "stderr")
        .stderr(write);
    assert_same("with a broken pipe", &text(&command.output().expect("it runs")), &expected);
}
