// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zeroing for a writer of the tree: in its place, and at its expense.

use std::fs;
use std::time::{Duration, Instant};
use units::Pages;

use linux::cgroup::{self, Group, Kind};
use linux::{CpuSet, Roots, sched};
use prezero_tests::Daemon;
use prezero_tests::daemon::WAIT_TIMEOUT;
use testkit::child::{alone, fork};
use testkit::skip;

use crate::tree::{daemon, delegated_workers, domain};

/// A control group of the test's own in every hierarchy; removed when dropped.
struct Groups {
    path: String,
    groups: Vec<Group>,
}

impl Groups {
    fn make(name: &str) -> Option<Self> {
        let path = format!("/prezero-{name}-{}", std::process::id());
        let groups = cgroup::everywhere(&Roots::default(), &path).expect("a good path");
        // The pages belong to the daemon: they stay uncharged to the writer.
        let groups: Vec<_> =
            groups.into_iter().filter(|group| group.kind() != Kind::V1Hugetlb).collect();
        if groups.is_empty() {
            skip("no control groups are mounted");
            return None;
        }
        for group in &groups {
            group.create().expect("root may");
        }
        Some(Self { path, groups })
    }

    fn join(&self) {
        self.groups.iter().for_each(|group| group.join().expect("root may"));
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.groups {
            let begun = Instant::now();
            // The kernel empties a group a moment after its last process was waited for.
            while group.remove().is_err() && begun.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// CPUs, nice value, policy and groups (those of our path) of a process.
fn place(pid: u32, path: &str) -> Option<(String, i32, u32, usize)> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let status = read("status")?;
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let stat = read("stat")?;
    let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let (nice, policy) = (fields[16].parse().ok()?, fields[38].parse().ok()?);
    let groups = cgroup::of_process(&Roots::default(), pid).ok()?;
    let groups = groups.iter().filter(|group| group.path() == path).count();
    Some((cpus.trim().to_owned(), nice, policy, groups))
}

fn find_delegated_worker(daemon: &Daemon, path: &str, expected: &(String, i32, u32, usize)) {
    let begun = Instant::now();
    let mut seen = Vec::new();
    while !seen.iter().any(|place| place == expected) {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "no delegated worker is at {expected:?}: {seen:?}");
        seen.extend(delegated_workers(daemon).into_iter().filter_map(|pid| place(pid, path)));
        seen.dedup();
    }
}

// Promise P42 (tree): Zeroing for a writer runs in its control groups (v2 and v1), with its CPUs,
// nice value and scheduling policy, and is charged there.
#[test]
fn delegated_worker_runs_in_its_writers_context() {
    let _alone = alone();
    let Some(daemon) = daemon(256, "") else { return };
    let Some(groups) = Groups::make("where") else { return };
    let file = domain(&daemon).join("zeroable_hugepages");
    let last = sched::affinity().expect("some cpus").iter().last().expect("one");
    let one: CpuSet = [last].into_iter().collect();
    let writer = fork(|_| {
        groups.join();
        sched::set_affinity(&one).expect("an allowed cpu");
        sched::set_nice(13).expect("a higher value");
        sched::set_idle().expect("everybody may");
        i32::from(fs::write(&file, "max").is_err())
    });
    let idle = 5;
    let expected = (one.to_string(), 13, idle, groups.groups.len());
    find_delegated_worker(&daemon, &groups.path, &expected);
    writer.kill();
    daemon.wait_for("ended", |pool| pool.zeroing_pages == Pages(0));
}

// Promise P42.
#[test]
fn zeroing_is_charged_to_the_writers_group() {
    let _alone = alone();
    let Some(daemon) = daemon(256, "") else { return };
    let Some(groups) = Groups::make("charge") else { return };
    let file = domain(&daemon).join("zeroable_hugepages");
    let writer = fork(|_| {
        groups.join();
        i32::from(fs::write(&file, "max").is_err())
    });
    assert_eq!(writer.wait(), Some(0));
    assert_eq!(daemon.pool().ready_pages, Pages(256));
    let times = groups.groups.iter().filter_map(|g| g.cpu_time().expect("a number"));
    let times: Vec<_> = times.collect();
    assert!(!times.is_empty());
    for time in times {
        // 512 MiB at 20 GB/s, which no single CPU's kernel reaches. The writer only slept.
        assert!(time > Duration::from_millis(25), "{time:?}");
    }
}
