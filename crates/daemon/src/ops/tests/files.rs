// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that go: at once, later, with what others have of them or without.

use std::fs::{File, create_dir, remove_dir, remove_file};
use std::path::{Path, PathBuf};

use super::*;

fn directory_of(bed: &Bed, block: BlockId) -> PathBuf {
    bed.path(block).parent().expect("a block has a directory").to_owned()
}

/// What stands where a block's directory goes when it is removed.
fn in_the_way(bed: &Bed, block: BlockId) -> PathBuf {
    let of_it = directory_of(bed, block);
    bed.directory("gone").join(of_it.file_name().expect("a name"))
}

fn release_all(bed: &Bed) {
    bed.shell.borrow_mut().apply(|book| book.release(None, None, Pages(99)));
    bed.wait_for_user_queues();
}

#[test]
fn a_file_that_cannot_be_removed_now_is_removed_later() {
    let bed = Bed::new();
    bed.zero(1);
    let obstacle = in_the_way(&bed, bed.only(StateName::Ready));
    create_dir(&obstacle).expect("nothing is there yet");
    release_all(&bed);
    assert_eq!(bed.names("ready").len(), 1, "it could not be");
    let mut changes = bed.shell.borrow().changes.subscribe();
    bed.shell.borrow_mut().settle_some(9);
    assert_eq!(bed.names("ready").len(), 1, "nor can it now");
    assert!(!changes.has_changed().expect("a shell"));
    remove_dir(&obstacle).expect("the obstacle");
    changes.mark_unchanged();
    bed.shell.borrow_mut().observe();
    bed.shell.borrow_mut().settle_some(9);
    bed.wait_for_user_queues();
    assert_eq!(bed.names("ready").len() + bed.names("gone").len(), 0);
    assert!(changes.has_changed().expect("a shell"), "there are pages for who waits for some");
    changes.mark_unchanged();
    bed.shell.borrow_mut().settle_some(9);
    assert!(!changes.has_changed().expect("a shell"), "once");
}

#[test]
fn a_file_that_is_not_there_is_removed() {
    let bed = Bed::new();
    bed.zero(1);
    let block = bed.only(StateName::Ready);
    remove_file(bed.path(block)).expect("a file");
    remove_dir(directory_of(&bed, block)).expect("its directory");
    release_all(&bed);
    assert!(bed.shell.borrow().path_of(block).is_none(), "nothing is tried again");
}

#[test]
fn holder_loses_its_file_unless_holders_cannot_be_read() {
    for is_known in [true, false] {
        let mut bed = Bed::new();
        bed.zero(1);
        let granted = bed.lend(&pages(1));
        let (lease, block) = (lease_of(&granted), block_of(&granted));
        let file = File::open(bed.path(block)).expect("a file");
        drop(granted);
        if is_known {
            bed.shell.borrow_mut().revoke(lease);
        } else {
            bed.shell.borrow_mut().end_lease(lease);
            bed.settle_as(|| Reach::Unknown);
        }
        bed.wait_for_user_queues();
        let left = file.metadata().expect("its length").len();
        assert_eq!(left, if is_known { 0 } else { SIZE.bytes() });
        assert!(bed.shell.borrow().path_of(block).is_none());
        assert_eq!(bed.names("gone").len(), 0);
    }
}

#[test]
fn at_the_end_nothing_is_left_of_any_file() {
    let mut bed = Bed::new();
    bed.zero(3);
    let lent = bed.lend(&pages(1));
    let ended = bed.lend(&pages(1));
    let memory = map(&ended);
    bed.end(ended);
    bed.settle();
    assert_eq!(bed.count(StateName::Draining), 1);
    let files: Vec<_> = (lent.handover.loan.parts.iter())
        .map(|part| File::open(bed.path(part.block)).expect("a file"))
        .collect();
    bed.shell.borrow_mut().clean_up().expect("an end");
    for state in ["zeroable", "zeroing", "ready", "lent", "draining", "kept", "gone"] {
        assert!(bed.names(state).is_empty(), "{state}");
    }
    assert!(files.iter().all(|file| file.metadata().expect("its length").len() == 0));
    drop((lent, memory));
}

#[test]
fn start_finds_remains_of_a_start_killed_while_it_probed() {
    let bed = Bed::new();
    bed.zero(1);
    let probe = bed.directory("zeroable").join("probe");
    create_dir(&probe).expect("a directory");
    File::create(probe.join(file_name_in(&directory_of(&bed, bed.only(StateName::Ready)))))
        .expect("a file");
    let bed = bed.killed();
    assert!(!probe.exists());
    assert_eq!(bed.count(StateName::Ready), 1);
}

/// What the file in a block's directory is called.
fn file_name_in(directory: &Path) -> std::ffi::OsString {
    let mut entries = fs::read_dir(directory).expect("a directory");
    entries.next().expect("a file").expect("an entry").file_name()
}
