// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a machine of any number of nodes can show; placement on two nodes is asked in a virtual
//! machine that has them.

use linux::{Mapping, Roots, numa};
use testkit::hugepages::{GIB_1, MIB_2};
use testkit::{child, skip};
use units::Node;

use crate::memory::Memory;

#[test]
fn pages_are_on_the_node_that_the_thread_is_bound_to() {
    for node in numa::nodes(&Roots::default()).unwrap() {
        bound(node, &Memory::plain());
        for page in [MIB_2, GIB_1] {
            if let Some(memory) = Memory::huge_on(Some(node), page, 2) {
                bound(node, &memory);
            }
        }
    }
}

fn bound(node: Node, memory: &Memory) {
    // The policy is the thread's: one of its own, which ends with it.
    std::thread::scope(|scope| {
        let fill = || {
            numa::bind_thread_to(node).unwrap();
            drop(memory.block("a", 2));
        };
        scope.spawn(fill).join().unwrap();
    });
    let file = memory.dir.open_block("ready", "a").unwrap();
    let mapping = Mapping::map(&file, memory.bytes(2), memory.page).unwrap();
    assert_eq!(numa::nodes_of(&mapping, memory.page).unwrap(), [node, node], "{}", memory.page);
}

#[test]
fn asking_for_the_nodes_of_a_full_block_takes_no_page() {
    Memory::each_huge(2, |memory| {
        let free = memory.free().unwrap();
        let file = memory.block("a", 2);
        let mapping = Mapping::map(&file, memory.bytes(2), memory.page).unwrap();
        assert_eq!(numa::nodes_of(&mapping, memory.page).unwrap().len(), 2);
        assert_eq!(memory.free(), Some(free - 2));
        assert_eq!(file.first_nonzero(0..memory.bytes(2)).unwrap(), None);
    });
}

#[test]
fn a_node_that_is_not_there_is_refused() {
    // 1023 is the highest node that any architecture's kernel can be built for.
    let error = numa::bind_thread_to(Node(1023)).unwrap_err().to_string();
    assert!(error.starts_with("set_mempolicy(MPOL_BIND, {1023}) = "), "{error}");
    assert_eq!(policy(), "default");
}

#[test]
fn binding_is_the_threads_own() {
    let _alone = child::alone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            numa::bind_thread_to(Node(0)).unwrap();
            match policy().as_str() {
                "default" => skip("this kernel has no NUMA"),
                bound => assert_eq!(bound, "bind:0"),
            }
            numa::reset_policy().unwrap();
            assert_eq!(policy(), "default");
        });
    });
    assert_eq!(policy(), "default");
}

/// What the kernel says of memory that has no policy of its own: the calling thread's.
fn policy() -> String {
    let maps = std::fs::read_to_string("/proc/thread-self/numa_maps").unwrap_or_default();
    let of_first = maps.split_ascii_whitespace().nth(1);
    of_first.unwrap_or("default").to_owned()
}
