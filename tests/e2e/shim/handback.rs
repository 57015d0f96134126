// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls that stay the kernel's find pages while the daemon has ready ones.

use prezero_tests::{Daemon, c};
use units::Pages;

use super::{PAGE, logged, reserve, shimmed, text};

/// The cases of `tests/c/handback.c`: each wants 8 pages.
const CASES: [&str; 5] = ["grows", "named", "private", "allocates", "segment"];

// Promise P401 (programs): A call that stays the kernel's and finds too few free pages finds those
// that are ready: for a file that grows piece by piece, a file with a name, private memory, an
// allocation and a segment with a key.
#[test]
fn kernels_own_calls_find_the_ready_pages() {
    let Some(pages) = reserve(PAGE, 10) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("handback", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let mount = dir.path().join("huge");
    let mounted = linux::mount::mount(&mount, PAGE.size()).expect("root mounts");
    let daemon = Daemon::start_with(Some(pages), &PAGE.pool("pages_per_block = 2"), &[]);
    for case in CASES {
        daemon.zero("max");
        let ready = daemon.pool().ready_pages;
        assert!(ready >= Pages(10), "the kernel's pool has too few for {case}: {ready} ready");
        let log = dir.path().join(case);
        let words = [program, case, mount.to_str().expect("a plain path")];
        assert_eq!(text(&shimmed(&daemon.socket(), &log, &[], &words)), "zeros\n", "{case}");
        assert!(logged(&log, "ready ones are free for it now") >= 1, "{case}");
        daemon.wait_for("all is returned", |p| p.lent_pages + p.draining_pages == Pages(0));
    }
    drop(daemon);
    mounted.detach().expect("our own mount");
}

// Promise P402 (programs): A memfd that is first mapped without any memory takes no ready page.
#[test]
fn sparse_memfd_takes_no_ready_page() {
    let Some(pages) = reserve(PAGE, 10) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("handback", dir.path(), &[]);
    let daemon = Daemon::start_with(Some(pages), &PAGE.pool("pages_per_block = 2"), &[]);
    daemon.zero("max");
    let ready = daemon.pool().ready_pages;
    let log = dir.path().join("log");
    let words = [program.to_str().expect("a plain path"), "sparse", "-"];
    assert_eq!(text(&shimmed(&daemon.socket(), &log, &[], &words)), "zeros\n");
    assert!(logged(&log, "MAP_NORESERVE asks for address space alone") == 1);
    let pool = daemon.pool();
    assert_eq!((pool.ready_pages, pool.draining_pages), (ready, Pages(0)));
}
