// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What private memory promises, kept over a shared mapping of a loan.
//!
//! `MAP_PRIVATE` of a lent file would take a second page for each one that is written, and copy.
//! So a private request is mapped shared, and what would tell the difference is done by hand.
//!
//! There is no list of addresses here that a refused call, a partial one or one that the shim does
//! not see could make wrong. Where private memory lies is asked of the kernel at each call that
//! matters ([`maps`]), and what lies there is known by its inode ([`places`]); so every range here
//! is a mapping of huge pages, cut where the kernel itself would cut it.
//!
//! - *fork*: the child sees the content of that moment, and neither sees what the other writes
//!   afterwards. Before the fork the content is copied into memory that is private in the kernel's
//!   own sense; the child moves it to where the original was. The copy is made of huge pages if the
//!   kernel has enough, else of ordinary ones, and of neither where there is nothing but zeros; if
//!   it has neither, `fork` fails with `ENOMEM`. Where other threads write meanwhile, each word of
//!   the copy is from some moment of the call. The original is not touched, so that pages which are
//!   pinned for I/O stay the program's. `PREZERO_PRIVATE=drop` copies nothing, and the child does
//!   not have the memory, but nothing else in its place either: for programs that fork only to
//!   `exec`.
//! - *other ways to make a process* (`clone`, `_Fork`, the bare system call): the child does not
//!   have the memory (`MADV_DONTFORK`). `vfork` and `posix_spawn` share it for a moment, as ever.
//! - `MADV_DONTNEED` gives zeros: what was touched is cleared. Its pages stay the program's, as
//!   those of the kernel's private memory stay promised to it.
//! - `MADV_REMOVE` is refused with `EACCES`.
//! - `munmap` of a part of one block gives that part's pages back. It is moved aside first, which
//!   the kernel does wholly or not at all; a range of several mappings is the kernel's alone, and
//!   then such pages stay until the rest of their block goes.
//! - `mremap` with an old size of 0, which would make a second mapping, is refused with `EINVAL`.
//!
//! `mprotect` and all other advice need no help: what may be done is a mapping's own.
//!
//! # Safety
//!
//! What is unmapped, moved, cleared or punched is the range of the program's own call, as far as
//! the kernel says that the inode of private lent memory is mapped there.
#![expect(unsafe_code, reason = "clears and moves the program's private memory")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;

use crate::maps::{self, Piece};
use crate::next;
use crate::places::{self, Place};
use crate::raw::{self, ANONYMOUS, Errno, MOVE, PageTables, READ_WRITE};
use crate::stays::Stays;

/// `MADV_DONTNEED_LOCKED` (Linux 5.18).
const DONTNEED_LOCKED: c_int = 24;

/// Where private memory has ever been, a bit per 2 MiB: a look that costs nothing for everybody
/// else. Of the table itself only the part is taken that has bits.
static EVER: [AtomicU64; 1 << 20] = [const { AtomicU64::new(0) }; 1 << 20];
const GRANULE: usize = 2 << 20;
/// Whether the program has ever left any of it out of core dumps, which its children inherit.
static DUMP_ADVISED: AtomicBool = AtomicBool::new(false);

fn bits_of(start: usize, bytes: usize) -> impl Iterator<Item = (&'static AtomicU64, u64)> {
    let last = start.saturating_add(bytes.max(1) - 1) / GRANULE;
    let (first, words) = (start / GRANULE / 64, EVER.len());
    // A range longer than the table would say the same again.
    (first..=last / 64).take(words).map(move |word| {
        let low = if word == start / GRANULE / 64 { start / GRANULE % 64 } else { 0 };
        let high = if word == last / 64 { last % 64 } else { 63 };
        (&EVER[word % words], u64::MAX << low & u64::MAX >> (63 - high))
    })
}

/// Whether a range may have private memory of the shim in it.
pub(crate) fn may_be_in(start: usize, bytes: usize) -> bool {
    places::is_any_private()
        && bits_of(start, bytes).any(|(word, mask)| word.load(Ordering::Relaxed) & mask != 0)
}

/// Private memory is about to be in a range.
pub(crate) fn will_be_in(start: usize, bytes: usize) {
    bits_of(start, bytes).for_each(|(word, mask)| {
        word.fetch_or(mask, Ordering::Relaxed);
    });
}

/// Whether any private memory has ever been left out of core dumps.
pub(crate) fn is_dump_advised() -> bool {
    DUMP_ADVISED.load(Ordering::Relaxed)
}

/// A mapping of private lent memory, or what of it a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) piece: Piece,
    pub(crate) page: usize,
}

