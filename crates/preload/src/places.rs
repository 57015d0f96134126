// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which files are lent ones, and on which nodes their pages lie.
//!
//! A request may be served with several blocks, each a file and a mapping of its own, where the
//! program has made one. Almost every call treats a row of mappings as one; what `mremap` does not
//! is done here.
//!
//! # Safety
//!
//! Ranges are moved that the program itself moves, to where it says.
#![expect(unsafe_code, reason = "moves the program's memory where it asks for that")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_int;

use crate::maps::{self, Piece};
use crate::raw::{self, Errno, File};

/// More files than that are not remembered: the oldest are forgotten, and are then treated as files
/// of somebody else. DPDK has one per page.
const MOST: usize = 4096;

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether anything has been lent.
pub(crate) fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// A lent file, named by its inode: whoever mapped it where, and whether anybody still does, is
/// the kernel's to say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    file: File,
    pub(crate) node: u32,
    pub(crate) page: usize,
    /// Whether another process may have it.
    pub(crate) shared: bool,
}

/// The lent files of this process.
#[derive(Debug)]
pub(crate) struct Places(Vec<Place>);

impl Places {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Remembers a file, the node of its pages and their size.
    pub(crate) fn add(&mut self, fd: BorrowedFd<'_>, node: u32, page: usize) {
        let Ok(file) = raw::file(fd.as_raw_fd()) else { return };
        // An inode's number may be used again.
        self.0.retain(|place| !place.file.is(file));
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        self.0.push(Place { file, node, page, shared: false });
        COUNT.store(self.0.len(), Ordering::Relaxed);
    }

    /// What is known of a piece of memory if it is lent.
    pub(crate) fn of(&self, piece: &Piece) -> Option<Place> {
        self.0.iter().find(|place| piece.is_of(place.file)).copied()
    }

    /// After a fork both sides have everything that is shared.
    pub(crate) fn forked(&mut self) {
        self.0.iter_mut().for_each(|place| place.shared = true);
    }

    /// A descriptor is about to be passed on.
    pub(crate) fn passed(&mut self, file: File) {
        let its = self.0.iter_mut().find(|place| place.file.is(file));
        its.into_iter().for_each(|place| place.shared = true);
    }
}

/// `mremap` to another place, of a row of blocks that the program has as one mapping. `None` if the
/// range is anything else.
///
/// Linux 6.17 moves such rows itself; before, `mremap` is about one mapping and says `EFAULT`.
///
/// # Safety
/// As `mremap` itself.
pub(crate) unsafe fn move_row(
    places: &Places,
    old: usize,
    old_bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new: usize,
) -> Option<raw::Result<usize>> {
    let (old_end, new_end) = (old.checked_add(old_bytes)?, new.checked_add(new_bytes)?);
    let overlaps = old < new_end && new < old_end;
    let moves = flags == libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    if !moves || overlaps || new_bytes == 0 || new_bytes > old_bytes {
        return None;
    }
    // The kernel has unmapped what is to be cut off before it saw the row.
    let row_end = old + new_bytes;
    let row = maps::pieces(old, row_end);
    let mut end = old;
    for piece in &row {
        places.of(piece).filter(|_| piece.start == end)?;
        end = piece.end;
    }
    if row.len() < 2 || end != row_end {
        return None;
    }
    for piece in row {
        let (bytes, to) = (piece.end - piece.start, new + (piece.start - old));
        // SAFETY: the caller's contract, for this part of the range.
        if let Err(error) = unsafe { raw::mremap(piece.start, bytes, bytes, flags, to) } {
            // What was moved stays moved, as after the kernel's own failure in the midst.
            return Some(Err(error));
        }
    }
    if row_end < old_end {
        // SAFETY: the caller's contract; there may be nothing any more.
        let _ = unsafe { raw::munmap(row_end, old_end - row_end) };
    }
    Some(Ok(new))
}

/// `mremap` as the program knows it.
///
/// # Safety
/// As the call itself.
pub(crate) unsafe fn remap(
    places: &Places,
    old: usize,
    old_bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new: usize,
) -> raw::Result<usize> {
    // SAFETY: the caller's contract.
    match unsafe { raw::mremap(old, old_bytes, new_bytes, flags, new) } {
        Err(Errno(libc::EFAULT)) => {
            // SAFETY: the caller's contract; the refused call has at most unmapped what it was to.
            let row = unsafe { move_row(places, old, old_bytes, new_bytes, flags, new) };
            row.unwrap_or(Err(Errno(libc::EFAULT)))
        }
        result => result,
    }
}
