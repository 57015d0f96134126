// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools that make the kernel's larger and smaller.

use std::time::{Duration, Instant};

use client::LendRequest;
use linux::{BlockFile, Mapping, Roots, hugetlb};
use nix::sys::signal::Signal;
use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::{Daemon, Page};
use testkit::hugepages;
use units::{Node, Pages};
use wire::ResizeStatus;

mod places;

const PAGE: Page = Page::Mib2;
/// Longer than what the tests' pools keep pages for, and what a look takes.
const IDLE_PERIOD: Duration = Duration::from_millis(1600);

/// The size of the kernel's pool.
fn total(page: Page, node: u32) -> u64 {
    hugetlb::configured(&Roots::default(), page.size(), Some(Node(node))).expect("a page size")
}

/// What an operator does by hand.
fn set_total(pages: u64) {
    hugetlb::set_total(&Roots::default(), PAGE.size(), Some(Node(0)), pages).expect("root");
}

/// A daemon that may add pages to the kernel's pool, without free pages at first, and the pool's
/// size. `{most}` and `{least}` are sizes of the kernel's pool: the present one, and the extended
/// one.
fn start(most: u64, least: u64, fields: &str) -> Option<(Daemon, u64)> {
    let guard = hugepages::reserve_all(&[(PAGE.size(), Some(Node(0)), 0)])?;
    let before = total(PAGE, 0);
    Some((Daemon::start_with(Some(guard), &config(before, most, least, fields), &[]), before))
}

fn config(before: u64, most: u64, least: u64, fields: &str) -> String {
    let (most, least) = (before + most, if least == 0 { 0 } else { before + least });
    PAGE.pool(&format!("size_max = {most}\nsize_min = {least}\nsize_idle = \"1s\"\n{fields}"))
}

fn resize(daemon: &Daemon) -> ResizeStatus {
    daemon.pool().resize.expect("its pool is resizable")
}