impl Range {
    pub(crate) fn bytes(&self) -> usize {
        self.piece.end - self.piece.start
    }
}

/// What is known of a piece if it is private lent memory.
pub(crate) fn private_place(piece: &Piece) -> Option<Place> {
    places::of(piece).filter(|place| place.private)
}

/// `munmap`.
///
/// # Safety
/// As the call itself.
pub(crate) unsafe fn unmap(start: usize, bytes: usize) -> raw::Result<usize> {
    let aside = part_of_a_block(start, bytes).and_then(move_aside);
    let Some((at, bytes)) = aside else {
        // SAFETY: the caller's contract.
        return unsafe { next::munmap(start, bytes) };
    };
    // It is gone, which is what was asked for. Its pages go, and then the place where it is now.
    // SAFETY: this function's own mapping, whose content the program has given up.
    let _ = unsafe { raw::mprotect(at, bytes, READ_WRITE) };
    // SAFETY: the same. Refused, the pages stay until their block goes.
    let _ = unsafe { raw::madvise(at, bytes, libc::MADV_REMOVE) };
    // SAFETY: the same; whole mappings can be unmapped.
    let _ = unsafe { raw::munmap(at, bytes) };
    Ok(0)
}

/// What is to be unmapped, if it is whole pages of a mapping of private memory, and not all of it.
fn part_of_a_block(start: usize, bytes: usize) -> Option<Range> {
    let end = start.checked_add(bytes.checked_next_multiple_of(raw::base_page())?)?;
    let whole = maps::first(start, end).ok()??;
    let place = private_place(&whole)?;
    let is_part = (end - start) as u64 != place.file_bytes;
    let in_pages = start.is_multiple_of(place.page) && end.is_multiple_of(place.page);
    let fits = bytes > 0 && whole.start <= start && end <= whole.end && in_pages && is_part;
    let piece = maps::cut(whole, start, end)?;
    fits.then_some(Range { piece, page: place.page })
}

/// Moves a range to where nobody knows of it; `None` if that cannot be done, and then nothing was.
fn move_aside(range: Range) -> Option<(usize, usize)> {
    let place = aligned(range.bytes(), range.page, libc::PROT_NONE, libc::MAP_NORESERVE).ok()?;
    // SAFETY: from the range of the program's munmap to this function's own.
    let moved =
        unsafe { next::mremap(range.piece.start, range.bytes(), range.bytes(), MOVE, place) };
    if moved.is_err() {
        // SAFETY: this function's own.
        let _ = unsafe { raw::munmap(place, range.bytes()) };
        return None;
    }
    Some((place, range.bytes()))
}

/// `mremap`.
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
    let may_be = may_be_in(old, old_bytes);
    if may_be && old_bytes == 0 {
        let there = maps::first(old, old.saturating_add(1))?;
        if there.is_some_and(|piece| piece.start <= old && private_place(&piece).is_some()) {
            return Err(Errno(libc::EINVAL));
        }
    }
    // SAFETY: the caller's contract.
    let at = unsafe { places::remap(old, old_bytes, new_bytes, flags, new) }?;
    if may_be && at != old {
        will_be_in(at, new_bytes);
    }
    Ok(at)
}

/// `madvise`, of which `stays` is what there is to remember, where that can be had.
///
/// # Safety
/// As the call itself.
pub(crate) unsafe fn advise(
    mut stays: Option<&mut Stays>,
    start: usize,
    bytes: usize,
    advice: c_int,
) -> raw::Result<usize> {
    if advice == libc::MADV_DONTDUMP {
        DUMP_ADVISED.store(true, Ordering::Relaxed);
    }
    let special = matches!(
        advice,
        libc::MADV_DONTNEED
            | DONTNEED_LOCKED
            | libc::MADV_REMOVE
            | libc::MADV_DONTFORK
            | libc::MADV_DOFORK
    );
    let rounded = bytes.checked_next_multiple_of(raw::base_page());
    let end = rounded.and_then(|bytes| start.checked_add(bytes));
    let (true, Some(end)) = (special && start.is_multiple_of(raw::base_page()), end) else {
        // SAFETY: the caller's contract.
        return unsafe { next::madvise(start, bytes, advice) };
    };
    let (mut at, mut hole) = (start, false);
    while at < end {
        let whole = maps::first(at, end)?;
        let ours =
            whole.and_then(|piece| Some((maps::cut(piece, at, end)?, private_place(&piece)?)));
        let answer = match (ours, whole) {
            (Some((piece, place)), _) if piece.start == at => {
                at = piece.end;
                advise_ours(stays.as_deref_mut(), Range { piece, page: place.page }, advice)
            }
            (ours, whole) => {
                // Up to the next of ours, or of what there is.
                let end_of = match (ours, whole) {
                    (Some((piece, _)), _) => piece.start,
                    (None, Some(piece)) => piece.end.min(end),
                    (None, None) => end,
                };
                // SAFETY: the caller's contract, for this part.
                let answer = unsafe { next::madvise(at, end_of - at, advice) };
                at = end_of;
                answer.map(drop)
            }
        };
        match answer {
            // As the kernel has it: where nothing is mapped is said in the end.
            Err(Errno(libc::ENOMEM)) => hole = true,
            answer => answer?,
        }
    }
    if hole { Err(Errno(libc::ENOMEM)) } else { Ok(0) }
}

