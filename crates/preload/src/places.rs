// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which files are lent ones, and on which nodes their pages lie.
//!
//! A file is named by its inode: whoever mapped it where, and whether anybody still does, is the
//! kernel's to say ([`crate::maps`]). So nothing here goes stale when the program unmaps, moves or
//! replaces memory, by whatever call; and nothing is thrown away anywhere before the inode that
//! lies there has been found here.
//!
//! The table is read without a lock: what an allocator does under its own lock while the process
//! forks must wait for nobody. It is written behind the guard.
//!
//! A request may be served with several blocks, each a file and a mapping of its own, where the
//! program has made one. Almost every call treats a row of mappings as one; what `mremap` does not
//! is done here.
//!
//! # Safety
//!
//! Ranges are moved that the program itself moves, to where it says.
#![expect(unsafe_code, reason = "moves the program's memory where it asks for that")]
#![expect(clippy::cast_possible_truncation, reason = "fields of a word of 64 bits")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::c_int;

use crate::maps::{self, Piece};
use crate::next;
use crate::raw::{self, Errno, File};

/// Places in the table, of which three quarters are used: a program with more lent files than that
/// mapped gets the next from the kernel. DPDK has a file per page.
const SLOTS: usize = 1 << 14;
const MOST: usize = SLOTS / 4 * 3;

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
/// Slots that are not empty: in use, or left by a file that is mapped nowhere any more.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static PRIVATE_EVER: AtomicBool = AtomicBool::new(false);

/// Whether anything has been lent.
pub(crate) fn is_any() -> bool {
    TAKEN.load(Ordering::Relaxed) != 0
}

/// Whether anything has been lent for private memory.
pub(crate) fn is_any_private() -> bool {
    PRIVATE_EVER.load(Ordering::Relaxed)
}

struct Slot {
    device: AtomicU64,
    inode: AtomicU64,
    bytes: AtomicU64,
    /// 0, [`GONE`], or [`LIVE`] with the rest of what is known.
    word: AtomicU64,
}

const LIVE: u64 = 1 << 63;
const GONE: u64 = 1 << 62;
const PRIVATE: u64 = 1 << 61;
const SHARED: u64 = 1 << 60;
const SHIFT_AT: u32 = 32;

impl Slot {
    const fn new() -> Self {
        Self {
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            word: AtomicU64::new(0),
        }
    }

    fn has(&self, device: u64, inode: u64) -> bool {
        (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed)) == (device, inode)
    }
}

/// What is known of a lent file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) node: u32,
    pub(crate) page: usize,
    /// Whether it stands for memory that the program asked for as private.
    pub(crate) private: bool,
    /// Whether another process may have it.
    pub(crate) shared: bool,
    pub(crate) file_bytes: u64,
}

/// The slots in which a file may be, in the order in which they are looked at.
fn slots_of(inode: u64) -> impl Iterator<Item = &'static Slot> {
    // Inodes are counted up: neighbours lie in neighbouring slots.
    let first = inode as usize % SLOTS;
    (0..SLOTS).map(move |step| &TABLE[(first + step) % SLOTS])
}

fn slot_of(device: u64, inode: u64) -> Option<(&'static Slot, u64)> {
    for slot in slots_of(inode) {
        match slot.word.load(Ordering::Acquire) {
            0 => return None,
            word if word & LIVE != 0 && slot.has(device, inode) => {
                // Unless it has just become another's.
                return (slot.word.load(Ordering::Acquire) & LIVE != 0).then_some((slot, word));
            }
            _ => {}
        }
    }
    None
}

