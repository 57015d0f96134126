// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C library's own huge pages for `malloc` (`glibc.malloc.hugetlb`), whose calls nobody can
//! stand before: they do no harm beside what is lent, and it is said that they are not.

use std::process::Command;
use units::Pages;

use prezero_tests::{Daemon, c};

use super::{PAGE, assert_same, logged, reserve, served, shim, text};

// Promise P212 (programs): A `malloc` that takes huge pages past the shim goes on beside lent
// memory as without, and it is said that its pages are not lent.
#[test]
fn malloc_with_its_own_huge_pages_is_named_and_goes_on() {
    let Some(pages) = reserve(PAGE, 160) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("malloc", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let daemon = Daemon::start_with(Some(pages), &PAGE.pool("leave_free = 120"), &[]);
    let tunable = |value: &str| format!("glibc.malloc.check=0:glibc.malloc.hugetlb={value}");
    for (value, is_notified) in [("0", false), ("1", false), ("2", true), ("2097152", true)] {
        let mut alone = Command::new(program);
        let expected = alone.env("GLIBC_TUNABLES", tunable(value)).output().expect("it runs");
        daemon.zero("max");
        let log = dir.path().join(value);
        let mut command = shim(&daemon.socket(), &log, &[], &[program]);
        let mut found = command.env("GLIBC_TUNABLES", tunable(value)).output().expect("it runs");
        let said = String::from_utf8_lossy(&std::mem::take(&mut found.stderr)).into_owned();
        let line =
            "prezero: GLIBC_TUNABLES has malloc take huge pages by itself: those are not lent\n";
        assert_eq!(said, if is_notified { line } else { "" }, "{value}");
        assert_same(value, &text(&found), &text(&expected));
        assert_eq!(logged(&log, "malloc takes huge pages by itself"), usize::from(is_notified));
        assert!(served(&log) >= 4, "its own mappings are lent: {}", served(&log));
        daemon.wait_for("all is returned", |p| p.lent_pages + p.draining_pages == Pages(0));
    }
    // One that sets it for what it starts: no other call comes to the shim there.
    let log = dir.path().join("env");
    let words = ["env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=2", "true"];
    let found = shim(&daemon.socket(), &log, &[], &words).output().expect("it runs");
    assert_eq!(text(&found), "");
    assert_eq!(logged(&log, "malloc takes huge pages by itself"), 1);
}
