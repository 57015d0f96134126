// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::path::Path;

use linux::{FuseMount, HugetlbMount, fuse, mount};
use testkit::tree;
use units::PageSize;

const MIB_2: PageSize = PageSize::new(2 << 20).unwrap();
const GIB_1: PageSize = PageSize::new(1 << 30).unwrap();

const MOUNTINFO: &str = r"24 30 0:22 / /proc rw,nosuid - proc proc rw
31 24 0:28 / /dev/hugepages rw,relatime shared:15 - hugetlbfs hugetlbfs rw,pagesize=2M
40 24 0:41 / /mnt/with\040space rw master:1 propagate_from:2 - hugetlbfs prezero rw,mode=700,pagesize=2M
43 24 0:41 /lent/b17 /dev/shm/bound rw - hugetlbfs prezero rw,mode=700,pagesize=2M
41 24 0:42 / /mnt/giant rw - hugetlbfs prezero rw,mode=700,pagesize=1024M
";

#[test]
fn finds_the_mounts_of_a_page_size_in_order() {
    let tree = tree(&[("proc/self/mountinfo", MOUNTINFO)]);
    let found = |page| mount::find(&tree.roots(), page).unwrap();
    let at = |dir: &str, page| HugetlbMount { dir: Path::new(dir).into(), page };
    assert_eq!(found(MIB_2), [at("/dev/hugepages", MIB_2), at("/mnt/with space", MIB_2)]);
    assert_eq!(found(GIB_1), [at("/mnt/giant", GIB_1)]);
    assert_eq!(found(PageSize::new(64 << 10).unwrap()), []);
}

#[test]
fn a_hugetlbfs_without_a_page_size_is_an_error() {
    let tree = tree(&[("proc/self/mountinfo", "31 24 0:28 / /huge rw - hugetlbfs none rw\n")]);
    let error = mount::find(&tree.roots(), MIB_2).unwrap_err().to_string();
    assert!(error.contains("mountinfo: expected a mountinfo line, found \"31 24"), "{error}");
}

#[test]
fn a_plain_directory_is_no_hugetlbfs() {
    assert_eq!(mount::is_hugetlbfs(Path::new("/proc")).unwrap(), None);
    assert!(mount::is_hugetlbfs(Path::new("/nowhere/at/all")).unwrap_err().is_not_found());
}

#[test]
fn finds_what_a_killed_server_left_mounted_and_nothing_else() {
    let mountinfo = "50 24 0:50 / /run/x/tree rw - fuse.prezero prezero rw,user_id=0\n\
                     51 24 0:51 / /run/x rw - fuse.prezero prezero rw\n\
                     52 24 0:52 / /run/x/tree rw - fuse.other prezero rw\n";
    let tree = tree(&[("proc/self/mountinfo", mountinfo)]);
    let dir = Path::new("/run/x/tree");
    let found = fuse::find(&tree.roots(), dir, "prezero").unwrap();
    assert_eq!(found, [FuseMount { dir: dir.into() }]);
}