/// Makes sure that so many files can be added. For those who have the guard.
///
/// # Errors
/// `ENOMEM` if so many are mapped already.
pub(crate) fn make_room(files: usize) -> raw::Result<()> {
    if TAKEN.load(Ordering::Relaxed) + files <= MOST {
        return Ok(());
    }
    let pieces = maps::pieces(0, usize::MAX)?;
    let mut live = 0;
    for slot in &TABLE {
        if slot.word.load(Ordering::Relaxed) & LIVE == 0 {
            continue;
        }
        let (device, inode) =
            (slot.device.load(Ordering::Relaxed), slot.inode.load(Ordering::Relaxed));
        if pieces.iter().any(|piece| (piece.device, piece.inode) == (device, inode)) {
            live += 1;
        } else {
            slot.word.store(GONE, Ordering::Release);
        }
    }
    if live + files <= MOST { Ok(()) } else { Err(Errno(libc::ENOMEM)) }
}

/// Remembers a file, the node of its pages and their size; what was known of that inode before is
/// another file's that is gone.
pub(crate) fn add(fd: BorrowedFd<'_>, node: u32, page: usize, private: bool) -> raw::Result<File> {
    let file = raw::file(fd.as_raw_fd())?;
    if let Some((slot, _)) = slot_of(file.device, file.inode) {
        slot.word.store(GONE, Ordering::Release);
    }
    let free = slots_of(file.inode).find(|s| s.word.load(Ordering::Relaxed) & LIVE == 0);
    let slot = free.ok_or(Errno(libc::ENOMEM))?;
    if slot.word.load(Ordering::Relaxed) == 0 {
        TAKEN.fetch_add(1, Ordering::Relaxed);
    }
    slot.device.store(file.device, Ordering::Relaxed);
    slot.inode.store(file.inode, Ordering::Relaxed);
    slot.bytes.store(file.bytes, Ordering::Relaxed);
    let shift = u64::from(page.trailing_zeros()) << SHIFT_AT;
    let private_bit = if private { PRIVATE } else { 0 };
    slot.word.store(LIVE | private_bit | shift | u64::from(node), Ordering::Release);
    if private {
        PRIVATE_EVER.store(true, Ordering::Relaxed);
    }
    Ok(file)
}

/// What is known of a piece of memory if it is lent.
pub(crate) fn of(piece: &Piece) -> Option<Place> {
    if piece.inode == 0 {
        return None;
    }
    let (slot, word) = slot_of(piece.device, piece.inode)?;
    Some(Place {
        node: word as u32,
        page: 1 << (word >> SHIFT_AT & 0x3F),
        private: word & PRIVATE != 0,
        shared: word & SHARED != 0,
        file_bytes: slot.bytes.load(Ordering::Relaxed),
    })
}

/// After a fork both sides have everything that is shared.
pub(crate) fn forked() {
    for slot in &TABLE {
        if slot.word.load(Ordering::Relaxed) & LIVE != 0 {
            slot.word.fetch_or(SHARED, Ordering::Relaxed);
        }
    }
}

/// A descriptor is about to be passed on.
pub(crate) fn passed(file: File) {
    if let Some((slot, _)) = slot_of(file.device, file.inode) {
        slot.word.fetch_or(SHARED, Ordering::Relaxed);
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
    let row = maps::pieces(old, row_end).ok()?;
    let mut end = old;
    for piece in &row {
        of(piece).filter(|_| piece.start == end)?;
        end = piece.end;
    }
    if row.len() < 2 || end != row_end {
        return None;
    }
    for piece in row {
        let (bytes, to) = (piece.end - piece.start, new + (piece.start - old));
        // SAFETY: the caller's contract, for this part of the range.
        if let Err(error) = unsafe { next::mremap(piece.start, bytes, bytes, flags, to) } {
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
    old: usize,
    old_bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new: usize,
) -> raw::Result<usize> {
    // SAFETY: the caller's contract.
    match unsafe { next::mremap(old, old_bytes, new_bytes, flags, new) } {
        Err(Errno(libc::EFAULT)) => {
            // SAFETY: the caller's contract; the refused call has at most unmapped what it was to.
            let row = unsafe { move_row(old, old_bytes, new_bytes, flags, new) };
            row.unwrap_or(Err(Errno(libc::EFAULT)))
        }
        result => result,
    }
}
