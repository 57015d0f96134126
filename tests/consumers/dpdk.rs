// SPDX-License-Identifier: Apache-2.0 OR MIT
//! DPDK's testpmd with memory of its own: a memfd per huge page.

use std::path::Path;
use std::process::Command;

use prezero_tests::{Daemon, Page};
use testkit::hugepages;

use super::{assert_returned, assert_served, is_wanted, run, succeeded};

const PAGE: Page = Page::Mib2;
const PAGES: u64 = 300;

/// Two ports that make and take packets by themselves, a mempool of 218 MB, a memfd a page.
pub(super) const ARGUMENTS: [&str; 12] = [
    "--in-memory",
    "--no-pci",
    "--no-telemetry",
    "--iova-mode=va",
    "-l",
    "0,1",
    "--vdev=net_null0",
    "--vdev=net_null1",
    "--",
    "--total-num-mbufs=100000",
    "--tx-first",
    "--stats-period=1",
];

/// Runs it for a while with two ports that make and take packets by themselves.
fn forward(command: &mut Command) {
    command.args(ARGUMENTS);
    let said = succeeded(&command.output().expect("testpmd runs"));
    assert!(said.contains("Bye..."), "{said}");
}

/// testpmd runs until it is told to stop: SIGINT ends it well.
fn for_two_seconds() -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=INT", "--preserve-status", "2"]);
    command
}

// Promise P80.
#[test]
fn testpmd_forwards_on_lent_pages() {
    let Some(program) = is_wanted("dpdk-testpmd", "dpdk-dev") else { return };
    let Some(reserved) = hugepages::reserve(PAGE.size(), PAGES) else { return };
    forward(for_two_seconds().arg(&program));
    let daemon = Daemon::start_with(Some(reserved), &PAGE.pool("leave_free = 20"), &[]);
    daemon.zero("max");
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("shim.log");
    forward(under_the_shim(&daemon, &log).arg(&program));
    // A mempool of 218 MB, a memfd a page.
    assert!(assert_served(&log).len() >= 100, "{}", assert_served(&log).len());
    assert_returned(&daemon);
}

fn under_the_shim(daemon: &Daemon, log: &Path) -> Command {
    let shim = run(daemon, log, &["--only", "dpdk-testpmd"]);
    let mut command = for_two_seconds();
    command.arg(shim.get_program()).args(shim.get_args()).env("PREZERO_WAIT_MS", "5000");
    command
}
