// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What private memory promises, kept over a shared mapping of a loan.
//!
//! `MAP_PRIVATE` of a lent file would take a second page for each one that is written, and copy.
//! So a private request is mapped shared, and what would tell the difference is done by hand:
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
//! - `MADV_DONTNEED` gives zeros: a hole is punched (`MADV_REMOVE`).
//! - `MADV_REMOVE` is refused with `EACCES`.
//! - `munmap` of a part gives that part's pages back.
//! - `mremap` with an old size of 0, which would make a second mapping, is refused with `EINVAL`.
//!
//! `mprotect` and all other advice need no help: what may be done is a mapping's own.
//!
//! # Safety
//!
//! Every range touched here is one that [`Private::add`] was told of: mapped by the shim for the
//! program and not unmapped by it since, or else the range of the program's own call. The copies
//! for a fork are this file's own mappings, which nobody else has the address of.
#![expect(unsafe_code, reason = "copies, punches and moves the program's private memory")]

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_int;

use crate::config::AtFork;
use crate::maps;
use crate::places::{self, Places};
use crate::raw::{self, Errno};
use crate::say::say;

/// `MADV_DONTNEED_LOCKED` (Linux 5.18).
const DONTNEED_LOCKED: c_int = 24;

/// Where private memory has ever been: a look that costs nothing for everybody else.
static LOW: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// Whether a range may have private memory of the shim in it.
pub(crate) fn may_be_in(start: usize, bytes: usize) -> bool {
    start < HIGH.load(Ordering::Relaxed)
        && LOW.load(Ordering::Relaxed) < start.saturating_add(bytes)
}

/// Whether there has ever been any.
pub(crate) fn is_any() -> bool {
    HIGH.load(Ordering::Relaxed) != 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: usize,
    end: usize,
    page: usize,
    /// The program asked for `MADV_DONTFORK` itself.
    stays: bool,
}

impl Range {
    fn bytes(&self) -> usize {
        self.end - self.start
    }

    fn cut(&self, start: usize, end: usize) -> Option<Self> {
        let (start, end) = (self.start.max(start), self.end.min(end));
        (start < end).then_some(Self { start, end, ..*self })
    }
}

/// A copy that waits for the fork.
#[derive(Debug)]
struct Copy {
    at: usize,
    of: Range,
}

/// The private ranges of this process.
#[derive(Debug)]
pub(crate) struct Private {
    ranges: Vec<Range>,
    copies: Vec<Copy>,
    /// Closes when the parent has let go of the copies.
    pipe: Option<(c_int, c_int)>,
}

