// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel says of a process: for tests that count what is left over.

use nix::unistd::Pid;

/// Its resident memory, in KiB.
///
/// # Panics
/// If it has ended.
#[must_use]
pub fn resident_kib(pid: u32) -> u64 {
    of_status(pid, "VmRSS:")
}

/// How many threads it has.
///
/// # Panics
/// If it has ended.
#[must_use]
pub fn threads(pid: u32) -> u64 {
    of_status(pid, "Threads:")
}

/// How many descriptors it has open.
///
/// # Panics
/// If it has ended.
#[must_use]
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").count()
}

/// The processes that its first thread has started and not waited for: of a daemon, its workers.
#[must_use]
pub fn children(pid: u32) -> Vec<Pid> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    children.split(' ').filter_map(|pid| pid.trim().parse().ok()).map(Pid::from_raw).collect()
}

fn of_status(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a process");
    line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}
