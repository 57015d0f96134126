// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors that calls of this program may be about: a table that is read without a lock and
//! without a system call.
//!
//! It only says that a closer look is worth its price. A descriptor may be another file's by now,
//! so each look compares the inode.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::c_int;

/// What a descriptor was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Made by `mkstemp`.
    Made = 1,
    /// A file of huge pages that may be served: see [`crate::memfd`].
    Pending = 2,
    /// A file that is served.
    Served = 3,
}

/// The most descriptors that are watched; a new one takes the place of the oldest.
const MAX_WATCHED: usize = 64;

static TABLE: [AtomicU64; MAX_WATCHED] = [const { AtomicU64::new(0) }; MAX_WATCHED];
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// Whether this program has asked for the kind of a file system and got hugetlbfs.
static HAS_SEEN_HUGETLBFS: AtomicBool = AtomicBool::new(false);

fn unpack(entry: u64) -> Option<(c_int, Kind)> {
    let kind = match entry >> 32 {
        1 => Kind::Made,
        2 => Kind::Pending,
        3 => Kind::Served,
        _ => return None,
    };
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is the number")]
    let fd = (entry as u32).cast_signed();
    Some((fd, kind))
}

/// Watches a descriptor.
pub(crate) fn watch(fd: c_int, kind: Kind) {
    let entry = (kind as u64) << 32 | u64::from(fd.cast_unsigned());
    let used = NEXT.load(Ordering::Relaxed).min(MAX_WATCHED);
    for slot in &TABLE[..used] {
        let now = slot.load(Ordering::Relaxed);
        if unpack(now).is_some_and(|(its, _)| its == fd) {
            slot.store(entry, Ordering::Relaxed);
            return;
        }
    }
    let at = NEXT.fetch_add(1, Ordering::Relaxed);
    TABLE[at % MAX_WATCHED].store(entry, Ordering::Relaxed);
}

/// What a descriptor was when it was last watched.
pub(crate) fn kind_of(fd: c_int) -> Option<Kind> {
    let used = NEXT.load(Ordering::Relaxed).min(MAX_WATCHED);
    let mut known = TABLE[..used].iter().filter_map(|slot| unpack(slot.load(Ordering::Relaxed)));
    known.find(|(its, _)| *its == fd).map(|(_, kind)| kind)
}

/// A program that asks for the kind of a file system has found hugetlbfs.
pub(crate) fn saw_hugetlbfs() {
    HAS_SEEN_HUGETLBFS.store(true, Ordering::Relaxed);
}

pub(crate) fn has_seen_hugetlbfs() -> bool {
    HAS_SEEN_HUGETLBFS.load(Ordering::Relaxed)
}
