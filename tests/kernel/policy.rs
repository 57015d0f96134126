// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's own workers over the kernel's pool: when, how many, at which priority.

use std::time::{Duration, Instant};

use linux::Roots;
use linux::kernel::Device;
use prezero_tests::Page;
use prezero_tests::daemon::WAIT_TIMEOUT;
use units::{Domain, Node, Pages};
use wire::PoolChange;

use super::support::{self, Program, kernel};

// Promise P56 (kernel): Thresholds have hysteresis over what other programs take, without asking
// the daemon; zeroing stops at high.
#[test]
fn own_workers_fill_to_high_and_again_after_pages_were_taken() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 32, "ready_low = 8\nready_high = 12") else { return };
    daemon.wait_for("filled to high", |p| p.ready_pages == Pages(12));
    // Above low nothing happens, below it refills, and never beyond high.
    let few = Program::take(page, 3);
    daemon.wait_for("seen", |p| p.ready_pages == Pages(9));
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(daemon.pool().ready_pages, Pages(9), "between the thresholds nothing starts");
    let more = Program::take(page, 4);
    daemon.wait_for("refilled", |p| p.ready_pages == Pages(12));
    assert_eq!(kernel(page, 0).ready.0, 12);
    drop((few, more));
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(kernel(page, 0).ready.0, 12, "high is enough");
}

// Promise P56.
#[test]
fn kernel_events_are_not_polled_for() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 32, "ready_low = 12\nready_high = 12") else { return };
    daemon.wait_for("filled", |p| p.ready_pages == Pages(12));
    // Another program sets the number that is one for all: the daemon's own watch still works.
    let low = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/zeroed_low";
    std::fs::write(low, "1").expect("a number of pages");
    let program = Program::take(page, 6);
    // Without asking the daemon, which would look because it is asked.
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while kernel(page, 0).ready.0 < 12 {
        assert!(Instant::now() < deadline, "never refilled: {:?}\n{}", daemon.pool(), daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(low, "0").expect("a number of pages");
    drop(program);
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(now.tv_sec).expect("a clock that began at 0");
    Duration::new(seconds, u32::try_from(now.tv_nsec).expect("below a second"))
}

/// CPU time of a process, without its children's.
fn process_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("alive");
    let fields: Vec<_> = stat.rsplit_once(") ").expect("a command").1.split(' ').collect();
    // utime and stime in ticks of 10 ms, fields 14 and 15 of proc_pid_stat(5).
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

// Promise P57 (kernel): The CPU time of zeroing is the worker's and its cgroup's.
#[test]
fn the_workers_cpu_time_is_their_cgroups() {
    let (page, pages) = (Page::Mib2, 384);
    if !support::has_series() {
        return;
    }
    let group = "/sys/fs/cgroup/prezero-kernel-test";
    // CPU time is counted per group only where the controller is on.
    std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu").expect("cgroup v2");
    let wanted = [(page.size(), Some(units::Node(0)), pages)];
    let Some(guard) = testkit::hugepages::reserve_all(&wanted) else { return };
    // The cost of this number of pages on this machine, in this thread.
    support::soil_pool(page, pages);
    let before = thread_time();
    let device = Device::open_to_zero(&Roots::default()).expect("a kernel with the series");
    device
        .zero(Domain { node: Node(0), page_size: page.size() }, Pages(pages))
        .expect("dirty pages");
    let cost = thread_time() - before;
    support::soil_pool(page, pages);
    let config = format!(
        "[workers]\nmax = 2\nnice = 7\ncpus = \"0\"\nsched_idle = false\ncgroup = \"{group}\"\n{}",
        page.pool("")
    );
    let daemon = prezero_tests::Daemon::start_with(Some(guard), &config, &[]);
    let before = process_time(daemon.pid());
    let change = PoolChange {
        page_size: page.size(),
        pages_per_block: Pages(1),
        ready_high: Some(Pages(pages)),
        ..PoolChange::default()
    };
    daemon.client().configure(change).expect("a threshold");
    // Without asking the daemon, which would have to answer.
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while kernel(page, 0).ready.0 < pages {
        assert!(Instant::now() < deadline, "never filled: {:?}\n{}", daemon.pool(), daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let daemons = process_time(daemon.pid()) - before;
    let stat = std::fs::read_to_string(format!("{group}/cpu.stat")).expect("cpu.stat");
    let usage = stat.lines().find_map(|l| l.strip_prefix("usage_usec "));
    let theirs = Duration::from_micros(usage.and_then(|n| n.parse().ok()).expect("a number"));
    eprintln!("zeroing costs {cost:?}, the workers' group paid {theirs:?}, the daemon {daemons:?}");
    assert!(theirs > cost / 2, "{theirs:?} for work of {cost:?}");
    daemon.wait_for("ended", |_| daemon.status().workers == 0);
    drop(daemon);
    std::fs::remove_dir(group).expect("nobody is in it any more");
}

#[test]
fn max_bounds_zeroed_and_lent() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 16, "max = 6\nready_high = 4") else { return };
    daemon.wait_for("filled", |p| p.ready_pages == Pages(4));
    let _loan = daemon.lend(page, 4);
    daemon.wait_for("refilled as far as max", |p| p.ready_pages == Pages(2));
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, Pages(2));
    let nothing = daemon.client().take_zeroing(&wire::TakeZeroing::default());
    assert!(nothing.is_err(), "{nothing:?}");
    assert_eq!(daemon.pool().max_pages, Some(Pages(6)));
}
