// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The readers on this machine: its numbers fit together on any hardware.

use linux::{Roots, cpu, hugetlb, meminfo, numa, psi};
use testkit::hugepages::{self, MIB_2};
use testkit::{child, skip, tree};

#[test]
fn memory_adds_up() {
    let roots = Roots::default();
    let memory = meminfo::memory(&roots).unwrap();
    assert!(memory.free_bytes <= memory.total_bytes);
    assert!(memory.available_bytes <= memory.total_bytes);
    let nodes = numa::nodes(&roots).unwrap();
    let blocks = meminfo::free_blocks(&roots).unwrap();
    assert!(blocks.iter().all(|entry| nodes.contains(&entry.node)));
}

#[test]
fn cpus_and_kernel_have_names() {
    let machine = cpu::describe(&Roots::default()).unwrap();
    assert!(!machine.vendor.is_empty() && !machine.model.is_empty());
    assert!(machine.kernel_release.starts_with(|first: char| first.is_ascii_digit()));
}

#[test]
fn pressure_is_a_percentage() {
    match psi::cpu(&Roots::default()).unwrap() {
        Some(pressure) => assert!((0.0..=100.0).contains(&pressure.some.avg10_percent)),
        None => skip("this kernel has no pressure information"),
    }
}

#[test]
fn the_nodes_pools_are_the_machines_pool() {
    let _alone = child::alone();
    let Some(_guard) = hugepages::reserve(MIB_2, 8) else { return };
    let roots = Roots::default();
    let machine = hugetlb::counters(&roots, MIB_2, None).unwrap();
    assert!(machine.free >= 8);
    let nodes = numa::nodes(&roots).unwrap().into_iter();
    let per_node = nodes.map(|node| hugetlb::counters(&roots, MIB_2, Some(node)).unwrap());
    let (total, free) = per_node.fold((0, 0), |sum, node| (sum.0 + node.total, sum.1 + node.free));
    assert_eq!((total, free), (machine.total, machine.free));
}

#[test]
fn a_test_that_fails_names_the_programs_that_take_its_pages() {
    let status = |name: &str, parent: u32, kib: u64| {
        format!("Name:\t{name}\nPPid:\t{parent}\nHugetlbPages:\t  {kib} kB\n")
    };
    let own = std::process::id();
    let files = [
        ("proc/7/status", status("mysqld", 1, 40 << 10)),
        ("proc/8/status", status("idle", 1, 0)),
        ("proc/9/status", status("daemon-of-the-test", own, 2 << 10)),
        ("proc/self/status", status("mysqld", 1, 40 << 10)),
    ];
    let files: Vec<_> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let machine = tree(&files);
    let line = hugepages::strangers(&machine.roots()).expect("one of them");
    assert!(line.contains(": mysqld (pid 7) has 40 MiB; end it"), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert_eq!(hugepages::strangers(&tree(&files[1..3]).roots()), None);
}

#[test]
fn one_nodes_pool_grows_alone() {
    let _alone = child::alone();
    let Some(_guard) = hugepages::reserve(MIB_2, 1) else { return };
    let roots = Roots::default();
    let node = numa::nodes(&roots).unwrap()[0];
    let before = hugetlb::counters(&roots, MIB_2, Some(node)).unwrap().total;
    assert_eq!(hugetlb::set_total(&roots, MIB_2, Some(node), before + 2).unwrap(), before + 2);
    assert_eq!(hugetlb::set_total(&roots, MIB_2, Some(node), before).unwrap(), before);
}
