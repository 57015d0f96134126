// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a start makes of the files that it finds.

use std::fs::{File, Permissions, create_dir, remove_file, rename, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use testkit::hold_lease;

use super::*;

/// A daemon that has one block ready, and where that is.
fn with_one_ready() -> (Bed, PathBuf) {
    let bed = Bed::new();
    bed.zero(1);
    let path = bed.path(bed.only(StateName::Ready));
    (bed, path)
}

fn unknown(bed: &Bed) -> u64 {
    bed.shell.borrow().store.unknown().expect("a count")
}

#[test]
fn ready_files_stay_ready_unless_a_process_may_have_them() {
    let (bed, _) = with_one_ready();
    let bed = bed.killed();
    assert_eq!(bed.count(StateName::Ready), 1);
    drop(bed);

    let (bed, path) = with_one_ready();
    let held = File::open(&path).expect("a file");
    let bed = bed.killed();
    assert_eq!(bed.count(StateName::Ready), 0, "somebody has it open");
    drop((bed, held));

    let (bed, path) = with_one_ready();
    let held = File::options().write(true).open(&path).expect("a file");
    hold_lease(&held).expect("nobody else has it open");
    let bed = bed.killed();
    assert_eq!(bed.count(StateName::Ready), 0, "somebody has a lease on it");
    drop((bed, held));

    let (bed, path) = with_one_ready();
    set_permissions(&path, Permissions::from_mode(0o644)).expect("a file");
    let bed = bed.killed();
    assert_eq!(bed.count(StateName::Ready), 0, "anybody may open it");
}

#[test]
fn unknown_files_and_names_without_files_are_removed() {
    let (bed, path) = with_one_ready();
    remove_file(path).expect("a file");
    create_dir(bed.directory("lent").join("notes")).expect("a directory");
    let bed = bed.killed();
    for state in ["ready", "lent"] {
        assert!(bed.names(state).is_empty(), "{state}");
    }
    assert_eq!(bed.shell.borrow_mut().status().pools[0].blocks, 0);
    assert_eq!(unknown(&bed), 0);
}

#[test]
fn file_in_place_of_a_blocks_directory_is_removed() {
    let (bed, path) = with_one_ready();
    let block = path.parent().expect("a directory").to_owned();
    fs::remove_dir_all(&block).expect("a block");
    fs::write(&block, "").expect("the same name");
    let bed = bed.killed();
    assert!(!block.exists() && bed.names("ready").is_empty());
    assert_eq!(bed.count(StateName::Ready), 0);
}

#[test]
fn a_loan_that_is_held_goes_on_in_the_next_daemon() {
    let bed = Bed::new();
    bed.zero(2);
    let [held, gone] = [1, 1].map(|count| bed.lend(&pages(count)));
    let [lease, ended] = [&held, &gone].map(lease_of);
    drop(gone);
    let mut bed = bed.killed();
    assert!(bed.has(lease) && !bed.has(ended));
    bed.settle_all();
    assert_eq!((bed.count(StateName::Lent), bed.count(StateName::Zeroable)), (1, 1));
    drop(held);
}

#[test]
fn files_that_the_daemon_knows_nothing_of_are_counted() {
    let (bed, _) = with_one_ready();
    bed.wait_for_user_queues();
    assert_eq!(unknown(&bed), 0);
    for state in ["ready", "lent", "gone"] {
        create_dir(bed.directory(state).join("b77")).expect("a directory");
    }
    assert_eq!(unknown(&bed), 3);
    let busy = bed.hold_up(None);
    assert_eq!(unknown(&bed), 2, "what is on its way to the kernel is known");
    drop(busy);
}

// Promise P258.
#[test]
fn pages_in_flight_at_a_crash_are_freed() {
    let (bed, path) = with_one_ready();
    let of_it = path.parent().expect("a directory");
    let gone = bed.directory("gone").join(of_it.file_name().expect("a name"));
    rename(of_it, &gone).expect("a block");
    let file = File::open(gone.join("pages")).expect("a file");
    let bed = bed.killed();
    bed.wait_for_user_queues();
    assert!(bed.names("gone").is_empty());
    assert_eq!(file.metadata().expect("its length").len(), 0, "whoever still has it");
}
