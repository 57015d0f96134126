// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Private memory over a shared mapping of a loan, where the operator allows it
//! (`PREZERO_PRIVATE=1`, `prezero run --private`).
//!
//! `MAP_PRIVATE` of a lent file would take a second page for each one that is written, and copy.
//! So a private request is mapped shared. The program keeps these promises of private memory:
//!
//! - It starts as zeros, and no other process writes to it.
//! - `MADV_DONTNEED` gives zeros: touched pages are cleared, and stay the program's.
//! - `MADV_REMOVE` is refused with `EACCES`.
//!
//! These differ, and `prezero run --help` says so:
//!
//! - A forked child lacks the memory (`MADV_DONTFORK`), and ends by SIGSEGV if it touches it.
//!   Address space without rights holds its place.
//! - `MADV_DOFORK` succeeds and changes nothing.
//! - Children of `vfork` and `posix_spawn` share it until they `exec`, as ever.
//! - Core dumps lack it by default. A userfaultfd reports no missing page after `MADV_DONTNEED`.
//! - `munmap` of a part keeps that part's pages lent until the rest of its block is unmapped.
//! - Calls past the C library (`syscall`, `process_madvise`) are not seen.
//!
//! A program that is served so must not need that memory in forked children: OpenJDK and MariaDB
//! are tested.
//!
//! # Safety
//!
//! The memory that is cleared is the range of the program's own call, and is private lent memory.
#![expect(unsafe_code, reason = "clears the program's private memory")]

use libc::c_int;

use crate::lent_ranges::{self, Kind, Range};
use crate::maps;
use crate::raw::{self, Errno, Mapping, PageTables, READ_WRITE};
use crate::seccomp;

/// `MADV_DONTNEED_LOCKED` (Linux 5.18).
const DONTNEED_LOCKED: c_int = 24;

/// The range of a call, if its advice means something else for private lent memory than for the
/// mapping that the kernel has.
#[inline]
pub(crate) fn range_of_advice(start: usize, bytes: usize, advice: c_int) -> Option<Range> {
    let special = matches!(
        advice,
        libc::MADV_DONTNEED | DONTNEED_LOCKED | libc::MADV_REMOVE | libc::MADV_DOFORK
    );
    let range = Range::new(start, bytes);
    let is_private = special && lent_ranges::first_of(range, Kind::Private).is_some();
    (is_private && start.is_multiple_of(4096)).then_some(range)
}

/// `madvise` of a range with private lent memory; `untouched` makes the call for another part.
#[cold]
#[inline(never)]
pub(crate) fn advise(
    range: Range,
    advice: c_int,
    untouched: impl Fn(Range) -> raw::Result<usize>,
) -> raw::Result<usize> {
    let (mut at, mut hole) = (range.start, false);
    while at < range.end {
        let rest = Range { start: at, end: range.end };
        let lent = lent_ranges::first_of(rest, Kind::Private);
        let (part, answer) = match lent {
            Some(part) if part.start == at => (part, advise_lent(part, advice, &untouched)),
            lent => {
                let part = Range { start: at, end: lent.map_or(range.end, |lent| lent.start) };
                (part, untouched(part).map(drop))
            }
        };
        at = part.end;
        match answer {
            // As the kernel does: an unmapped part is reported in the end.
            Err(Errno(libc::ENOMEM)) => hole = true,
            answer => answer?,
        }
    }
    if hole { Err(Errno(libc::ENOMEM)) } else { Ok(0) }
}

fn advise_lent(
    part: Range,
    advice: c_int,
    untouched: impl Fn(Range) -> raw::Result<usize>,
) -> raw::Result<()> {
    match advice {
        libc::MADV_REMOVE => Err(Errno(libc::EACCES)),
        // The mapping keeps MADV_DONTFORK.
        libc::MADV_DOFORK => Ok(()),
        _ => {
            // Without a look at its rights it stays, which the caller is told.
            let unknown = Errno(libc::EAGAIN);
            if seccomp::is_filtered() {
                return Err(unknown);
            }
            let mappings = maps::mappings(part.start, part.end).map_err(|_| unknown)?;
            let tables = PageTables::open();
            let touched: Vec<_> = pages(part).map(|page| tables.have(page.start)).collect();
            // The kernel checks the mapping and the address. Shared content stays.
            untouched(part)?;
            for mapping in mappings {
                let its = |page: &Range| mapping.start <= page.start && page.end <= mapping.end;
                let there = pages(part).zip(&touched).filter(|(page, _)| its(page));
                let stale = there
                    .filter(|(page, is_touched)| **is_touched || may_share_tables(&mapping, *page));
                clear(&mapping, stale.map(|(page, _)| page))?;
            }
            Ok(())
        }
    }
}

/// The pages of 2 MiB of a part; the kernel cuts the end to whole pages.
fn pages(part: Range) -> impl Iterator<Item = Range> {
    const GRANULE: usize = lent_ranges::GRANULE;
    let end = part.end - part.end % GRANULE;
    (part.start..end).step_by(GRANULE).map(|start| Range::new(start, GRANULE))
}

/// In a child: holds the place of its parent's private memory. A child that touches it ends by
/// SIGSEGV, and one that unmaps it, as allocators do, unmaps nothing else.
pub(crate) fn hold_places() {
    lent_ranges::take_private(|range| {
        if seccomp::is_filtered() {
            return;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let flags = flags | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces nothing.
        let _ = unsafe { raw::mmap(range.start, range.bytes(), libc::PROT_NONE, flags, -1, 0) };
    });
}

/// Page tables of whole GiB may be shared between mappings of a file, and are let go of where one
/// of them changes. Then an empty entry may be of a touched page.
fn may_share_tables(mapping: &Mapping, page: Range) -> bool {
    const GIB: usize = 1 << 30;
    let gib = page.start - page.start % GIB;
    mapping.start <= gib && gib + GIB <= mapping.end
}

/// Clears pages of a mapping. They stay the program's, and with them the kernel's promise.
fn clear(mapping: &Mapping, pages: impl Iterator<Item = Range>) -> raw::Result<()> {
    let writable = mapping.prot & READ_WRITE == READ_WRITE;
    if !writable {
        // SAFETY: the range is the shim's; a thread that loses the race for a page which it must
        // not write gets to write content that is thrown away.
        unsafe { raw::mprotect(mapping.start, mapping.bytes(), READ_WRITE) }?;
    }
    for page in pages {
        // A page that the kernel lacks is zero.
        // SAFETY: the advice changes no content.
        if unsafe { raw::madvise(page.start, page.bytes(), libc::MADV_POPULATE_WRITE) }.is_ok() {
            // SAFETY: a page with memory; the program gives its content up.
            unsafe { raw::clear(page.start, page.bytes()) };
        }
    }
    if !writable {
        // SAFETY: back to what it was.
        unsafe { raw::mprotect(mapping.start, mapping.bytes(), mapping.prot) }?;
    }
    Ok(())
}
