// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of several crates share: feature `test-support`, for dev-dependencies only.

pub mod child;
pub mod hugepages;
mod lock;
mod skip;
mod tree;

pub use lock::MOUNTS_PREFIX;
pub use skip::{GIB_PAGES, IN_VM, NO_SKIP, SKIP_LOG, skip, skip_for_ever, skipped};
pub use tree::{Tree, tree};

/// Gives the pages of `range` of a file back and leaves a hole, as a borrower can; its length stays
/// as it is.
///
/// # Errors
/// Those of `fallocate`.
pub fn punch(
    file: impl std::os::fd::AsFd,
    range: std::ops::Range<u64>,
) -> crate::error::Result<()> {
    use crate::error::Context as _;
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let length = range.end.saturating_sub(range.start);
    fallocate(file, flags, range.start, length)
        .or_call(|| format!("fallocate(PUNCH_HOLE, {}, {length})", range.start))
}

/// Takes a write lease on a file and keeps it, deaf to the signal by which the kernel asks for it.
///
/// # Errors
/// EAGAIN if the file is open elsewhere, EACCES if it is not the caller's.
pub fn hold_lease(file: impl std::os::fd::AsFd) -> Result<(), crate::Errno> {
    crate::raw::set_lease_signal(file.as_fd(), libc::SIGURG)?;
    crate::raw::set_lease(file.as_fd(), libc::F_WRLCK)
}
