// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans: new files filled with the kernel's zeroed pages.

use std::time::Duration;

use client::LendRequest;
use linux::{Roots, numa};
use prezero_tests::MapAlone as _;
use prezero_tests::memory::{assert_soiled, assert_zero, soil};
use prezero_tests::{Daemon, Page};
use testkit::hugepages;
use units::{Bytes, Node, Pages};

use super::support::{self, Program, kernel, soil_pool};

// Promise P52 (kernel): A loan takes zeroed pages of the wished node and clears none: the kernel
// counts hits and no miss.
#[test]
fn a_loan_takes_zeroed_pages_and_clears_none() {
    for page in Page::ALL {
        let pages = if page == Page::Mib2 { 16 } else { 1 };
        let Some(daemon) = support::daemon(page, pages, "") else { return };
        daemon.zero("max");
        let before = kernel(page, 0);
        let loan = daemon.lend(page, pages);
        assert_eq!((loan.ready_bytes(), loan.parts().len()), (page.times(pages), 1));
        let after = kernel(page, 0);
        assert_eq!((after.hits.0 - before.hits.0, after.misses.0 - before.misses.0), (pages, 0));
        assert_eq!((after.free.0, after.ready.0), (0, 0));
        let memory = loan.map_alone().expect("a mapping");
        assert_zero(&memory);
        soil(&memory, 0xA5);
        let pool = daemon.pool();
        assert_eq!((pool.lent_pages, pool.ready_pages), (Pages(pages), Pages(0)));
        drop((memory, loan));
        daemon.wait_for("given back", |p| p.blocks == 0 && p.zeroable_pages == Pages(pages));
        assert_eq!(daemon.kernel_free(page), pages);
        let counters = daemon.status().counters;
        assert_eq!(
            (counters.lent_ready_bytes, counters.lent_unbacked_bytes),
            (page.times(pages), Bytes(0))
        );
    }
}

// Promise P52.
#[test]
fn the_lend_verb_runs_a_command_on_it() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 4, "") else { return };
    daemon.zero("max");
    let before = kernel(page, 0);
    let output = daemon
        .command(&["lend", "8M", "--", "/bin/sh", "-c", "cmp -n $PREZERO_BYTES {path} /dev/zero"])
        .output()
        .expect("prezero runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "all of it was ready");
    let after = kernel(page, 0);
    assert_eq!((after.hits.0 - before.hits.0, after.misses.0 - before.misses.0), (4, 0));
}

// Promise P53 (kernel): Pages that are not zeroed, and the last `leave_free` pages, are left to
// the borrower's own faults.
#[test]
fn unzeroed_part_is_unbacked_and_filled_by_the_client() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 8, "") else { return };
    daemon.zero("3");
    let before = kernel(page, 0);
    let loan = daemon.lend(page, 6);
    assert_eq!((loan.bytes(), loan.ready_bytes()), (page.times(6), page.times(3)));
    assert_eq!(kernel(page, 0).misses.0, before.misses.0, "the daemon clears nothing");
    assert_eq!(daemon.kernel_free(page), 5, "the unbacked part takes pages when it is touched");
    let memory = loan.map_alone().expect("a mapping");
    assert_zero(&memory);
    soil(&memory, 1);
    assert_eq!(daemon.kernel_free(page), 2);
    assert_eq!(kernel(page, 0).misses.0 - before.misses.0, 3, "in the client's own faults");
}

// Promise P53.
#[test]
fn the_daemon_leaves_the_last_pages_to_others() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 8, "leave_free = 3") else { return };
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, Pages(8), "zeroed pages stay free for everybody");
    let loan = daemon.lend(page, 8);
    assert_eq!(loan.ready_bytes(), page.times(5));
    assert_eq!(daemon.kernel_free(page), 3);
    assert_zero(&loan.map_alone().expect("the rest by the client's own faults"));
}

#[test]
fn former_content_is_unreadable() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 4, "") else { return };
    for round in 1..4 {
        daemon.zero("2");
        let memory = daemon.lend(page, 4).map_alone().expect("a mapping");
        assert_zero(&memory);
        soil(&memory, round);
        drop(memory);
        daemon.wait_for("given back", |p| p.blocks == 0);
    }
}

#[test]
fn a_mapping_outlives_its_lease_and_so_do_its_pages() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 4, "") else { return };
    daemon.zero("2");
    let memory = daemon.lend(page, 4).map_alone().expect("a mapping");
    soil(&memory, 9);
    // On a kernel that shows no descriptor it is draining nowhere: its pages are free when it is
    // gone.
    let draining = |blocks| blocks == u64::from(support::shows_descriptors(&daemon));
    daemon.wait_for("returned", |p| p.lent_pages == Pages(0) && draining(p.blocks));
    assert_soiled(&memory, 9);
    assert_eq!(daemon.kernel_free(page), 0);
    drop(memory);
    daemon.wait_for("given back", |p| p.blocks == 0 && p.zeroable_pages == Pages(4));
    assert_eq!(daemon.kernel_free(page), 4);
}

