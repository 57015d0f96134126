// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Thresholds, the daemon's own workers, and pages left for others.

use std::time::{Duration, Instant};

use linux::{Mapping, Roots, hugetlb};
use prezero_tests::{Daemon, Page};
use testkit::hugepages;
use units::Pages;
use wire::PoolChange;

// Promise P20 (work): Background zeroing has hysteresis between its thresholds.
#[test]
fn own_workers_fill_to_high_and_start_again_below_low() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 16, &page.pool("ready_low = 4\nready_high = 8")) else {
        return;
    };
    daemon.wait_for("filled", |p| p.ready_pages == Pages(8));
    let loans: Vec<_> = (0..4).map(|_| daemon.lend(page, 1)).collect();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(daemon.pool().ready_pages, Pages(4), "at the low threshold nothing is zeroed yet");
    let one_more = daemon.lend(page, 1);
    daemon.wait_for("filled again", |p| p.ready_pages == Pages(8));
    drop((loans, one_more));
}

// Promise P19 (work): The daemon's workers run in the configured CPUs, nice value, policy and
// cgroup, so that their time is charged there.
#[test]
fn own_workers_run_in_their_configured_context() {
    let page = Page::Gib1;
    let group = "/sys/fs/cgroup/cpu/prezero-test";
    if !std::path::Path::new("/sys/fs/cgroup/cpu").exists() {
        testkit::skip("no cgroup v1 cpu hierarchy here; v2 is tested in the VM");
        return;
    }
    let config = format!(
        "[workers]\nmax = 2\ncpus = \"1\"\nnice = 7\ncgroup = \"{group}\"\n{}",
        page.pool("ready_high = 2")
    );
    let Some(daemon) = Daemon::start(page, 2, &config) else { return };
    let mut seen = None;
    for _ in 0..2000 {
        seen = find_worker(daemon.pid());
        if seen.is_some() || daemon.pool().ready_pages == Pages(2) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    daemon.wait_for("filled", |p| p.ready_pages == Pages(2));
    let worker = seen.expect("a worker was seen at work");
    assert_eq!(worker, ("1".into(), "7".into(), "5".into(), "/prezero-test".into()));
    daemon.wait_for("idle", |_| daemon.status().workers == 0);
    std::fs::remove_dir(group).expect("an empty group");
}

// Promise P193 (work): A worker's control group that is named without a slash is below the
// daemon's own, in each hierarchy.
#[test]
fn own_workers_run_in_a_group_below_the_daemons() {
    let page = Page::Mib2;
    let config =
        format!("[workers]\ncgroup = \"prezero-test-workers\"\n{}", page.pool("ready_high = 8"));
    let roots = linux::Roots::default();
    // The daemon is in the same ones.
    let own = linux::cgroup::own(&roots).expect("procfs");
    let below = own.iter().filter_map(|group| {
        let path = format!("{}/prezero-test-workers", group.path().trim_end_matches('/'));
        linux::cgroup::Group::at(&roots, group.kind(), &path).expect("a good path")
    });
    let below: Vec<_> = below.collect();
    if below.is_empty() {
        testkit::skip("no control groups are mounted here");
        return;
    }
    let Some(daemon) = Daemon::start(page, 8, &config) else { return };
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(8));
    daemon.wait_for("idle", |_| daemon.status().workers == 0);
    let used: Vec<_> = below.iter().map(|group| group.cpu_time().expect("it was made")).collect();
    assert!(used.iter().flatten().all(|time| !time.is_zero()), "{used:?}");
    below.iter().for_each(|group| group.remove().expect("an empty group"));
}

/// CPU list, nice value, scheduling policy and cpu cgroup of a child of `daemon` that has set
/// itself up.
fn find_worker(daemon: u32) -> Option<(String, String, String, String)> {
    let children = format!("/proc/{daemon}/task/{daemon}/children");
    for pid in std::fs::read_to_string(children).ok()?.split_whitespace() {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        let cpus = read("status")?
            .lines()
            .find_map(|l| l.strip_prefix("Cpus_allowed_list:").map(|c| c.trim().to_owned()))?;
        let stat = read("stat")?;
        let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let (nice, policy) = (fields[16].to_owned(), fields[38].to_owned());
        let group = read("cgroup")?
            .lines()
            .find_map(|l| l.split_once(":cpu:").map(|(_, g)| g.to_owned()))?;
        if policy == "5" && group != "/" {
            return Some((cpus, nice, policy, group));
        }
    }
    None
}

