// SPDX-License-Identifier: Apache-2.0 OR MIT
use linux::hugetlb::{self, HugetlbCounters};
use testkit::tree;
use units::{Node, PageSize};

pub(crate) const MIB_2: PageSize = PageSize::new(2 << 20).unwrap();
const GIB_1: PageSize = PageSize::new(1 << 30).unwrap();

#[test]
fn lists_page_sizes_from_small_to_large() {
    // The directory's own order, and that of the names, puts 1 GiB first.
    let tree = tree(&[
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n"),
        ("sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "0\n"),
    ]);
    let kib: Vec<_> = hugetlb::page_sizes(&tree.roots()).unwrap().iter().map(|p| p.kib()).collect();
    assert_eq!(kib, [64, 2048, 1_048_576]);
}

#[test]
fn a_kernel_without_hugetlb_has_no_page_size() {
    assert_eq!(hugetlb::page_sizes(&tree(&[]).roots()).unwrap(), []);
}

#[test]
fn a_directory_of_another_form_is_an_error() {
    let tree = tree(&[("sys/kernel/mm/hugepages/hugepages-3000kB/nr_hugepages", "0\n")]);
    let error = hugetlb::page_sizes(&tree.roots()).unwrap_err().to_string();
    assert!(error.ends_with("found \"hugepages-3000kB\""), "{error}");
}

#[test]
fn reads_the_machine_and_each_node() {
    let tree = tree(&[
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "12\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages", "1\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "3\n"),
        ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "8\n"),
        ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "2\n"),
        ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/surplus_hugepages", "0\n"),
    ]);
    let roots = tree.roots();
    let machine = hugetlb::counters(&roots, MIB_2, None).unwrap();
    assert_eq!(machine, HugetlbCounters { total: 12, free: 7, surplus: 1, reserved: Some(3) });
    assert_eq!(machine.unreserved_free(), 4);
    let node = hugetlb::counters(&roots, MIB_2, Some(Node(1))).unwrap();
    assert_eq!(node, HugetlbCounters { total: 8, free: 2, surplus: 0, reserved: None });
    assert_eq!(node.unreserved_free(), 2);

    assert!(hugetlb::counters(&roots, GIB_1, None).unwrap_err().is_not_found());
    assert!(hugetlb::counters(&roots, MIB_2, Some(Node(0))).unwrap_err().is_not_found());
}

#[test]
fn node_0_of_a_kernel_without_numa_is_the_machine() {
    let tree = tree(&[
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "4\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "4\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages", "0\n"),
    ]);
    assert_eq!(hugetlb::counters(&tree.roots(), MIB_2, Some(Node(0))).unwrap().total, 4);
    assert!(hugetlb::counters(&tree.roots(), MIB_2, Some(Node(1))).unwrap_err().is_not_found());
}

#[test]
fn sets_the_pool_of_the_machine_or_of_one_node() {
    let machine = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let node = "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    let tree = tree(&[(machine, ""), (node, "")]);
    assert_eq!(hugetlb::set_total(&tree.roots(), MIB_2, None, 16).unwrap(), 16);
    assert_eq!(hugetlb::set_total(&tree.roots(), MIB_2, Some(Node(1)), 9).unwrap(), 9);
    assert_eq!((tree.content(machine), tree.content(node)), ("16".into(), "9".into()));
}

// Promise P77 (programs): A kernel that counts fewer promised pages than none (after forks with
// private huge pages) is not taken for one that is short of pages.
/// What a fork does to the kernel's count, see `hugetlb::promised`.
#[test]
fn a_count_of_promises_below_zero_is_none() {
    let dir = "sys/kernel/mm/hugepages/hugepages-2048kB";
    let files = [
        (format!("{dir}/nr_hugepages"), "360\n"),
        (format!("{dir}/free_hugepages"), "120\n"),
        (format!("{dir}/surplus_hugepages"), "0\n"),
        (format!("{dir}/resv_hugepages"), "18446744073709551614\n"),
    ];
    let tree = tree(&files.each_ref().map(|(path, text)| (path.as_str(), *text)));
    let counters = hugetlb::counters(&tree.roots(), MIB_2, None).unwrap();
    assert_eq!((counters.reserved, counters.unreserved_free()), (Some(0), 120));
}