#[test]
fn kept_content_holds_its_file_and_goes_to_its_owner() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 8, "") else { return };
    daemon.zero("max");
    let hour = Duration::from_secs(3600);
    let loan = daemon.lend_to("db", hour, page, 4);
    soil(&loan.map_alone().expect("a mapping"), 7);
    drop(loan);
    if !support::shows_descriptors(&daemon) {
        // Its other users are unknown: it is given up, and its owner gets zeros as any borrower
        // does.
        daemon.wait_for("given up", |p| (p.blocks, p.kept_pages) == (0, Pages(0)));
        assert_eq!(daemon.kernel_free(page), 8);
        let other = daemon.lend_to("db", hour, page, 4);
        assert!(!other.is_kept());
        assert_zero(&other.map_alone().expect("other memory"));
        return;
    }
    let pool = daemon.wait_for("kept", |p| p.kept_pages == Pages(4));
    assert_eq!((pool.blocks, daemon.kernel_free(page)), (1, 4));
    assert_zero(&daemon.lend(page, 4).map_alone().expect("other memory"));
    let again = daemon.lend_to("db", hour, page, 4);
    assert!(again.is_kept());
    assert_soiled(&again.map_alone().expect("its content"), 7);
}

#[test]
fn a_quota_counts_loans() {
    let page = Page::Mib2;
    if !support::has_series() {
        return;
    }
    let Some(guard) = hugepages::reserve(page.size(), 4) else { return };
    let config = format!("quota = \"4M\"\n{}", page.pool(""));
    let daemon = Daemon::start_with(Some(guard), &config, &[]);
    daemon.zero("max");
    let _loan = daemon.lend(page, 2);
    let refused = daemon.client().lend(&LendRequest::new(page.times(1))).expect_err("too much");
    assert!(refused.to_string().contains("quota"), "{refused}");
}

/// A daemon with a pool on each of two nodes.
fn two_nodes(page: Page, pages: u64) -> Option<Daemon> {
    if !support::has_series() {
        return None;
    }
    if numa::nodes(&Roots::default()).expect("a machine has nodes").len() < 2 {
        testkit::skip_always("this machine has one NUMA node");
        return None;
    }
    let wanted = [0, 1].map(|node| (page.size(), Some(Node(node)), pages));
    let guard = hugepages::reserve_all(&wanted)?;
    soil_pool(page, pages);
    let config = format!("{}{}", page.pool("node = 0"), page.pool("node = 1"));
    Some(Daemon::start_with(Some(guard), &config, &[]))
}

#[test]
fn each_loan_lies_on_the_node_that_was_asked_for() {
    let page = Page::Mib2;
    let Some(daemon) = two_nodes(page, 4) else { return };
    daemon.zero("max");
    for node in [1, 0] {
        let request = LendRequest { node: Some(Node(node)), ..LendRequest::new(page.times(4)) };
        let loan = daemon.client().lend(&request).expect("four pages on each node");
        assert_eq!(loan.ready_bytes(), page.times(4));
        let memory = loan.map_alone().expect("a mapping");
        assert_zero(&memory);
        let places = numa::nodes_of(&memory, page.size()).expect("mapped pages have a node");
        assert!(places.iter().all(|place| place.0 == node), "{places:?} instead of {node}");
    }
}

#[test]
fn a_library_loan_takes_from_both_nodes_if_it_must() {
    let page = Page::Mib2;
    let Some(daemon) = two_nodes(page, 4) else { return };
    daemon.zero("max");
    let small = daemon.client().lend(&LendRequest::new(page.times(3))).expect("three of eight");
    assert_eq!((small.parts().len(), small.ready_bytes()), (1, page.times(3)));
    drop(small);
    daemon.wait_for("returned", |p| p.blocks == 0);
    daemon.zero("max");
    let large = daemon.client().lend(&LendRequest::new(page.times(7))).expect("seven of eight");
    assert_eq!((large.parts().len(), large.ready_bytes()), (2, page.times(7)));
    let memory = large.map_alone().expect("one range over both nodes");
    assert_zero(&memory);
    let places = numa::nodes_of(&memory, page.size()).expect("mapped pages have a node");
    assert!(places.iter().any(|n| n.0 == 0) && places.iter().any(|n| n.0 == 1), "{places:?}");
}

#[test]
fn two_borrowers_at_once_get_no_more_than_there_is() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 16, "") else { return };
    daemon.zero("max");
    let loans: Vec<_> = std::thread::scope(|scope| {
        let borrow = || daemon.lend(page, 8);
        let borrowers: Vec<_> = (0..2).map(|_| scope.spawn(borrow)).collect();
        borrowers.into_iter().map(|b| b.join().expect("a loan")).collect()
    });
    assert!(loans.iter().all(|loan| loan.ready_bytes() == page.times(8)));
    for loan in &loans {
        assert_zero(&loan.map_alone().expect("a mapping"));
    }
    assert_eq!(daemon.kernel_free(page), 0);
    let refused = daemon.client().lend(&LendRequest::new(page.times(1)));
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn pages_that_a_program_took_are_not_lent() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 8, "") else { return };
    daemon.zero("max");
    let program = Program::take(page, 6);
    let loan = daemon.lend(page, 2);
    assert_eq!(loan.ready_bytes(), page.times(2));
    assert!(daemon.client().lend(&LendRequest::new(page.times(1))).is_err());
    drop(program);
    let loan = daemon.lend(page, 1);
    assert_eq!(loan.ready_bytes(), Bytes(0), "its pages came back dirty");
    assert_eq!(daemon.pool().zeroable_pages, Pages(6));
}