// Promise P16 (fallback): `leave_free` pages stay free in the kernel's pool, and are given back
// when others take them.
#[test]
fn last_pages_are_left_free_and_released_when_others_need_them() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 8, &page.pool("leave_free = 3")) else { return };
    daemon.zero("max");
    assert_eq!((daemon.pool().ready_pages, daemon.kernel_free(page)), (Pages(5), 3));
    // Another program takes two of the three.
    let file = linux::BlockFile::from(
        rustix::fs::memfd_create(
            "other",
            rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::HUGE_2MB,
        )
        .expect("a memfd of huge pages"),
    );
    file.set_len(page.times(2).0).expect("two pages");
    let other = Mapping::map(&file, page.times(2).0, page.size()).expect("a mapping");
    other.populate().expect("two pages");
    daemon.wait_for("given back", |p| p.ready_pages == Pages(3));
    assert_eq!(daemon.kernel_free(page), 3);
}

// Promise P24.
#[test]
fn thresholds_change_while_it_runs_and_bad_ones_change_nothing() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 8, &page.pool("")) else { return };
    let change = |low, high, max| PoolChange {
        page_size: page.size(),
        pages_per_block: Pages(1),
        ready_low: Some(Pages(low)),
        ready_high: Some(Pages(high)),
        max_pages: max,
        ..Default::default()
    };
    assert_eq!(daemon.pool().ready_pages, Pages(0));
    daemon.client().configure(change(6, 6, None)).expect("good thresholds");
    daemon.wait_for("filled", |p| p.ready_pages == Pages(6));
    for bad in [change(7, 6, None), change(1, 6, Some(Pages(2)))] {
        daemon.client().configure(bad).expect_err("bad thresholds");
        let pool = daemon.pool();
        assert_eq!((pool.ready_low, pool.ready_high, pool.max_pages), (Pages(6), Pages(6), None));
    }
}

// Promise P21 (work): A watch reports each fall below its threshold once; the last state of a
// burst is never lost.
#[test]
fn a_watch_reports_each_fall_below_its_threshold_once() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 4, &page.pool("")) else { return };
    daemon.zero("max");
    let mut watch = daemon
        .client()
        .watch(None, Some(page.size()), Some(Pages(3)), Duration::from_millis(50))
        .expect("a watch");
    let (first, second) = (daemon.lend(page, 1), daemon.lend(page, 1));
    let report = watch.next().expect("a report").expect("a good one");
    assert_eq!(report.levels[0].ready_pages, Pages(2));
    drop((first, second));
    daemon.wait_for("returned", |p| p.lent_pages == Pages(0));
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, Pages(4));
    std::thread::sleep(Duration::from_millis(120));
    let _loans = [daemon.lend(page, 1), daemon.lend(page, 1)];
    let report = watch.next().expect("a report").expect("a good one");
    assert_eq!(report.levels[0].ready_pages, Pages(2), "armed again by the refill");
}

// Promise P27 (socket): With 4096 blocks known the idle daemon is at most 20 MiB resident.
#[test]
fn idle_with_4096_blocks_the_daemon_is_small() {
    let page = Page::Mib2;
    let Some(guard) = hugepages::reserve_all(&[(page.size(), Some(units::Node(0)), 4096)]) else {
        return;
    };
    let daemon = Daemon::start_with(Some(guard), &page.pool(""), &[]);
    daemon.zero("max");
    let pool = daemon.pool();
    assert_eq!((pool.ready_pages, pool.blocks), (Pages(4096), 4096));
    let resident = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid()));
        let status = status.expect("alive");
        let rss = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("a size");
        rss.trim().trim_end_matches(" kB").parse().expect("a number")
    };
    // Idle: what its work left in the heap has been given back.
    let deadline = Instant::now() + Duration::from_secs(3);
    while resident() > 20 << 10 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    let kib = resident();
    eprintln!("resident with 4096 blocks: {kib} KiB");
    assert!(kib <= 20 << 10, "{kib} KiB");
    let counters = hugetlb::counters(&Roots::default(), page.size(), None).expect("counters");
    assert_eq!(counters.unreserved_free(), 0, "promises of nobody apart");
}
