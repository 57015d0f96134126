// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's own workers over the kernel's pool: when, how many, at whose expense.

use std::time::{Duration, Instant};

use model::units::Pages;
use prezero_tests::Page;
use prezero_tests::daemon::PATIENCE;

use super::support::{self, Program, kernel};

#[test]
fn own_workers_fill_to_the_high_threshold_and_again_after_a_program_took_pages() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 32, "ready_low = 8\nready_high = 12") else { return };
    daemon.wait_for("filled to high", |p| p.ready_pages == 12);
    // Above low nothing happens, below it refills, and never beyond high.
    let few = Program::take(page, 3);
    daemon.wait_for("seen", |p| p.ready_pages == 9);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(daemon.pool().ready_pages, 9, "between the thresholds nothing starts");
    let more = Program::take(page, 4);
    daemon.wait_for("refilled", |p| p.ready_pages == 12);
    assert_eq!(kernel(page, 0).zeroed, 12);
    drop((few, more));
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(kernel(page, 0).zeroed, 12, "high is enough");
}

#[test]
fn what_the_kernel_tells_is_not_waited_for() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 32, "ready_low = 12\nready_high = 12") else { return };
    daemon.wait_for("filled", |p| p.ready_pages == 12);
    // Another program sets the number that is one for all: the daemon's own watch still works.
    let low = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/zeroed_low";
    std::fs::write(low, "1").expect("a number of pages");
    let program = Program::take(page, 6);
    // Without asking the daemon, which would look because it is asked.
    let deadline = Instant::now() + PATIENCE;
    while kernel(page, 0).zeroed < 12 {
        assert!(Instant::now() < deadline, "never refilled: {:?}\n{}", daemon.pool(), daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(low, "0").expect("a number of pages");
    drop(program);
}

#[test]
fn the_workers_cpu_time_is_their_cgroups() {
    let page = Page::Mib2;
    if !support::has_series() {
        return;
    }
    let group = "/sys/fs/cgroup/prezero-kernel-test";
    // CPU time is counted per group only where the controller is on.
    std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu").expect("cgroup v2");
    let pages = 128;
    let Some(guard) =
        linux::testkit::hugepages::reserve_all(&[(page.bytes(), Some(linux::NodeId(0)), pages)])
    else {
        return;
    };
    support::soil_pool(page, pages);
    let config = format!(
        "[workers]\nmax = 2\nnice = 7\ncpus = \"0\"\nsched_idle = false\ncgroup = \"{group}\"\n{}",
        page.pool(&format!("ready_high = {pages}"))
    );
    let daemon = prezero_tests::Daemon::start_with(Some(guard), &config, &[]);
    // Without asking the daemon, which would have to answer.
    let deadline = Instant::now() + PATIENCE;
    while kernel(page, 0).zeroed < pages {
        assert!(Instant::now() < deadline, "never filled: {:?}\n{}", daemon.pool(), daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let usage = |file: &str| {
        let text = std::fs::read_to_string(file).expect("cpu.stat");
        let line = text.lines().find_map(|l| l.strip_prefix("usage_usec "));
        line.and_then(|n| n.parse::<u64>().ok()).expect("a number")
    };
    let theirs = usage(&format!("{group}/cpu.stat"));
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).expect("alive");
    let fields: Vec<_> = stat.rsplit_once(") ").expect("a command").1.split(' ').collect();
    // utime and stime in ticks of 10 ms; its children's are other fields.
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
    let its_own = (ticks(11) + ticks(12)) * 10_000;
    // 256 MiB take longer to clear than a few hundred calls take to answer, emulated or not.
    assert!(theirs > its_own, "workers: {theirs} us, daemon: {its_own} us");
    assert!(theirs > 10_000, "{theirs} us are too few for 256 MiB");
    daemon.wait_for("ended", |_| daemon.status().workers == 0);
    drop(daemon);
    std::fs::remove_dir(group).expect("nobody is in it any more");
}

#[test]
fn max_bounds_what_is_kept_zero_and_lent() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 16, "max = 6\nready_high = 4") else { return };
    daemon.wait_for("filled", |p| p.ready_pages == 4);
    let _loan = daemon.lend(page, 4);
    daemon.wait_for("refilled as far as max", |p| p.ready_pages == 2);
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, 2);
    let nothing = daemon.client().take_zeroing(None, None, false);
    assert!(nothing.is_err(), "{nothing:?}");
    assert_eq!(daemon.pool().max_pages, Some(Pages(6).0));
}
