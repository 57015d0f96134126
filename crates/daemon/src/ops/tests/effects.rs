// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The book's decisions are carried out, and watchers are told.

use super::*;

#[test]
fn watchers_are_notified_of_done_effects_only() {
    let bed = Bed::new();
    let mut changes = bed.shell.borrow().changes.subscribe();
    let mut is_notified = || {
        let reported = changes.has_changed().expect("a shell");
        changes.mark_unchanged();
        reported
    };
    bed.zero(1);
    assert!(is_notified());
    let refused = bed.try_lend(&LendRequest { page_size: Some(PageSize::GIB_1), ..pages(512) });
    assert!(refused.is_err() && !is_notified(), "{refused:?}");
    bed.shell.borrow_mut().relieve();
    assert!(!is_notified(), "there was nothing to do");
    let granted = bed.lend(&pages(1));
    assert!(is_notified());
    bed.shell.borrow_mut().end_lease(lease_of(&granted));
    assert!(is_notified());
}

#[test]
fn released_pages_are_looked_for_at_once() {
    let bed = Bed::new();
    bed.zero(2);
    let is_known = || bed.shell.borrow().observed.at.is_some();
    bed.shell.borrow_mut().observe();
    let granted = bed.lend(&pages(1));
    assert!(is_known(), "a loan of ready pages takes none of the kernel's");
    bed.shell.borrow_mut().apply(|book| book.release(None, None, Pages(1)));
    assert!(!is_known(), "a block was removed");
    bed.shell.borrow_mut().observe();
    bed.shell.borrow_mut().revoke(lease_of(&granted));
    assert!(!is_known(), "a loan's file was");
}

#[test]
fn block_without_a_file_has_no_holder() {
    let bed = Bed::new();
    let zeroing = bed.directory("zeroing");
    fs::remove_dir(&zeroing).expect("an empty directory");
    let taken = bed.shell.borrow_mut().take_zeroing(Requester::User, None, None);
    let error = taken.expect_err("no file could be made");
    assert!(matches!(error, wire::Error::Failed { .. }), "{error:?}");
    assert_eq!(bed.shell.borrow_mut().status().pools[0].blocks, 0);
}
