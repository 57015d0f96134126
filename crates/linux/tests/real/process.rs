// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a worker does to itself: CPUs, nice value, policy, control group.

use std::time::{Duration, Instant};

use linux::cgroup::{self, Kind};
use linux::sched::{self, Policy};
use linux::{CpuSet, Roots};
use testkit::{child, skip};

#[test]
fn a_worker_takes_its_place_and_reads_it_back() {
    let _alone = child::alone();
    let allowed = sched::affinity().unwrap();
    let worker = child::fork(|_| {
        let last = allowed.iter().last().unwrap();
        let one: CpuSet = [last].into_iter().collect();
        sched::set_affinity(&one).unwrap();
        assert_eq!(sched::affinity().unwrap(), one);
        sched::set_nice(7).unwrap();
        assert_eq!(sched::nice().unwrap(), 7);
        assert_eq!(sched::policy().unwrap(), Policy::Other);
        sched::set_idle().unwrap();
        assert_eq!(sched::policy().unwrap(), Policy::Idle);
        0
    });
    assert_eq!(worker.wait(), Some(0));
    assert_eq!(sched::affinity().unwrap(), allowed, "the parent's are its own");
}

#[test]
fn a_worker_runs_like_another_thread() {
    let _alone = child::alone();
    let allowed = sched::affinity().unwrap();
    let one: CpuSet = allowed.iter().last().into_iter().collect();
    let model = child::fork(|ready| {
        sched::set_affinity(&one).unwrap();
        sched::set_nice(11).unwrap();
        sched::set_idle().unwrap();
        ready.signal();
        ready.hold()
    });
    model.wait_ready();
    let worker = child::fork(|_| {
        sched::copy_scheduling(model.pid()).unwrap();
        let place = (sched::affinity().unwrap(), sched::nice().unwrap(), sched::policy().unwrap());
        assert_eq!(place, (one.clone(), 11, Policy::Idle));
        0
    });
    assert_eq!(worker.wait(), Some(0));
    model.kill();
    let gone = sched::copy_scheduling(u32::MAX).unwrap_err().to_string();
    assert!(gone.contains("larger than any"), "{gone}");
}

#[test]
fn cpus_that_are_not_there_are_refused() {
    let none = sched::set_affinity(&CpuSet::default()).unwrap_err().to_string();
    assert_eq!(none, "cpu list \"\" names no cpu");
    let error = sched::set_affinity(&"65535".parse().unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("sched_setaffinity(0, 65535) = EINVAL"), "{error}");
}

#[test]
fn time_is_charged_to_the_group_that_was_joined() {
    let _alone = child::alone();
    let roots = Roots::default();
    let path = format!("/prezero-test-{}", std::process::id());
    let groups = cgroup::everywhere(&roots, &path).unwrap();
    if groups.is_empty() {
        return skip("no control groups are mounted");
    }
    for group in groups {
        if let Err(error) = group.create() {
            skip(&error.to_string());
            continue;
        }
        group.create().expect("a group that exists is left as it is");
        let worker = child::fork(|ready| {
            group.join().unwrap();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(100) {
                std::hint::spin_loop();
            }
            assert!(cgroup::own(&roots).unwrap().contains(&group));
            ready.signal();
            ready.hold()
        });
        worker.wait_ready();
        assert_eq!(group.pids().unwrap(), [worker.pid()]);
        let used = group.cpu_time().unwrap();
        match group.kind() {
            // A loaded machine gives less than it lasted, but never nothing.
            Kind::V2 | Kind::V1Cpuacct => {
                assert!(used.unwrap() > Duration::from_millis(5), "{used:?}")
            }
            Kind::V1Cpu | Kind::V1Hugetlb => assert_eq!(used, None),
        }
        worker.kill();
        remove_soon(&group);
    }
}

#[test]
fn a_thread_alone_is_held_to_its_groups_quota() {
    let _alone = child::alone();
    let roots = Roots::default();
    let own = cgroup::own(&roots).unwrap();
    let limits = |group: &&cgroup::Group| matches!(group.kind(), Kind::V2 | Kind::V1Cpu);
    let mut tried = 0;
    for parent in own.iter().filter(limits) {
        let name = format!("prezero-quota-{}", std::process::id());
        let path = format!("{}/{name}", parent.path().trim_end_matches('/'));
        let group = cgroup::Group::at(&roots, parent.kind(), &path).unwrap().unwrap();
        if let Err(error) = group.create() {
            skip(&error.to_string());
            continue;
        }
        let (quota, period) = (Duration::from_millis(10), Duration::from_millis(100));
        if group.limit_cpu(quota, period).unwrap() {
            tried += 1;
            let spent = std::thread::scope(|scope| {
                scope
                    .spawn(|| {
                        group.join_thread().unwrap();
                        let begun = Instant::now();
                        while begun.elapsed() < Duration::from_secs(1) {
                            std::hint::spin_loop();
                        }
                        thread_cpu()
                    })
                    .join()
                    .unwrap()
            });
            // A tenth of a second, and what a period that was begun allows besides.
            assert!(spent < Duration::from_millis(500), "{spent:?} of 1 s with a quota of 10 %");
        }
        remove_soon(&group);
    }
    if tried == 0 {
        skip("no hierarchy here limits CPU time");
    }
}

/// `utime` and `stime` of proc_pid_stat(5), in ticks of 10 ms.
fn thread_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = text.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2).map(|f| f.parse::<u64>().unwrap()).sum::<u64>();
    Duration::from_millis(10 * ticks)
}

/// The kernel empties a group a moment after its last process was waited for.
fn remove_soon(group: &cgroup::Group) {
    let begun = Instant::now();
    while let Err(error) = group.remove() {
        assert!(begun.elapsed() < Duration::from_secs(5), "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
