// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of several crates share. It is for tests only: no shipped crate depends on it.
//!
//! # Safety
//!
//! Two calls of `fcntl` that take a descriptor and a number.
#![expect(unsafe_code, reason = "fcntl on leases, which rustix lacks")]

pub mod child;
pub mod hugepages;
mod lock;
mod skip;
mod tree;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{FallocateFlags, fallocate};

pub use lock::MOUNTS_PREFIX;
pub use skip::{GIB_PAGES, IN_VM, NO_SKIP, SKIP_LOG, skip, skip_always, skipped};
pub use tree::{Tree, tree};

/// Gives the pages of `range` of a file back and leaves a hole, as a borrower can; its length stays
/// as it is.
///
/// # Errors
/// Those of `fallocate`.
pub fn punch(file: impl AsFd, range: Range<u64>) -> linux::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let length = range.end.saturating_sub(range.start);
    let named = |errno| {
        let call = format!("fallocate(PUNCH_HOLE, {}, {length})", range.start).into();
        linux::Error::Call { call, errno, advice: None }
    };
    fallocate(file, flags, range.start, length).map_err(named)
}

/// Takes a write lease on a file and keeps it, deaf to the signal by which the kernel asks for it.
///
/// # Errors
/// EAGAIN if the file is open elsewhere, EACCES if it belongs to another user.
pub fn hold_lease(file: impl AsFd) -> io::Result<()> {
    // `F_SETSIG` of `asm-generic/fcntl.h`, which the libc crate lacks for some targets.
    const F_SETSIG: libc::c_int = 10;
    set(&file, F_SETSIG, libc::SIGURG)?;
    set(&file, libc::F_SETLEASE, libc::F_WRLCK)
}

fn set(file: &impl AsFd, command: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as the borrow lasts; the value is a number.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, value) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
