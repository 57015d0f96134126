// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools of pages of 1 GiB, and of each of two nodes, that make the kernel's larger and smaller.

use std::time::{Duration, Instant};

use client::{LendRequest, Loan};
use linux::{Roots, hugetlb, numa};
use prezero_tests::MapAlone as _;
use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::memory::assert_zero;
use prezero_tests::{Daemon, Page};
use testkit::hugepages;
use units::{Node, Pages};

use super::{total, wait_for_total};

/// Waits until a loan that was refused is served.
fn lend_soon(daemon: &Daemon, request: &LendRequest) -> Loan {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        match daemon.client().lend(request) {
            Ok(loan) => return loan,
            Err(error) => assert!(Instant::now() < deadline, "{error}\n{}", daemon.log()),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

// Promise P239.
/// The kernel makes a page of 1 GiB at run time where memory is in one piece, by moving other pages
/// away: growing takes more than free memory. A machine may not find a returned page again once
/// other programs have used it, so the machine must declare that it has none.
#[test]
fn the_kernels_pool_of_gigantic_pages_grows_and_shrinks_as_well() {
    const PAGE: Page = Page::Gib1;
    if std::env::var_os("PREZERO_TEST_EXCLUSIVE").is_none() {
        testkit::skip_always("whether 1 GiB is in one piece is up to others here");
        return;
    }
    let there = || total(PAGE, 0);
    // That there is room for one is seen by having one.
    let Some(guard) = hugepages::reserve_all(&[(PAGE.size(), Some(Node(0)), 1)]) else { return };
    let before = there() - 1;
    hugetlb::set_total(&Roots::default(), PAGE.size(), Some(Node(0)), before).expect("root");
    let max = before + 1;
    let config = PAGE.pool(&format!("size_max = {max}\nsize_idle = \"1s\""));
    let daemon = Daemon::start_with(Some(guard), &config, &[]);
    daemon.client().lend(&LendRequest::new(PAGE.times(1))).expect_err("there is none");
    wait_for_total(&daemon, PAGE, 0, max);
    let loan = lend_soon(&daemon, &LendRequest::new(PAGE.times(1)));
    daemon.client().lend(&LendRequest::new(PAGE.times(1))).expect_err("that would be two");
    assert_zero(&loan.map_alone().expect("a page of 1 GiB"));
    assert_eq!(there(), max);
    drop(loan);
    wait_for_total(&daemon, PAGE, 0, before);
    daemon.wait_for("taken away again", |pool| {
        pool.resize
            .as_ref()
            .is_some_and(|e| (e.total_pages, e.added_pages) == (Pages(before), Pages(0)))
    });
    // The ready target is reached again, and the pages are gone after a drain.
    let ready = format!("ready_high = 1\nsize_max = {max}\nsize_idle = \"1s\"");
    daemon.write_config(&PAGE.pool(&ready));
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(1));
    assert_eq!(there(), max);
    assert!(daemon.command(&["drain"]).output().expect("prezero runs").status.success());
    wait_for_total(&daemon, PAGE, 0, before);
}

/// A daemon that may add 40 pages on each of two nodes, and the size of each before.
fn two_nodes(fields: [&str; 2]) -> Option<(Daemon, [u64; 2])> {
    const PAGE: Page = Page::Mib2;
    if numa::nodes(&Roots::default()).expect("a machine has nodes").len() < 2 {
        testkit::skip_always("this machine has one NUMA node");
        return None;
    }
    let none = [0, 1].map(|node| (PAGE.size(), Some(Node(node)), 0));
    let guard = hugepages::reserve_all(&none)?;
    let before = [0, 1].map(|node| total(PAGE, node));
    let pool = |node: usize| {
        let (max, fields) = (before[node] + 40, fields[node]);
        let common = format!("node = {node}\nsize_max = {max}\nsize_idle = \"1s\"\n{fields}");
        PAGE.pool(&common)
    };
    let config = format!("{}{}", pool(0), pool(1));
    Some((Daemon::start_with(Some(guard), &config, &[]), before))
}

// Promise P239 (operator): Each node's pool of the kernel's grows by its own demand and ends where
// its own memory does; pages of 1 GiB come and go like those of 2 MiB.
#[test]
fn each_nodes_kernel_pool_is_resized_by_its_own_demand() {
    const PAGE: Page = Page::Mib2;
    let Some((daemon, before)) = two_nodes(["ready_high = 4", "ready_high = 6"]) else { return };
    daemon.wait_for_on(0, "filled", |pool| pool.ready_pages == Pages(4));
    daemon.wait_for_on(1, "filled", |pool| pool.ready_pages == Pages(6));
    assert_eq!([total(PAGE, 0), total(PAGE, 1)], [before[0] + 4, before[1] + 6]);
    let request = LendRequest { node: Some(Node(1)), ..LendRequest::new(PAGE.times(20)) };
    daemon.client().lend(&request).expect_err("there are six");
    let loan = lend_soon(&daemon, &request);
    daemon.wait_for_on(1, "filled", |pool| pool.ready_pages == Pages(6));
    // The other one's has nothing to do with it.
    assert_eq!([total(PAGE, 0), total(PAGE, 1)], [before[0] + 4, before[1] + 26]);
    let memory = loan.map_alone().expect("20 pages");
    assert_zero(&memory);
    let places = numa::nodes_of(&memory, PAGE.size()).expect("mapped pages have a node");
    assert!(places.iter().all(|place| *place == Node(1)), "{places:?}");
    drop(memory);
    drop(loan);
    wait_for_total(&daemon, PAGE, 1, before[1] + 6);
    assert_eq!(total(PAGE, 0), before[0] + 4);
    for (node, pages) in [(0, 4), (1, 6)] {
        daemon.wait_for_on(node, "so large by the daemon's doing", |pool| {
            pool.resize.as_ref().is_some_and(|resize| resize.added_pages == Pages(pages))
        });
    }
    assert!(daemon.command(&["drain"]).output().expect("prezero runs").status.success());
    wait_for_total(&daemon, PAGE, 0, before[0]);
    wait_for_total(&daemon, PAGE, 1, before[1]);
}

// Promise P239.
#[test]
fn a_node_that_is_short_of_memory_holds_up_no_other_one() {
    const PAGE: Page = Page::Mib2;
    let short = "ready_high = 4\nsize_free = \"1T\"";
    let Some((daemon, before)) = two_nodes(["ready_high = 4", short]) else { return };
    daemon.wait_for_on(0, "filled", |pool| pool.ready_pages == Pages(4));
    daemon.wait_for_log("the kernel's pool is smaller than it is wanted");
    assert_eq!([total(PAGE, 0), total(PAGE, 1)], [before[0] + 4, before[1]]);
    let why = |node| {
        let pool = daemon.wait_for_on(node, "resize", |pool| pool.resize.is_some());
        pool.resize.and_then(|resize| resize.short_because)
    };
    assert_eq!(why(0), None);
    assert!(why(1).expect("a reason").contains("of memory are available"));
    // Without a node in the request, the other node serves it when one cannot grow enough.
    let request = LendRequest::new(PAGE.times(30));
    daemon.client().lend(&request).expect_err("there are four");
    let loan = lend_soon(&daemon, &request);
    assert!(loan.parts().all(|(_, part)| part.node == Node(0)));
    assert_eq!(total(PAGE, 1), before[1]);
}
