// SPDX-License-Identifier: Apache-2.0 OR MIT
use linux::numa;
use testkit::tree;
use units::Node;

#[test]
fn lists_nodes_with_memory_and_their_cpus() {
    let tree = tree(&[
        ("sys/devices/system/node/online", "0-2\n"),
        ("sys/devices/system/node/has_memory", "0,2\n"),
        ("sys/devices/system/node/node0/cpulist", "0-3,8-11\n"),
        ("sys/devices/system/node/node2/cpulist", "\n"),
    ]);
    let roots = tree.roots();
    assert_eq!(numa::nodes(&roots).unwrap(), [Node(0), Node(2)]);
    assert_eq!(numa::cpus_of(&roots, Node(0)).unwrap().to_string(), "0-3,8-11");
    assert!(numa::cpus_of(&roots, Node(2)).unwrap().is_empty());
    assert!(numa::cpus_of(&roots, Node(5)).unwrap_err().is_not_found());
}

#[test]
fn a_kernel_without_numa_is_node_0() {
    let tree = tree(&[("sys/devices/system/cpu/online", "0-1\n")]);
    let roots = tree.roots();
    assert_eq!(numa::nodes(&roots).unwrap(), [Node(0)]);
    assert_eq!(numa::cpus_of(&roots, Node(0)).unwrap().len(), 2);
    assert!(numa::cpus_of(&roots, Node(1)).unwrap_err().is_not_found());
}

#[test]
fn names_the_file_of_a_broken_list() {
    let tree = tree(&[("sys/devices/system/node/has_memory", "all\n")]);
    let error = numa::nodes(&tree.roots()).unwrap_err().to_string();
    assert!(error.ends_with("has_memory: expected a list like 0-1, found \"all\\n\""), "{error}");
}
