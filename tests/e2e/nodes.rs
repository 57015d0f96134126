// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages lie on the node of their pool. Needs two nodes: the virtual machines have them.

use client::{Error, LendRequest};
use linux::{Roots, numa};
use prezero_tests::MapAlone as _;
use prezero_tests::memory::assert_zero;
use prezero_tests::{Daemon, Page};
use testkit::hugepages;
use units::{Node, Pages};

/// A daemon with a pool of `pages` pages on each of two nodes.
fn two_nodes(page: Page, pages: u64) -> Option<Daemon> {
    let nodes = numa::nodes(&Roots::default()).expect("a machine has nodes");
    if nodes.len() < 2 {
        testkit::skip_always("this machine has one NUMA node");
        return None;
    }
    let wanted = [0, 1].map(|node| (page.size(), Some(Node(node)), pages));
    let guard = hugepages::reserve_all(&wanted)?;
    let config = format!("{}{}", page.pool("node = 0"), page.pool("node = 1"));
    Some(Daemon::start_with(Some(guard), &config, &[]))
}

// Promise P29 (isolation): Pages lie on the node of their pool, which is looked up after the fact.
// Promise P52.
#[test]
fn each_loan_lies_on_the_node_that_was_asked_for() {
    let page = Page::Mib2;
    let Some(daemon) = two_nodes(page, 4) else { return };
    daemon.zero("max");
    for node in [0, 1] {
        let request = LendRequest { node: Some(Node(node)), ..LendRequest::new(page.times(4)) };
        let loan = daemon.client().lend(&request).expect("four pages on each node");
        assert_eq!(loan.ready_bytes(), page.times(4));
        assert!(loan.parts().all(|(_, part)| part.node == Node(node)));
        let memory = loan.map_alone().expect("a mapping");
        assert_zero(&memory);
        let places = numa::nodes_of(&memory, page.size()).expect("mapped pages have a node");
        assert!(places.iter().all(|place| place.0 == node), "{places:?} instead of {node}");
    }
}

#[test]
fn loan_without_a_node_takes_one_if_it_can_and_both_if_it_must() {
    let page = Page::Mib2;
    let Some(daemon) = two_nodes(page, 4) else { return };
    daemon.zero("max");
    let small = daemon.client().lend(&LendRequest::new(page.times(3))).expect("three of eight");
    let first = small.parts().next().expect("a part").1.node;
    assert!(small.parts().all(|(_, part)| part.node == first));
    drop(small);
    daemon.wait_for("returned", |p| p.lent_pages == Pages(0) && p.draining_pages == Pages(0));
    daemon.zero("max");
    let large = daemon.client().lend(&LendRequest::new(page.times(7))).expect("seven of eight");
    assert_eq!(large.ready_bytes(), page.times(7));
    assert_zero(&large.map_alone().expect("one range over both nodes"));
}

#[test]
fn a_node_without_pages_is_refused_while_another_has_some() {
    let page = Page::Mib2;
    let Some(daemon) = two_nodes(page, 2) else { return };
    daemon.zero("max");
    let request = LendRequest { node: Some(Node(1)), ..LendRequest::new(page.times(3)) };
    let refused = daemon.client().lend(&request);
    assert!(matches!(refused, Err(Error::Refused(wire::Error::NotEnough { .. }))), "{refused:?}");
}
