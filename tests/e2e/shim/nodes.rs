// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lent pages lie where the kernel's would: by the thread's memory policy, its cpuset, and the
//! policy of a range. Needs two nodes: a virtual machine has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use linux::{Roots, numa};
use prezero_tests::{Daemon, c};
use testkit::{hugepages, skip_always};
use units::{Node, Pages};

use super::{PAGE, assert_same, logged, served, shim, shimmed, text};

/// What `tests/c/nodes.c` has at a time, and the daemon ready on each node.
const READY: u64 = 96;

/// Pages on two nodes; `None` is a skip, which was counted.
fn two_nodes() -> Option<hugepages::Guard> {
    if numa::nodes(&Roots::default()).expect("a machine has nodes").len() < 2 {
        skip_always("this machine has one NUMA node");
        return None;
    }
    let wanted = [0, 1].map(|node| (PAGE.size(), Some(Node(node)), READY + 8));
    hugepages::reserve_all(&wanted)
}

fn start(pages: hugepages::Guard) -> Daemon {
    let pools = [0, 1].map(|node| PAGE.pool(&format!("node = {node}\nleave_free = 8")));
    Daemon::start_with(Some(pages), &pools.concat(), &[])
}

/// The running kernel's first two numbers.
fn release() -> (u32, u32) {
    let text = linux::cpu::release(&Roots::default()).expect("a kernel");
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    numbers.next().zip(numbers.next()).expect("two numbers")
}

/// Ready on these nodes, and on no others: their pages are the kernel's.
fn make_ready(daemon: &Daemon, nodes: &[&str]) {
    daemon.wait_for("all is returned", |_| {
        let pools = daemon.status().pools;
        pools.iter().all(|p| p.lent_pages + p.draining_pages == Pages(0))
    });
    let back = daemon.command(&["release", "all"]).output();
    assert!(back.expect("prezero runs").status.success());
    for node in nodes {
        let zero = daemon.command(&["zero", "max", "--node", node]).output();
        assert!(zero.expect("prezero runs").status.success(), "node {node}");
    }
}

// Promise P366 (programs): Private memory of a thread whose policy spreads pages over several nodes
// comes from all of them in the policy's ratio; so does shared memory on kernels from 6.17 on. Else
// the kernel serves it.
// Promise P79 (programs): On several nodes lent pages lie where the kernel's would by the memory
// policy and cpuset of the thread that maps, and by an `mbind` before the first touch; or the
// memory is not lent.
#[test]
fn pages_lie_where_the_policy_says() {
    let Some(pages) = two_nodes() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("nodes", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let expected = text(&Command::new(program).output().expect("the program runs"));

    let daemon = start(pages);
    for nodes in [&["0", "1"][..], &["0"], &["1"]] {
        make_ready(&daemon, nodes);
        let log = dir.path().join(nodes.concat());
        let found = shimmed(&daemon.socket(), &log, &["--private"], &[program]);
        let log_text = fs::read_to_string(&log).unwrap_or_default();
        assert_same(&format!("ready on {nodes:?}: {log_text}"), &text(&found), &expected);
        assert!(served(&log) >= 12, "{nodes:?}: {log_text}");
        // What was bound before the first touch: exchanged for what there is on node 1.
        let by = if nodes.contains(&"1") { "are lent from there" } else { "are the kernel's" };
        let exchanged = if nodes.contains(&"0") { 10 } else { 0 };
        assert!(logged(&log, by) >= exchanged, "{nodes:?}: {log_text}");
        // A shared mapping of several blocks takes a kernel whose mremap moves all of them.
        let spreads = logged(&log, "spreads pages over several nodes");
        let rows_move = release() >= (6, 17);
        assert_eq!(spreads, if rows_move { 0 } else { 1 }, "{nodes:?}: {log_text}");
        let too_few = logged(&log, "has too few ready pages");
        assert_eq!(too_few > 0, nodes.len() == 1, "{nodes:?}: {log_text}");
    }
}

/// A group whose processes may have pages of one node alone; removed when dropped.
struct Cpuset(PathBuf);

impl Cpuset {
    const ROOT: &str = "/sys/fs/cgroup";

    fn new(node: &str) -> Option<Self> {
        let root = Path::new(Self::ROOT);
        // There is no such file in hierarchies of version 1.
        if fs::write(root.join("cgroup.subtree_control"), "+cpuset").is_err() {
            skip_always("no cgroup of version 2 with cpusets is mounted");
            return None;
        }
        let dir = root.join(format!("prezero-cpuset-{}", std::process::id()));
        fs::create_dir(&dir).expect("root may");
        let set = Self(dir);
        fs::write(set.0.join("cpuset.mems"), node).expect("a node that there is");
        Some(set)
    }

    /// A command in the group.
    fn run(&self, command: &Command) -> Output {
        let join = r#"echo $$ > "$0/cgroup.procs" && exec "$@""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", join]).arg(&self.0).arg(command.get_program()).args(command.get_args());
        shell.env("PREZERO_WAIT_MS", "5000").output().expect("a shell")
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        // The kernel empties a group a moment after its last process was waited for.
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

// Promise P79.
#[test]
fn pages_lie_where_the_cpuset_says() {
    let Some(pages) = two_nodes() else { return };
    let Some(cpuset) = Cpuset::new("1") else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = c::compile("nodes", dir.path(), &[]);
    let program = program.to_str().expect("a plain path");
    let mut alone = Command::new(program);
    let expected = text(&cpuset.run(alone.arg("near")));
    assert_eq!(expected.matches(": 11\n").count(), 3, "all on node 1: {expected}");

    let daemon = start(pages);
    // Of node 0 there is nothing to be had, however much is ready.
    for (nodes, calls) in [(&["0", "1"][..], 3), (&["0"], 0), (&["1"], 3)] {
        make_ready(&daemon, nodes);
        let log = dir.path().join(nodes.concat());
        let found = cpuset.run(&shim(&daemon.socket(), &log, &["--private"], &[program, "near"]));
        let log_text = fs::read_to_string(&log).unwrap_or_default();
        assert_same(&format!("ready on {nodes:?}: {log_text}"), &text(&found), &expected);
        assert_eq!(served(&log), calls, "{nodes:?}: {log_text}");
    }
    // In a container, whose filter forbids to ask for the policy.
    make_ready(&daemon, &["0", "1"]);
    let log = dir.path().join("filtered");
    let run = shim(&daemon.socket(), &log, &["--private"], &[program, "filtered"]);
    let mut filtered = Command::new(program);
    filtered.arg("filter").arg(run.get_program()).args(run.get_args());
    let found = text(&cpuset.run(&filtered));
    let log_text = fs::read_to_string(&log).unwrap_or_default();
    assert_eq!(found.matches(": 11\n").count(), 2, "all on node 1: {found}{log_text}");
    assert_eq!(served(&log), 2, "{log_text}");
}
