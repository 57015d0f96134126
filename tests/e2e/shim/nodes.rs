// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lent pages lie where the kernel's would: by the thread's memory policy, its cpuset, and the policy
//! of a range. Needs two nodes: a virtual machine has them.

use std::process::Command;

use linux::testkit::hugepages;
use linux::{NodeId, Roots, numa};
use prezero_tests::{Daemon, c};

use super::{PAGE, assert_same, logged, served, shimmed, text};

/// What `tests/c/nodes.c` has at a time, and the daemon ready on each node.
const READY: u64 = 96;

#[test]
fn pages_lie_where_the_policy_says() {
    if numa::nodes(&Roots::default()).expect("a machine has nodes").len() < 2 {
        linux::testkit::skip_for_ever("this machine has one NUMA node");
        return;
    }
    let wanted = [0, 1].map(|node| (PAGE.bytes(), Some(NodeId(node)), READY + 8));
    let Some(pages) = hugepages::reserve_all(&wanted) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("nodes", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let expected = text(&Command::new(program).output().expect("the program runs"));

    let pools = [0, 1].map(|node| PAGE.pool(&format!("node = {node}\nleave_free = 8")));
    let daemon = Daemon::start_with(Some(pages), &pools.concat(), &[]);
    // Ready on both nodes, and on one alone: then the other's are the kernel's.
    for nodes in [&["0", "1"][..], &["0"], &["1"]] {
        daemon.command(&["give-back", "all"]).output().expect("prezero runs");
        for node in nodes {
            let zero = daemon.command(&["zero", "max", "--node", node]).output();
            assert!(zero.expect("prezero runs").status.success(), "node {node}");
        }
        let log = dir.path().join(nodes.concat());
        let found = shimmed(&daemon.socket(), &log, &[], &[program]);
        let log_text = std::fs::read_to_string(&log).unwrap_or_default();
        assert_same(&format!("ready on {nodes:?}: {log_text}"), &text(&found), &expected);
        assert!(served(&log) >= 12, "{nodes:?}: {log_text}");
        // What was bound before the first touch: exchanged for what there is on node 1.
        let by = if nodes.contains(&"1") { "are lent from there" } else { "are the kernel's" };
        let exchanged = if nodes.contains(&"0") { 10 } else { 0 };
        assert!(logged(&log, by) >= exchanged, "{nodes:?}: {log_text}");
        assert_eq!(logged(&log, "spreads pages over nodes 0,1"), 1, "{nodes:?}: {log_text}");
        daemon.wait_for("all is returned", |_| {
            let pools = daemon.status().pools;
            pools.iter().all(|p| p.lent_pages + p.lingering_pages == 0)
        });
    }
}
