// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's view of a process: for tests that count remains.

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

/// The processes that it has started and that have not ended: of a daemon, its workers.
///
/// Every process is asked for its parent (proc_pid_stat(5)): kernels of test machines have no
/// list of children, `CONFIG_PROC_CHILDREN`.
#[must_use]
pub fn children(pid: u32) -> Vec<Pid> {
    let is_child = |child: &Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        // Its state, then its parent, behind a command that may have spaces and parentheses.
        let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
        let mut fields = fields.split(' ');
        fields.next() != Some("Z") && fields.next().and_then(|f| f.parse().ok()) == Some(pid)
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.map(Pid::from_raw).filter(is_child).collect()
}

fn of_status(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a process");
    line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}
