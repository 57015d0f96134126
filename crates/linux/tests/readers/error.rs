// SPDX-License-Identifier: Apache-2.0 OR MIT
use linux::{BlockDir, Errno, hugetlb};
use testkit::tree;

use super::hugetlb::MIB_2;

#[test]
fn names_the_call_the_file_and_the_errno() {
    let tree = tree(&[]);
    let roots = tree.roots();
    let error = hugetlb::counters(&roots, MIB_2, None).unwrap_err();
    let path = roots.sys.join("kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    assert_eq!(error.to_string(), format!("open({path:?}) = ENOENT (no such file or directory)"));
    assert_eq!(error.errno(), Some(Errno::NOENT));
    assert!(error.is_not_found() && !error.is_no_space() && !error.is_denied());
}

#[test]
fn names_the_text_that_does_not_fit() {
    let names = ["nr", "free", "surplus", "resv"];
    let paths =
        names.map(|name| format!("sys/kernel/mm/hugepages/hugepages-2048kB/{name}_hugepages"));
    let tree = tree(&paths.each_ref().map(|path| (path.as_str(), "many\n")));
    let error = hugetlb::counters(&tree.roots(), MIB_2, None).unwrap_err().to_string();
    assert!(error.ends_with("/nr_hugepages: expected a number, found \"many\""), "{error}");
}

#[test]
fn an_errno_without_a_name_keeps_its_number() {
    // A directory of blocks cannot be opened below a file name that is too long: ENAMETOOLONG, 36.
    let long = "x".repeat(300);
    let error = BlockDir::open(std::path::Path::new(&long), &[], 0o700).unwrap_err().to_string();
    assert!(error.ends_with("O_DIRECTORY) = errno 36"), "{error}");
}
