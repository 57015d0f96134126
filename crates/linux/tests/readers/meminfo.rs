// SPDX-License-Identifier: Apache-2.0 OR MIT
use linux::meminfo::{self, FreeBlocks};
use testkit::tree;
use units::{Node, PageSize};

const KIB_4: PageSize = PageSize::new(4 << 10).unwrap();
const MIB_2: PageSize = PageSize::new(2 << 20).unwrap();
const GIB_1: PageSize = PageSize::new(1 << 30).unwrap();

#[test]
fn reads_a_nodes_memory_and_without_numa_the_machines() {
    let tree = tree(&[
        ("proc/meminfo", "MemTotal: 8 kB\nMemFree: 3 kB\nMemAvailable: 4 kB\n"),
        (
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal:       7 kB\nNode 1 MemFree:        2 kB\nNode 1 MemUsed: 5 kB\n",
        ),
        ("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal: 7 kB\n"),
    ]);
    let memory = |node| {
        let memory = meminfo::node_memory(&tree.roots(), Node(node))?;
        Ok::<_, linux::Error>((memory.total_bytes, memory.free_bytes))
    };
    assert_eq!(memory(1).unwrap(), (7 << 10, 2 << 10));
    assert_eq!(memory(0).unwrap(), (8 << 10, 3 << 10));
    assert!(memory(2).unwrap_err().to_string().contains("node2/meminfo"));
}

#[test]
fn available_node_memory_excludes_shared_and_fits_the_machine() {
    let machine = "MemTotal: 90 kB\nMemFree: 3 kB\nMemAvailable: 50 kB\n";
    let node = |free| {
        format!(
            "Node 1 MemTotal: 60 kB\nNode 1 MemFree: {free} kB\nNode 1 FilePages: 20 kB\n\
             Node 1 Shmem: 15 kB\nNode 1 ShmemHugePages: 9 kB\nNode 1 SReclaimable: 4 kB\n"
        )
    };
    let available = |free, number| {
        let tree = tree(&[
            ("proc/meminfo", machine),
            ("sys/devices/system/node/node1/meminfo", &node(free)),
        ]);
        meminfo::available_on(&tree.roots(), Node(number)).unwrap().0
    };
    assert_eq!(available(1, 1), (1 + 20 - 15 + 4) << 10);
    assert_eq!(available(45, 1), 50 << 10, "the machine has no more");
    assert_eq!(available(1, 0), 50 << 10, "without NUMA the machine's");
}

#[test]
fn reads_memory_in_bytes() {
    let tree = tree(&[(
        "proc/meminfo",
        "MemTotal:       24684084 kB\nMemFree:        21000000 kB\nMemAvailable:   23000000 kB\n\
         HugePages_Total:       4\nHugepagesize:       2048 kB\nHugetlb:         1056768 kB\n\
         HardwareCorrupted:  2048 kB\n",
    )]);
    let memory = meminfo::memory(&tree.roots()).unwrap();
    assert_eq!(memory.total_bytes, 24_684_084 << 10);
    assert_eq!(memory.free_bytes, 21_000_000 << 10);
    assert_eq!(memory.available_bytes, 23_000_000 << 10);
    assert_eq!(memory.broken_bytes, Some(2 << 20));
    assert_eq!(memory.hugetlb_bytes, Some(1_056_768 << 10));
    assert_eq!(memory.default_huge_page, Some(MIB_2));
}

#[test]
fn a_kernel_without_hugetlb_lacks_two_fields() {
    let tree = tree(&[("proc/meminfo", "MemTotal: 1 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n")]);
    let memory = meminfo::memory(&tree.roots()).unwrap();
    assert_eq!((memory.hugetlb_bytes, memory.default_huge_page), (None, None));
}

#[test]
fn a_missing_or_broken_field_is_an_error() {
    let missing = tree(&[("proc/meminfo", "MemTotal: 1 kB\nMemFree: 1 kB\n")]);
    assert!(meminfo::memory(&missing.roots()).is_err());
    let broken = tree(&[("proc/meminfo", "MemTotal: x kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n")]);
    let error = meminfo::memory(&broken.roots()).unwrap_err().to_string();
    assert!(error.ends_with("proc/meminfo: expected N kB, found \"x\""), "{error}");
}

#[test]
fn adds_up_the_zones_of_a_node() {
    let tree = tree(&[(
        "proc/buddyinfo",
        "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n\
         Node 0, zone   Normal      1      2      0      1      1      2      1      3      1    122   4334 \n\
         Node 1, zone   Normal      8      0      0      0      0      0      0      0      0      0      0 \n",
    )]);
    let nodes = meminfo::free_blocks(&tree.roots()).unwrap();
    assert_eq!(
        nodes,
        [
            FreeBlocks { node: Node(0), by_order: vec![1, 2, 0, 1, 1, 2, 1, 3, 2, 123, 4337] },
            FreeBlocks { node: Node(1), by_order: vec![8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] },
        ]
    );
    // 2 MiB is order 9: 123 blocks, and two pages in each of the 4337 blocks of order 10.
    assert_eq!(nodes[0].obtainable(MIB_2, KIB_4), 123 + 2 * 4337);
    // 1 GiB is above order 10: as if all blocks of 4 MiB were neighbours, 256 to a page.
    assert_eq!(nodes[0].obtainable(GIB_1, KIB_4), 4337 / 256);
    assert_eq!(nodes[1].obtainable(MIB_2, KIB_4), 0);
    assert_eq!(nodes[1].free_bytes(KIB_4), 8 * 4096);
}

#[test]
fn a_line_of_another_form_is_an_error() {
    let tree = tree(&[("proc/buddyinfo", "Node 0, zone Normal 1 two 3\n")]);
    let error = meminfo::free_blocks(&tree.roots()).unwrap_err().to_string();
    assert!(error.ends_with("expected a count of blocks, found \"two\""), "{error}");
}