/// Waits until the kernel's pool has that size.
fn wait_for_total(daemon: &Daemon, page: Page, node: u32, pages: u64) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while total(page, node) != pages {
        let (now, pool) = (total(page, node), daemon.status().pools);
        assert!(Instant::now() < deadline, "{now}, never {pages}: {pool:?}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sees that the kernel's pool keeps that size for longer than unneeded pages are kept.
fn stays(pages: u64) {
    let end = Instant::now() + IDLE_PERIOD;
    while Instant::now() < end {
        assert_eq!(total(PAGE, 0), pages);
        std::thread::sleep(Duration::from_millis(5));
    }
}

// Promise P196 (operator): With `size_max` the kernel's pool grows to the needed size, no further,
// and shrinks to the most that was needed within `size_idle`, not below `size_min`; without it the
// daemon leaves it alone.
#[test]
fn kernels_pool_grows_with_demand_to_its_bound_and_shrinks_idle() {
    let Some((daemon, before)) = start(40, 0, "ready_high = 8") else { return };
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(8));
    assert_eq!(total(PAGE, 0), before + 8);
    let loan = daemon.lend(PAGE, 8);
    daemon.wait_for("filled again", |pool| pool.ready_pages == Pages(8));
    assert_eq!(total(PAGE, 0), before + 16);
    // A loan that is refused is a demand, too: it is served when it comes again.
    let request = LendRequest::new(PAGE.times(30));
    daemon.client().lend(&request).expect_err("there are 8 pages");
    let deadline = Instant::now() + WAIT_TIMEOUT;
    let large = loop {
        if let Ok(large) = daemon.client().lend(&request) {
            break large;
        }
        assert!(Instant::now() < deadline, "{:?}\n{}", daemon.pool(), daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    };
    daemon.client().lend(&request).expect_err("that would be 68 pages");
    wait_for_total(&daemon, PAGE, 0, before + 40);
    stays(before + 40);
    let status = resize(&daemon);
    assert_eq!((status.max_pages, status.total_pages), (Pages(before + 40), Pages(before + 40)));
    assert_eq!(status.added_pages, Pages(40));
    let returned = Instant::now();
    drop((loan, large));
    wait_for_total(&daemon, PAGE, 0, before + 8);
    assert!(returned.elapsed() >= Duration::from_secs(1), "{:?}", returned.elapsed());
    daemon.wait_for("filled to the end", |pool| pool.ready_pages == Pages(8));
    stays(before + 8);
    let log = daemon.log();
    assert!(log.contains("made the kernel's pool larger"), "{log}");
    assert!(log.contains("made the kernel's pool smaller"), "{log}");
    drop(daemon);
}

#[test]
fn mixed_pool_gets_its_shortage_from_the_kernel() {
    let Some((daemon, before)) = start(1024, 0, "ready = \"512M\"") else { return };
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(256));
    let loan = daemon.lend(PAGE, 128);
    daemon.wait_for("filled again", |pool| pool.ready_pages == Pages(256));
    drop(loan);
    daemon.wait_for("returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
    let deadline = Instant::now() + WAIT_TIMEOUT;
    // What large blocks need beside them stays.
    while total(PAGE, 0) > before + 256 + 32 {
        assert!(Instant::now() < deadline, "{:?}\n{}", daemon.pool(), daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.wait_for("still full", |pool| pool.ready_pages == Pages(256));
}

// Promise P196.
#[test]
fn kernels_pool_keeps_its_minimum_size() {
    let Some((daemon, before)) = start(20, 6, "") else { return };
    wait_for_total(&daemon, PAGE, 0, before + 6);
    // The daemon looks each 20 ms at most.
    daemon.wait_for("seen", |pool| pool.kernel_free_pages >= Pages(6));
    let loan = daemon.lend(PAGE, 6);
    daemon.client().lend(&LendRequest::new(PAGE.times(4))).expect_err("all is lent");
    wait_for_total(&daemon, PAGE, 0, before + 10);
    drop(loan);
    wait_for_total(&daemon, PAGE, 0, before + 6);
    stays(before + 6);
}

// Promise P198 (operator): The size that an operator writes is respected: pages added by others
// stay, and none are added above what others have left.
#[test]
fn operators_writes_are_respected_and_not_fought() {
    let Some((daemon, before)) = start(40, 0, "ready_high = 8") else { return };
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(8));
    // Added pages stay.
    set_total(before + 13);
    stays(before + 13);
    assert_eq!(resize(&daemon).added_pages, Pages(8));
    // Pages that were taken away stay away, also when more are needed. The blocks have their
    // pages: those are surplus now.
    set_total(before + 2);
    daemon.wait_for("held", |pool| {
        pool.resize.as_ref().is_some_and(|resize| resize.held_pages == Some(Pages(before + 2)))
    });
    let loan = daemon.lend(PAGE, 8);
    stays(before + 2);
    daemon.wait_for_log("somebody made the kernel's pool smaller");
    // Until the operator configures the pool anew.
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for("filled again", |pool| pool.ready_pages == Pages(8));
    assert!(total(PAGE, 0) >= before + 16, "{}", total(PAGE, 0));
    drop(loan);
}

// Promise P197.
#[test]
fn pages_that_others_were_promised_are_not_taken_away() {
    let Some((daemon, before)) = start(40, 0, "") else { return };
    daemon.client().lend(&LendRequest::new(PAGE.times(12))).expect_err("there are none");
    wait_for_total(&daemon, PAGE, 0, before + 12);
    let flags = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::HUGE_2MB;
    let file = BlockFile::from(rustix::fs::memfd_create("other", flags).expect("a memfd"));
    file.set_len(PAGE.times(5).0).expect("five pages");
    let other = Mapping::map(&file, PAGE.times(5).0, PAGE.size()).expect("five are free");
    wait_for_total(&daemon, PAGE, 0, before + 5);
    stays(before + 5);
    other.populate().expect("what was promised is there");
    drop((other, file));
    wait_for_total(&daemon, PAGE, 0, before);
}

// Promise P199 (operator): Growth ends where memory is to stay free, while programs wait for
// memory, and where the kernel finds none; it is tried ever later, and `status` says why.
#[test]
fn memory_left_free_ends_growth_until_a_reload() {
    let fields = "ready_high = 8\nsize_free = \"1T\"";
    let Some((daemon, before)) = start(40, 0, fields) else { return };
    daemon.wait_for_log("the kernel's pool is smaller than it is wanted");
    stays(before);
    let why = resize(&daemon).short_because.expect("a reason");
    assert!(why.contains("of memory are available"), "{why}");
    let output = daemon.command(&["status"]).output().expect("prezero runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("of memory are available"), "{text}");
    let lines = daemon.log().matches("the kernel's pool is smaller than it is wanted").count();
    assert_eq!(lines, 1, "{}", daemon.log());
    daemon.write_config(&config(before, 40, 0, "ready_high = 8\nsize_free = \"1G\""));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(8));
    assert_eq!(total(PAGE, 0), before + 8);
    assert_eq!(resize(&daemon).short_because, None);
}

// Promise P200 (operator): A stop leaves the kernel's pool as it is, `drain` takes away all
// additions, with a daemon or without, and a daemon killed during a change knows them later.
#[test]
fn stop_leaves_the_pool_and_drain_takes_back_added_pages() {
    let Some((mut daemon, before)) = start(40, 3, "ready_high = 8") else { return };
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(8));
    daemon.terminate();
    assert_eq!(total(PAGE, 0), before + 8);
    daemon.launch();
    assert_eq!((daemon.pool().ready_pages, total(PAGE, 0)), (Pages(8), before + 8));
    daemon
        .wait_for("known", |pool| pool.resize.as_ref().is_some_and(|e| e.added_pages == Pages(8)));
    let drained = Instant::now();
    assert!(daemon.command(&["drain"]).output().expect("prezero runs").status.success());
    wait_for_total(&daemon, PAGE, 0, before + 3);
    assert!(drained.elapsed() < Duration::from_secs(1), "{:?}", drained.elapsed());
    assert!(daemon.command(&["drain", "--end"]).output().expect("prezero runs").status.success());
    daemon.wait_for("filled again", |pool| pool.ready_pages == Pages(8));
    assert_eq!(total(PAGE, 0), before + 8);
}

// Promise P200.
// Promise P244.
#[test]
fn draining_without_a_daemon_takes_back_what_the_last_one_added() {
    let Some((mut daemon, before)) = start(40, 0, "ready_high = 8") else { return };
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(8));
    let drain = |daemon: &Daemon| {
        let run_dir = daemon.run_dir();
        let mut drain = daemon.command(&["drain", "--run-dir"]);
        drain.arg(run_dir).output().expect("prezero runs")
    };
    // Lent blocks stay, with their pages.
    let loan = daemon.lend(PAGE, 3);
    daemon.wait_for("filled again", |pool| pool.ready_pages == Pages(8));
    daemon.terminate();
    assert_eq!(total(PAGE, 0), before + 11);
    let drained = drain(&daemon);
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!(total(PAGE, 0), before + 3);
    drop(loan);
    let drained = drain(&daemon);
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!(total(PAGE, 0), before);
    // A page more is an operator's, and no second drain takes it.
    set_total(before + 1);
    assert!(drain(&daemon).status.success());
    assert_eq!(total(PAGE, 0), before + 1);
    set_total(before);
}

// Promise P200.
#[test]
fn daemon_killed_while_resizing_knows_later_what_it_added() {
    // Two steps and a half of 128 MiB; idle workers zero them beside all other work.
    let fields = "ready_high = 160\npages_per_block = 4";
    let Some((mut daemon, before)) = start(200, 0, fields) else { return };
    for millis in [5, 20, 40, 80, 160] {
        std::thread::sleep(Duration::from_millis(millis));
        daemon.kill();
        daemon.launch();
    }
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(160));
    // Each start takes a page for a moment, to see that pins show, and may add one for that.
    wait_for_total(&daemon, PAGE, 0, before + 160);
    stays(before + 160);
    for millis in [5, 50, 400] {
        assert!(daemon.command(&["drain"]).output().expect("prezero runs").status.success());
        std::thread::sleep(Duration::from_millis(millis));
        daemon.kill();
        daemon.launch();
        daemon.command(&["drain", "--end"]).output().expect("prezero runs");
        daemon.wait_for("filled", |pool| pool.ready_pages == Pages(160));
    }
    daemon.command(&["drain"]).output().expect("prezero runs");
    wait_for_total(&daemon, PAGE, 0, before);
    assert_eq!(daemon.status().unknown_files, 0);
}

#[test]
fn keys_that_cannot_be_are_refused_by_a_check() {
    for (fields, parts) in [
        ("ready=2G,size_max=1G", &["size_max 1G", "2G"][..]),
        ("size_min=1G", &["size_min", "set size_max"]),
        ("size_max=1G,size_idle=0s", &["size_idle 0s"]),
    ] {
        let pool = format!("page_size=2M,{fields}");
        let check = std::process::Command::new(prezero_tests::daemon::binary())
            .args(["serve", "--check", "--pool", &pool])
            .output()
            .expect("prezero runs");
        let error = String::from_utf8_lossy(&check.stderr).into_owned();
        assert_eq!(check.status.code(), Some(2), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{fields}: {error}");
    }
    let plain = std::process::Command::new(prezero_tests::daemon::binary())
        .args(["serve", "--check", "--plain", "--pool", "page_size=2M,size_max=1G"])
        .output()
        .expect("prezero runs");
    let error = String::from_utf8_lossy(&plain.stderr).into_owned();
    assert!(!plain.status.success() && error.contains("provider stock"), "{error}");
}
