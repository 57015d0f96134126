// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the book decides is done, and whoever watches is told.

use super::*;

#[test]
fn whoever_watches_is_told_of_what_is_done_and_of_nothing_else() {
    let bed = Bed::new();
    let mut changes = bed.shell.borrow().changes.subscribe();
    let mut is_told = || {
        let told = changes.has_changed().expect("a shell");
        changes.mark_unchanged();
        told
    };
    bed.zero(1);
    assert!(is_told());
    let refused = bed.try_lend(&LendRequest { page_size: Some(PageSize::GIB_1), ..pages(512) });
    assert!(refused.is_err() && !is_told(), "{refused:?}");
    bed.shell.borrow_mut().relieve();
    assert!(!is_told(), "there was nothing to do");
    let granted = bed.lend(&pages(1));
    assert!(is_told());
    bed.shell.borrow_mut().end_lease(lease_of(&granted));
    assert!(is_told());
}

#[test]
fn pages_that_were_given_back_are_looked_for_at_once() {
    let bed = Bed::new();
    bed.zero(2);
    let is_known = || bed.shell.borrow().observed.at.is_some();
    bed.shell.borrow_mut().observe();
    let granted = bed.lend(&pages(1));
    assert!(is_known(), "a loan of ready pages takes none of the kernel's");
    bed.shell.borrow_mut().apply(|book| book.give_back(None, None, Pages(1)));
    assert!(!is_known(), "a block was removed");
    bed.shell.borrow_mut().observe();
    bed.shell.borrow_mut().revoke(lease_of(&granted));
    assert!(!is_known(), "a loan's file was");
}

#[test]
fn a_block_whose_file_cannot_be_made_is_nobodys() {
    let bed = Bed::new();
    let zeroing = bed.directory("zeroing");
    fs::remove_dir(&zeroing).expect("an empty directory");
    let taken = bed.shell.borrow_mut().take_zeroing(Who::User, None, None);
    let error = taken.expect_err("no file could be made");
    assert!(matches!(error, wire::Error::Failed { .. }), "{error:?}");
    assert_eq!(bed.shell.borrow_mut().status().pools[0].blocks, 0);
}
