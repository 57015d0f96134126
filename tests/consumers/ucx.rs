// SPDX-License-Identifier: Apache-2.0 OR MIT
//! UCX, below Open MPI and others, which has to know of each memory that is unmapped: what it has
//! registered with a device it keeps registered until then.

use std::process::{Command, Output};

use prezero_tests::{Daemon, Page, c};
use testkit::{hugepages, skip};

use super::{assert_returned, assert_served, is_wanted, run, succeeded};

const PAGE: Page = Page::Mib2;

// Promise P211.
#[test]
fn ucx_sees_unmapped_memory_that_was_lent() {
    if is_wanted("ucx_info", "ucx-utils").is_none() {
        return;
    }
    if !std::path::Path::new("/usr/include/ucm/api/ucm.h").exists() {
        return skip("UCX's headers are not installed: apt-get install libucx-dev");
    }
    let Some(reserved) = hugepages::reserve(PAGE.size(), 16) else { return };
    let daemon = Daemon::start_with(Some(reserved), &PAGE.pool("leave_free = 6"), &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("hooks", dir.path(), &["-lucm", "-lucs"]);
    let log = dir.path().join("shim.log");
    // By patches in the functions themselves, UCX's default, and in the tables of who calls them.
    for mode in ["bistro", "reloc"] {
        let said = |mut command: Command| {
            let output: Output =
                command.env("UCX_MEM_MMAP_HOOK_MODE", mode).output().expect("runs");
            succeeded(&output)
        };
        let expected = said(Command::new(&program));
        assert_eq!(expected.matches(": told").count(), 5, "{expected}");
        daemon.zero("max");
        let mut command = run(&daemon, &log, &[]);
        command.arg(&program);
        assert_eq!(said(command), expected, "{mode}");
        assert_returned(&daemon);
    }
    // With tables patched the program's calls go to UCX, and from there past the shim.
    assert_eq!(assert_served(&log).len(), 1);
}
