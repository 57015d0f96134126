// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A restart that keeps its memory. No packaged consumer takes a file of content and goes on with
//! it, so this is a C program of ours, `tests/c/cache.c`.

use std::path::Path;
use std::process::Command;
use units::Pages;

use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, Page, c};
use testkit::hugepages;

use super::{is_wanted, succeeded};

/// Runs the program on ready memory, or on that owner's kept content, and returns its output.
fn start(daemon: &Daemon, program: &Path, owner: &str) -> String {
    daemon.zero("max");
    let mut command = Command::new(binary());
    command.arg("lend").arg("--socket").arg(daemon.socket());
    command.args(["16M", "--owner", owner, "--keep", "5m", "--"]).arg(program);
    succeeded(&command.output().expect("prezero runs")).trim().to_owned()
}

#[test]
fn cache_finds_its_content_after_a_restart_and_others_do_not() {
    let page = Page::Mib2;
    if is_wanted("gcc", "gcc").is_none() {
        return;
    }
    let Some(reserved) = hugepages::reserve(page.size(), 8) else { return };
    let daemon = Daemon::start_with(Some(reserved), &page.pool("pages_per_block = 8"), &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("cache", dir.path(), &[]);
    let start = |owner: &str| start(&daemon, &program, owner);
    assert_eq!(start("cache"), "cold: nothing kept, filled 4096 entries");
    assert_eq!(start("cache"), "warm: 4096 entries of generation 1");
    assert_eq!(start("cache"), "warm: 4096 entries of generation 2");
    daemon.client().release(None, None, None).expect("what is not kept");
    // The kept block fills the pool: another owner gets pages only when they are scrubbed.
    let pool = daemon.pool();
    assert_eq!((pool.kept_pages, pool.lent_pages), (Pages(8), Pages(0)), "{pool:?}");
}

#[test]
fn another_owner_gets_zeros() {
    let page = Page::Mib2;
    if is_wanted("gcc", "gcc").is_none() {
        return;
    }
    let Some(reserved) = hugepages::reserve(page.size(), 16) else { return };
    let daemon = Daemon::start_with(Some(reserved), &page.pool("pages_per_block = 8"), &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("cache", dir.path(), &[]);
    let start = |owner: &str| start(&daemon, &program, owner);
    assert_eq!(start("one"), "cold: nothing kept, filled 4096 entries");
    assert_eq!(start("two"), "cold: nothing kept, filled 4096 entries");
    assert_eq!(start("one"), "warm: 4096 entries of generation 1");
}