impl Private {
    pub(crate) const fn new() -> Self {
        Self { ranges: Vec::new(), copies: Vec::new(), pipe: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether the private range at an address stays with this process at a fork because the
    /// program says so; `None` if none is there.
    pub(crate) fn stays_at(&self, address: usize) -> Option<bool> {
        let range = self.ranges.iter().find(|r| r.start <= address && address < r.end);
        range.map(|range| range.stays)
    }

    /// Remembers a range that was mapped for the program.
    pub(crate) fn add(&mut self, start: usize, bytes: usize, page: usize) {
        self.insert(Range { start, end: start + bytes, page, stays: false });
    }

    fn insert(&mut self, range: Range) {
        LOW.fetch_min(range.start, Ordering::Relaxed);
        HIGH.fetch_max(range.end, Ordering::Relaxed);
        self.ranges.push(range);
    }

    fn within(&self, start: usize, end: usize) -> Vec<Range> {
        let mut found: Vec<_> = self.ranges.iter().filter_map(|r| r.cut(start, end)).collect();
        found.sort_unstable_by_key(|range| range.start);
        found
    }

    /// Takes a range out of those remembered.
    pub(crate) fn forget(&mut self, start: usize, bytes: usize) {
        let end = start.saturating_add(bytes);
        let mut left = Vec::with_capacity(self.ranges.len() + 1);
        for range in self.ranges.drain(..) {
            if range.cut(start, end).is_none() {
                left.push(range);
                continue;
            }
            left.extend(range.cut(range.start, start));
            left.extend(range.cut(end, range.end));
        }
        self.ranges = left;
    }

    /// `munmap`.
    ///
    /// # Safety
    /// As the call itself.
    pub(crate) unsafe fn unmap(&mut self, start: usize, bytes: usize) -> raw::Result<usize> {
        let end = start.saturating_add(bytes);
        for range in &self.ranges {
            let Some(part) = range.cut(start, end) else { continue };
            let whole = part == *range;
            // An end of a range: unmapping it can not fail, so that its pages may go first. A hole in
            // the middle may (too many mappings), and keeps its pages until the loan ends.
            let at_an_end = part.start == range.start || part.end == range.end;
            let aligned =
                part.start.is_multiple_of(range.page) && part.end.is_multiple_of(range.page);
            if !whole && at_an_end && aligned {
                // SAFETY: the program gives this part up. It may not be writable: then the pages
                // stay until the loan ends.
                let _ = unsafe { raw::madvise(part.start, part.bytes(), libc::MADV_REMOVE) };
            }
        }
        // SAFETY: the caller's contract.
        let result = unsafe { raw::munmap(start, bytes) };
        if result.is_ok() {
            self.forget(start, bytes);
        }
        result
    }

    /// `mremap`.
    ///
    /// # Safety
    /// As the call itself.
    pub(crate) unsafe fn remap(
        &mut self,
        places: &Places,
        old: usize,
        old_bytes: usize,
        new_bytes: usize,
        flags: c_int,
        new: usize,
    ) -> raw::Result<usize> {
        if old_bytes == 0 && !self.within(old, old.saturating_add(1)).is_empty() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's contract.
        let at = unsafe { places::remap(places, old, old_bytes, new_bytes, flags, new) }?;
        let moved = self.within(old, old.saturating_add(old_bytes));
        self.forget(old, old_bytes);
        self.forget(at, new_bytes);
        let shift = |address: usize| at.wrapping_add(address.wrapping_sub(old));
        for range in moved {
            let there = Range { start: shift(range.start), end: shift(range.end), ..range };
            if let Some(there) = there.cut(at, at.saturating_add(new_bytes)) {
                self.insert(there);
            }
        }
        Ok(at)
    }

    /// `madvise`.
    ///
    /// # Safety
    /// As the call itself.
    pub(crate) unsafe fn advise(
        &mut self,
        start: usize,
        bytes: usize,
        advice: c_int,
    ) -> raw::Result<usize> {
        let end = start.saturating_add(bytes);
        let ours = self.within(start, end);
        let special = matches!(
            advice,
            libc::MADV_DONTNEED
                | DONTNEED_LOCKED
                | libc::MADV_REMOVE
                | libc::MADV_DONTFORK
                | libc::MADV_DOFORK
        );
        if ours.is_empty() || !special {
            // SAFETY: the caller's contract.
            return unsafe { raw::madvise(start, bytes, advice) };
        }
        let mut at = start;
        for range in ours {
            if at < range.start {
                // SAFETY: the caller's contract, for the part before.
                unsafe { raw::madvise(at, range.start - at, advice) }?;
            }
            self.advise_ours(range, advice)?;
            at = range.end;
        }
        if at < end {
            // SAFETY: the caller's contract, for the rest.
            unsafe { raw::madvise(at, end - at, advice) }?;
        }
        Ok(0)
    }

    fn advise_ours(&mut self, range: Range, advice: c_int) -> raw::Result<()> {
        match advice {
            libc::MADV_REMOVE => Err(Errno(libc::EACCES)),
            libc::MADV_DONTFORK | libc::MADV_DOFORK => {
                // The mapping has MADV_DONTFORK all the time: `prepare` does what DOFORK means.
                let stays = advice == libc::MADV_DONTFORK;
                self.forget(range.start, range.bytes());
                self.insert(Range { stays, ..range });
                Ok(())
            }
            // As the kernel has it for huge pages: the start must be a page's, the end is cut.
            _ if !range.start.is_multiple_of(range.page) => Err(Errno(libc::EINVAL)),
            _ => {
                let end = range.end - range.end % range.page;
                range.cut(range.start, end).map_or(Ok(()), zero)
            }
        }
    }

    /// Before a fork: copies what the child is to have.
    pub(crate) fn prepare(&mut self, how: AtFork) -> raw::Result<()> {
        let ranges: Vec<_> = self.ranges.iter().filter(|range| !range.stays).copied().collect();
        if ranges.is_empty() {
            return Ok(());
        }
        let bytes: usize = ranges.iter().map(Range::bytes).sum();
        if how == AtFork::Drop {
            say(format_args!(
                "the child does not have {bytes} bytes of private memory: PREZERO_PRIVATE=drop"
            ));
            return Ok(());
        }
        let mut copy_all = || {
            self.pipe = Some(raw::pipe()?);
            for range in &ranges {
                self.copies.push(Copy { at: copy(range)?, of: *range });
            }
            Ok(())
        };
        let copied: raw::Result<()> = copy_all();
        copied.inspect_err(|error| {
            say(format_args!("fork would have to copy {bytes} bytes of private memory: {error}"));
            self.in_parent();
        })
    }

    /// After a fork, in the parent, or after one that failed: lets go of the copies, so that each
    /// page of them is the child's alone.
    pub(crate) fn in_parent(&mut self) {
        for copy in self.copies.drain(..) {
            // SAFETY: this file's own mapping.
            let unmapped = unsafe { raw::munmap(copy.at, copy.of.bytes()) };
            if let Err(error) = unmapped {
                say(format_args!("a copy made for a fork is left: munmap: {error}"));
            }
        }
        if let Some((read, write)) = self.pipe.take() {
            raw::close(read);
            raw::close(write);
        }
    }

    /// After a fork, in the child: puts the copies where the originals were, which the child does
    /// not have.
    pub(crate) fn in_child(&mut self) {
        if let Some((read, write)) = self.pipe.take() {
            raw::close(write);
            // A write to a page that the parent still shares would need another page.
            raw::wait_for_end(read);
            raw::close(read);
        }
        if self.copies.is_empty() {
            self.ranges.iter().filter(|range| !range.stays).for_each(keep_clear);
        }
        for Copy { at, of } in self.copies.drain(..) {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // Different rights are different mappings, and Linux before 6.17 moves one at a time.
            for piece in maps::pieces(at, at + of.bytes()) {
                let (bytes, to) = (piece.end - piece.start, of.start + (piece.start - at));
                // SAFETY: moves this file's own mapping to where nothing is: the original was the
                // shim's and has MADV_DONTFORK.
                if let Err(error) = unsafe { raw::mremap(piece.start, bytes, bytes, flags, to) } {
                    say(format_args!("the child lacks {bytes} bytes: mremap: {error}"));
                }
            }
        }
        // What the child has now is the kernel's own private memory, or nothing.
        self.ranges.clear();
    }
}

/// Holds the place of memory that a child does not have: who reads or writes there ends by SIGSEGV
/// and finds nothing that was mapped there since, and who unmaps it, as allocators do with what
/// they had before the fork, unmaps nothing else.
fn keep_clear(range: &Range) {
    let flags = ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    let held = unsafe { raw::mmap(range.start, range.bytes(), libc::PROT_NONE, flags, -1, 0) };
    if let Err(error) = held {
        say(format_args!("{} bytes that the child lacks are free: {error}", range.bytes()));
    }
}

/// A private copy of a range with its rights, somewhere.
fn copy(range: &Range) -> raw::Result<usize> {
    let memory = raw::open(c"/proc/self/mem")?;
    let copied = huge(range).and_then(|at| fill(memory, range, at, populate));
    // Of ordinary memory only what is written is taken, which is less than a huge page.
    let copied = copied.or_else(|_| fill(memory, range, ordinary(range)?, |_, _| Ok(())));
    raw::close(memory);
    copied
}

/// Makes sure of a page's memory before something is written to it.
type Have = fn(usize, usize) -> raw::Result<()>;

/// Fills a copy and returns it, or unmaps it where a page of it can not be had.
fn fill(memory: c_int, range: &Range, at: usize, have: Have) -> raw::Result<usize> {
    let to = |address: usize| at + (address - range.start);
    for piece in maps::pieces(range.start, range.end) {
        for from in (piece.start..piece.end).step_by(range.page) {
            let is_there = piece.prot & libc::PROT_READ != 0 && raw::is_resident(from);
            let copied = if is_there {
                // SAFETY: a page of the original that is readable and there.
                if unsafe { raw::is_zero(from, range.page) } {
                    continue;
                }
                // SAFETY: the same, and its place in the copy, which is as long, nobody else's, and
                // has its memory.
                have(to(from), range.page)
                    .map(|()| unsafe { raw::copy_unless_zero(from, to(from), range.page) })
            } else {
                through_kernel(memory, from, to(from), range.page, have)
            };
            if let Err(error) = copied {
                // SAFETY: this file's own mapping.
                let _ = unsafe { raw::munmap(at, range.bytes()) };
                return Err(error);
            }
        }
        if piece.prot != READ_WRITE {
            // SAFETY: this function's own mapping. Fewer rights than it has cannot be refused but for
            // want of memory for the mapping's description; the child then has more rights.
            let _ = unsafe { raw::mprotect(to(piece.start), piece.end - piece.start, piece.prot) };
        }
    }
    Ok(at)
}

/// A huge page for a copy, or the kernel's refusal instead of a signal at the first touch.
fn populate(at: usize, bytes: usize) -> raw::Result<()> {
    // SAFETY: this file's own mapping, which has no content there yet.
    unsafe { raw::madvise(at, bytes, libc::MADV_POPULATE_WRITE) }.map(drop)
}

/// Copies a page that this thread could not read, or not without a signal: one without rights, or
/// one that the program gave up and the kernel has no new one for, which is zero.
fn through_kernel(
    memory: c_int,
    from: usize,
    to: usize,
    bytes: usize,
    have: Have,
) -> raw::Result<()> {
    let mut buffer = vec![0_u8; 64 << 10];
    let mut populated = false;
    for offset in (0..bytes).step_by(buffer.len()) {
        let read = raw::pread(memory, &mut buffer, (from + offset) as u64).unwrap_or(0);
        if buffer[..read].iter().any(|byte| *byte != 0) {
            if !std::mem::replace(&mut populated, true) {
                have(to, bytes)?;
            }
            // SAFETY: into this file's own copy, whose page is longer than what was read.
            unsafe { raw::put(&buffer[..read], to + offset) };
        }
    }
    Ok(())
}

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Address space for huge pages of the kernel's that can be moved later.
///
/// Without a promise (`MAP_NORESERVE`), which would be the parent's and no use to the child: where the
/// parent then unmaps first, Linux 6.18 counts it back although the child has the pages, and
/// as long as it has them the pool has promised fewer pages than none, and more than it has to
/// others. [`populate`] finds out whether there are pages.
fn huge(range: &Range) -> raw::Result<usize> {
    let size = c_int::try_from(range.page.trailing_zeros()).map_err(|_| Errno(libc::EINVAL))?;
    let flags = ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_NORESERVE | size << libc::MAP_HUGE_SHIFT;
    // SAFETY: new mappings at addresses of the kernel's choice replace nothing.
    let first = unsafe { raw::mmap(0, range.bytes(), READ_WRITE, flags, -1, 0) }?;
    // Kernels before 5.16 do not move huge pages: better to know before the fork than after it.
    let moved = ordinary(range).and_then(|place| {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both are this function's own.
        let moved = unsafe { raw::mremap(first, range.bytes(), range.bytes(), flags, place) };
        moved.inspect_err(|_| {
            // SAFETY: this function's own.
            let _ = unsafe { raw::munmap(place, range.bytes()) };
        })
    });
    moved.inspect_err(|_| {
        // SAFETY: this function's own.
        let _ = unsafe { raw::munmap(first, range.bytes()) };
    })
}

/// Ordinary pages at an address that huge ones could have.
fn ordinary(range: &Range) -> raw::Result<usize> {
    let padded = range.bytes() + range.page;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let whole = unsafe { raw::mmap(0, padded, READ_WRITE, ANONYMOUS, -1, 0) }?;
    let start = whole.next_multiple_of(range.page);
    let end = start + range.bytes();
    for (from, bytes) in [(whole, start - whole), (end, whole + padded - end)] {
        if bytes > 0 {
            // SAFETY: the ends of this function's own mapping.
            unsafe { raw::munmap(from, bytes) }?;
        }
    }
    Ok(start)
}

/// Zeros, and the pages back to the kernel, as `MADV_DONTNEED` has it for private memory.
fn zero(range: Range) -> raw::Result<()> {
    // SAFETY: the program throws this content away.
    let punched = unsafe { raw::madvise(range.start, range.bytes(), libc::MADV_REMOVE) };
    if punched != Err(Errno(libc::EACCES)) {
        return punched.map(drop);
    }
    // A part of it is not writable, which MADV_DONTNEED does not ask for.
    for piece in maps::pieces(range.start, range.end) {
        let bytes = piece.end - piece.start;
        // SAFETY: the range is the shim's; a thread that loses the race for a page which it must not
        // write gets to write content that is thrown away.
        unsafe { raw::mprotect(piece.start, bytes, READ_WRITE) }?;
        // SAFETY: the program throws this content away.
        let punched = unsafe { raw::madvise(piece.start, bytes, libc::MADV_REMOVE) };
        // SAFETY: back to what it was.
        unsafe { raw::mprotect(piece.start, bytes, piece.prot) }?;
        punched?;
    }
    Ok(())
}
