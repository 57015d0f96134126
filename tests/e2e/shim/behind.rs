// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other libraries that stand before the C library's calls, behind the shim: what of memory that a
//! program maps, moves and unmaps they see without it, they see with it.

use std::process::Command;
use units::Pages;

use prezero_tests::{Daemon, c};

use super::{PAGE, assert_same, reserve, served, text};

// Promise P211 (programs): Other interposers of a program's memory calls see the same under the
// shim as without it; of lent memory its end, its moves and its advice.
/// UCX, libhugetlbfs and profilers are such; a program under the shim made these calls past them.
#[test]
fn library_loaded_behind_the_shim_sees_a_programs_calls() {
    let Some(pages) = reserve(PAGE, 16) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let beside = tempfile::tempdir().expect("a directory");
    let program = c::compile_with("behind", dir.path(), &[]);
    let library = c::compile_with("behind", beside.path(), &["-shared", "-fPIC", "-DLIBRARY"]);
    let shim = prezero_tests::daemon::binary().with_file_name("libprezero_preload.so");
    let daemon = Daemon::start_with(Some(pages), &PAGE.pool("leave_free = 6"), &[]);
    let log = dir.path().join("log");
    // By the handle of the C library it finds the shim's functions, which pass on to it again.
    for how in ["next", "handle"] {
        let run = |preload: &str| {
            let mut command = Command::new(&program);
            command.env("LD_PRELOAD", preload).env("BEHIND", how);
            command.env("PREZERO_SOCKET", daemon.socket()).env("PREZERO_WAIT_MS", "5000");
            command.env("PREZERO_PRIVATE", "1");
            command.env("PREZERO_SHIM_LOG", &log);
            text(&command.output().expect("the program runs"))
        };
        let library = library.display();
        let expected = run(&library.to_string());
        assert_eq!(expected.matches(": seen, ").count(), 14, "{expected}");
        daemon.zero("max");
        let found = run(&format!("{}:{library}", shim.display()));
        assert_same(how, &found, &expected);
        daemon.wait_for("all is returned", |p| p.lent_pages + p.draining_pages == Pages(0));
    }
    assert_eq!(served(&log), 2, "the huge pages of each were lent");
}
