// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::os::unix::fs::PermissionsExt;

use linux::{Errno, Roots, mount};
use testkit::child;
use testkit::hugepages::{self, GIB_1, MIB_2};
use units::PageSize;

#[test]
fn mount_is_found_by_its_page_size() {
    let _alone = child::alone();
    for page in [MIB_2, GIB_1] {
        let Some(mounted) = hugepages::mounted(page) else { continue };
        assert_eq!(mount::is_hugetlbfs(mounted.path()).unwrap(), Some(page));
        let found = mount::find(&Roots::default(), page).unwrap();
        assert!(found.iter().any(|mount| mount.dir == mounted.path()), "{found:?}");
        let mode = std::fs::metadata(mounted.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn an_open_file_keeps_it_mounted() {
    let _alone = child::alone();
    let Some(mounted) = hugepages::mounted(MIB_2) else { return };
    let file = std::fs::File::create(mounted.path().join("a")).unwrap();
    let found = mount::find(&Roots::default(), MIB_2).unwrap();
    let again = found.into_iter().find(|mount| mount.dir == mounted.path()).unwrap();
    let error = again.unmount().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::BUSY), "{error}");
    assert!(error.to_string().ends_with("still open or mapped"), "{error}");
    drop(file);
}

#[test]
fn a_page_size_that_the_kernel_lacks_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error =
        mount::mount(&dir.path().join("huge"), PageSize::new(8 << 20).unwrap()).unwrap_err();
    assert!(error.to_string().contains("\"pagesize=8388608,mode=0700\") = E"), "{error}");
}