fn advise_ours(stays: Option<&mut Stays>, range: Range, advice: c_int) -> raw::Result<()> {
    match advice {
        libc::MADV_REMOVE => Err(Errno(libc::EACCES)),
        // The mapping has MADV_DONTFORK all the time: the copy for a child is what DOFORK means.
        libc::MADV_DONTFORK | libc::MADV_DOFORK => match stays {
            Some(stays) => stays.set(range, advice == libc::MADV_DONTFORK),
            None => Ok(()),
        },
        _ => {
            // The kernel says whether such a mapping may be given up there, and at such an address.
            let first = range.bytes().min(range.page);
            let tables = PageTables::open();
            let was_there = tables.have(range.piece.start);
            // SAFETY: the program throws this content away; of a shared mapping it stays.
            unsafe { next::madvise(range.piece.start, first, advice) }?;
            // The end is cut to whole pages, as the kernel has it.
            let bytes = range.bytes() - range.bytes() % range.page;
            match maps::cut(range.piece, range.piece.start, range.piece.start + bytes) {
                Some(piece) => zero(&Range { piece, ..range }, &tables, was_there),
                None => Ok(()),
            }
        }
    }
}

/// Ordinary memory at an address that huge pages could have.
pub(crate) fn aligned(bytes: usize, page: usize, prot: c_int, flags: c_int) -> raw::Result<usize> {
    let padded = bytes.checked_add(page).ok_or(Errno(libc::ENOMEM))?;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let whole = unsafe { raw::mmap(0, padded, prot, ANONYMOUS | flags, -1, 0) }?;
    let start = whole.next_multiple_of(page);
    let end = start + bytes;
    for (from, bytes) in [(whole, start - whole), (end, whole + padded - end)] {
        if bytes > 0 {
            // SAFETY: the ends of this function's own mapping.
            unsafe { raw::munmap(from, bytes) }?;
        }
    }
    Ok(start)
}

/// A huge page's memory, or the kernel's refusal instead of a signal at the first touch.
pub(crate) fn populate(at: usize, bytes: usize) -> raw::Result<()> {
    // SAFETY: the advice changes no content.
    unsafe { raw::madvise(at, bytes, libc::MADV_POPULATE_WRITE) }.map(drop)
}

/// Clears what was touched, as `MADV_DONTNEED` has it for private memory. The pages stay, and with
/// them what the kernel has promised: nobody else could have them natively either.
fn zero(range: &Range, tables: &PageTables, first_was_there: bool) -> raw::Result<()> {
    const GIB: usize = 1 << 30;
    let piece = &range.piece;
    let writable = piece.prot & READ_WRITE == READ_WRITE;
    for page in (piece.start..piece.end).step_by(range.page) {
        let was_there = if page == piece.start { first_was_there } else { tables.have(page) };
        // Tables of whole GiB may be shared between mappings of a file, and are then let go of
        // where one of them changes: an empty entry does not mean that the page was never touched.
        let gib = page - page % GIB;
        let may_share = range.page < GIB && piece.start <= gib && gib + GIB <= piece.end;
        if !was_there && !may_share {
            continue;
        }
        if !writable {
            // SAFETY: the range is the shim's; a thread that loses the race for a page which it
            // must not write gets to write content that is thrown away.
            unsafe { raw::mprotect(page, range.page, READ_WRITE) }?;
        }
        // Where a page may be missing, and the kernel has none: what is missing is zero.
        if was_there || populate(page, range.page).is_ok() {
            // SAFETY: a whole page of a mapping, with memory, whose content the program gives up.
            unsafe { raw::clear(page, range.page) };
        }
        if !writable {
            // SAFETY: back to what it was.
            unsafe { raw::mprotect(page, range.page, piece.prot) }?;
        }
    }
    Ok(())
}
