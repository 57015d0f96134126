// SPDX-License-Identifier: Apache-2.0 OR MIT
use linux::Errno;
use linux::kernel::files::{CountFile, Name, exist};
use linux::kernel::{Support, offer};
use testkit::tree;
use units::{Domain, Node};

use super::hugetlb::MIB_2;

const POOL: &str = "sys/devices/system/node/node1/hugepages/hugepages-2048kB";

fn on(node: u32) -> Domain {
    Domain { node: Node(node), page_size: MIB_2 }
}

fn file(name: &str) -> String {
    format!("{POOL}/{name}")
}

#[test]
fn a_kernel_without_the_series_is_stock() {
    let tree = tree(&[
        ("sys/devices/system/node/has_memory", "1\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n"),
        (&file("nr_hugepages"), "0\n"),
    ]);
    let offer = offer::probe(&tree.roots()).unwrap();
    assert_eq!(
        (offer.kernel, offer.effective(), offer.files),
        (Support::Stock, Support::Stock, false)
    );
    assert_eq!(offer.missing, None);
}

#[test]
fn a_kernel_without_huge_pages_is_stock() {
    let tree = tree(&[("sys/devices/system/node/has_memory", "0\n")]);
    assert_eq!(offer::probe(&tree.roots()).unwrap().kernel, Support::Stock);
}

#[test]
fn files_without_a_device_are_stock_and_name_missing_parts() {
    let tree = tree(&[
        ("sys/devices/system/node/has_memory", "1\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n"),
        (&file("zeroed_hugepages"), "3\n"),
        (&file("zeroable_hugepages"), "4\n"),
    ]);
    let offer = offer::probe(&tree.roots()).unwrap();
    assert_eq!((offer.kernel, offer.files), (Support::Stock, true));
    assert!(offer.missing.unwrap().contains("/dev/hugepagectl"), "{offer:?}");
}

#[test]
fn a_device_that_is_none_is_stock_and_says_so() {
    let tree = tree(&[
        ("sys/devices/system/node/has_memory", "1\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n"),
        ("dev/hugepagectl", ""),
    ]);
    let offer = offer::probe(&tree.roots()).unwrap();
    assert_eq!(offer.kernel, Support::Stock);
    assert!(offer.missing.unwrap().contains("HUGEPAGECTL_QUERY"), "{offer:?}");
    let device = linux::kernel::Device::open(&tree.roots()).unwrap();
    let error = device.query(on(1)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NOTTY));
    assert!(error.to_string().contains("node: 1, page_shift: 21"), "{error}");
}

#[test]
fn the_files_are_read_again_and_again() {
    let tree = tree(&[(&file("zeroed_hugepages"), "3\n"), (&file("zeroable_hugepages"), "x\n")]);
    let roots = tree.roots();
    assert!(exist(&roots, on(1)));
    assert!(!exist(&roots, on(0)));
    let mut zeroed = CountFile::open(&roots, on(1), Name::Zeroed).unwrap();
    assert_eq!(zeroed.read().unwrap(), 3);
    std::fs::write(roots.sys.join(&file("zeroed_hugepages")["sys/".len()..]), "12\n").unwrap();
    assert_eq!(zeroed.read().unwrap(), 12);
    let mut nonsense = CountFile::open(&roots, on(1), Name::Zeroable).unwrap();
    assert!(nonsense.read().unwrap_err().to_string().contains("a number of pages"));
    let absent = CountFile::open(&roots, on(0), Name::Zeroed).unwrap_err();
    assert!(absent.is_not_found(), "{absent}");
}
