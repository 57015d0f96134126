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
//! the kernel says that the inode of private lent memory is mapped there. The copies for a fork are
//! this file's own mappings, which nobody else has the address of.
#![expect(unsafe_code, reason = "copies, clears and moves the program's private memory")]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libc::c_int;

use crate::config::AtFork;
use crate::maps::{self, Piece};
use crate::places::{self, Place};
use crate::raw::{self, Errno, File, PageTables};
use crate::say::say;

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

/// A mapping of private lent memory, or what of it a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    piece: Piece,
    page: usize,
}

impl Range {
    fn bytes(&self) -> usize {
        self.piece.end - self.piece.start
    }
}

fn private_place(piece: &Piece) -> Option<Place> {
    places::of(piece).filter(|place| place.private)
}

/// A copy that waits for the fork.
#[derive(Debug)]
struct Copy {
    at: usize,
    of: Range,
    /// Whether the child has nothing else where the original was.
    held: bool,
}

/// A part of a file that stays with this process at a fork, because the program says so. It goes
/// where the memory goes.
#[derive(Debug, Clone, Copy)]
struct Stay {
    file: (u64, u64),
    from: u64,
    to: u64,
}

/// What of private memory is not the kernel's to know.
#[derive(Debug)]
pub(crate) struct Private {
    stays: Vec<Stay>,
    copies: Vec<Copy>,
    dropped: Vec<Range>,
    sign: Option<Sign>,
}

/// A word that the parent and its child share: not 0 when the parent has let go of the copies.
///
/// No descriptor, so that a full table of them is no obstacle, and no process that another thread
/// makes meanwhile inherits anything that the child would have to wait for.
#[derive(Debug)]
struct Sign {
    at: usize,
    parent: u32,
}

impl Sign {
    fn new() -> raw::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let at = unsafe { raw::mmap(0, raw::base_page(), READ_WRITE, flags, -1, 0) }?;
        Ok(Self { at, parent: raw::process() })
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping is this value's, zero at first, and only ever used as this word.
        unsafe { &*(self.at as *const AtomicU32) }
    }

    /// Waits until the parent has let go, or is gone. Where its number cannot be seen (another
    /// namespace), not for ever: all there is to lose is a page for a copy of a copy.
    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while self.word().load(Ordering::Acquire) == 0 {
            let parent = raw::parent();
            if parent != self.parent && (parent != 0 || Instant::now() > deadline) {
                return;
            }
            raw::nap(Duration::from_micros(200));
        }
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping.
        let _ = unsafe { raw::munmap(self.at, raw::base_page()) };
    }
}

/// `munmap`.
///
/// # Safety
/// As the call itself.
pub(crate) unsafe fn unmap(start: usize, bytes: usize) -> raw::Result<usize> {
    let aside = part_of_a_block(start, bytes).and_then(move_aside);
    let Some((at, bytes)) = aside else {
        // SAFETY: the caller's contract.
        return unsafe { raw::munmap(start, bytes) };
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
        unsafe { raw::mremap(range.piece.start, range.bytes(), range.bytes(), MOVE, place) };
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

/// `madvise`, of which `private` is what there is to remember, where that can be had.
///
/// # Safety
/// As the call itself.
pub(crate) unsafe fn advise(
    mut private: Option<&mut Private>,
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
        return unsafe { raw::madvise(start, bytes, advice) };
    };
    let (mut at, mut hole) = (start, false);
    while at < end {
        let whole = maps::first(at, end)?;
        let ours =
            whole.and_then(|piece| Some((maps::cut(piece, at, end)?, private_place(&piece)?)));
        let answer = match (ours, whole) {
            (Some((piece, place)), _) if piece.start == at => {
                at = piece.end;
                advise_ours(private.as_deref_mut(), Range { piece, page: place.page }, advice)
            }
            (ours, whole) => {
                // Up to the next of ours, or of what there is.
                let next = match (ours, whole) {
                    (Some((piece, _)), _) => piece.start,
                    (None, Some(piece)) => piece.end.min(end),
                    (None, None) => end,
                };
                // SAFETY: the caller's contract, for this part.
                let answer = unsafe { raw::madvise(at, next - at, advice) };
                at = next;
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

fn advise_ours(private: Option<&mut Private>, range: Range, advice: c_int) -> raw::Result<()> {
    match advice {
        libc::MADV_REMOVE => Err(Errno(libc::EACCES)),
        // The mapping has MADV_DONTFORK all the time: `prepare` does what DOFORK means.
        libc::MADV_DONTFORK | libc::MADV_DOFORK => match private {
            Some(private) => private.set_stays(range, advice == libc::MADV_DONTFORK),
            None => Ok(()),
        },
        _ => {
            // The kernel says whether such a mapping may be given up there, and at such an address.
            let first = range.bytes().min(range.page);
            let tables = PageTables::open();
            let was_there = tables.have(range.piece.start);
            // SAFETY: the program throws this content away; of a shared mapping it stays.
            unsafe { raw::madvise(range.piece.start, first, advice) }?;
            // The end is cut to whole pages, as the kernel has it.
            let bytes = range.bytes() - range.bytes() % range.page;
            match maps::cut(range.piece, range.piece.start, range.piece.start + bytes) {
                Some(piece) => zero(&Range { piece, ..range }, &tables, was_there),
                None => Ok(()),
            }
        }
    }
}

impl Private {
    pub(crate) const fn new() -> Self {
        Self { stays: Vec::new(), copies: Vec::new(), dropped: Vec::new(), sign: None }
    }

    /// Whether a piece of private memory stays with this process at a fork.
    pub(crate) fn stays(&self, piece: &Piece) -> bool {
        self.stays.iter().any(|stay| stay.has(piece, piece.offset))
    }

    /// A mapping of private memory stays with this process at a fork.
    pub(crate) fn stay(&mut self, piece: &Piece) {
        let (from, to) = (piece.offset, piece.offset + (piece.end - piece.start) as u64);
        self.stays.push(Stay { file: (piece.device, piece.inode), from, to });
    }

    /// A file is lent anew: what was said of its inode was said of another.
    pub(crate) fn is_new(&mut self, file: File) {
        self.stays.retain(|stay| stay.file != (file.device, file.inode));
    }

    /// Cuts a range where the one half stays and the other does not.
    fn runs(&self, range: Range) -> Vec<(Range, bool)> {
        let Range { piece, page } = range;
        let mut cuts = vec![piece.start, piece.end];
        for stay in self.stays.iter().filter(|stay| stay.file == (piece.device, piece.inode)) {
            for offset in [stay.from, stay.to] {
                let ahead =
                    usize::try_from(offset.saturating_sub(piece.offset)).unwrap_or(usize::MAX);
                cuts.push(piece.start.saturating_add(ahead).min(piece.end));
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        let ends = cuts.windows(2);
        ends.filter_map(|ends| {
            let piece = maps::cut(piece, ends[0], ends[1])?;
            Some((Range { piece, page }, self.stays(&piece)))
        })
        .collect()
    }

    fn set_stays(&mut self, range: Range, stays: bool) -> raw::Result<()> {
        for (run, stays_now) in self.runs(range) {
            if stays_now == stays {
                continue;
            }
            let Piece { start, end, device, inode, offset, .. } = run.piece;
            if !start.is_multiple_of(run.page) || !end.is_multiple_of(run.page) {
                return Err(Errno(libc::EINVAL));
            }
            let (from, to) = (offset, offset + run.bytes() as u64);
            if stays {
                self.stays.push(Stay { file: (device, inode), from, to });
                continue;
            }
            let old = std::mem::take(&mut self.stays);
            for stay in old {
                if stay.file != (device, inode) || stay.to <= from || to <= stay.from {
                    self.stays.push(stay);
                    continue;
                }
                if stay.from < from {
                    self.stays.push(Stay { to: from, ..stay });
                }
                if to < stay.to {
                    self.stays.push(Stay { from: to, ..stay });
                }
            }
        }
        Ok(())
    }

    /// Before a fork: copies what the child is to have.
    pub(crate) fn prepare(&mut self, how: AtFork) -> raw::Result<()> {
        let mut ranges = Vec::new();
        for piece in maps::pieces(0, usize::MAX)? {
            let Some(place) = private_place(&piece) else { continue };
            let runs = self.runs(Range { piece, page: place.page });
            ranges.extend(runs.into_iter().filter(|(_, stays)| !stays).map(|(range, _)| range));
        }
        if ranges.is_empty() {
            return Ok(());
        }
        let bytes: usize = ranges.iter().map(Range::bytes).sum();
        if how == AtFork::Drop {
            say(format_args!(
                "the child does not have {bytes} bytes of private memory: PREZERO_PRIVATE=drop"
            ));
            self.dropped = ranges;
            return Ok(());
        }
        let mut copy_all = || {
            self.sign = Some(Sign::new()?);
            let memory = raw::open(c"/proc/self/mem")?;
            let copied = ranges.iter().try_for_each(|range| {
                let at = copy(memory, range)?;
                self.copies.push(Copy { at, of: *range, held: false });
                let advice =
                    DUMP_ADVISED.load(Ordering::Relaxed).then(|| maps::advice(range.piece));
                if advice.flatten().is_some_and(|all| all.contains(&libc::MADV_DONTDUMP)) {
                    // SAFETY: this file's own mapping; the advice changes no content.
                    unsafe { raw::madvise(at, range.bytes(), libc::MADV_DONTDUMP) }?;
                }
                Ok(())
            });
            raw::close(memory);
            copied
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
        self.dropped.clear();
        if let Some(sign) = self.sign.take() {
            sign.word().store(1, Ordering::Release);
        }
    }

    /// After a fork, in the child: puts the copies where the originals were, which the child does
    /// not have.
    pub(crate) fn in_child(&mut self) {
        // Before anything here allocates, whose memory the kernel might put there.
        for copy in &mut self.copies {
            copy.held = hold(&copy.of).is_ok();
        }
        if let Some(sign) = self.sign.take() {
            // A write to a page that the parent still shares would need another page.
            sign.wait();
        }
        self.dropped.drain(..).for_each(|range| keep_clear(&range));
        for Copy { at, of, held } in self.copies.drain(..) {
            if held {
                // SAFETY: this file's own mappings, the copy and the place that is held for it.
                unsafe { put_in_place(at, &of) };
            } else {
                say(format_args!("something else is where {} bytes were", of.bytes()));
                // SAFETY: this file's own mapping.
                let _ = unsafe { raw::munmap(at, of.bytes()) };
            }
        }
        // What the child has now is the kernel's own private memory, or nothing.
        self.stays.clear();
    }
}

impl Stay {
    fn has(&self, piece: &Piece, offset: u64) -> bool {
        self.file == (piece.device, piece.inode) && self.from <= offset && offset < self.to
    }
}

/// Moves a copy in a child to where the original was.
///
/// # Safety
/// The copy is this file's own mapping, and so is what holds the original's place.
unsafe fn put_in_place(at: usize, of: &Range) {
    let pieces = maps::pieces(at, at + of.bytes()).or_else(|error| {
        raw::with_descriptors(|| maps::pieces(at, at + of.bytes())).unwrap_or(Err(error))
    });
    let pieces = match pieces {
        Ok(pieces) => pieces,
        Err(error) => return say(format_args!("the child lacks {} bytes: {error}", of.bytes())),
    };
    // Different rights are different mappings, and Linux before 6.17 moves one at a time.
    for piece in pieces {
        let (bytes, to) = (piece.end - piece.start, of.piece.start + (piece.start - at));
        // SAFETY: the caller's contract.
        if let Err(error) = unsafe { raw::mremap(piece.start, bytes, bytes, MOVE, to) } {
            say(format_args!("the child lacks {bytes} bytes at {to:#x}: {error}"));
            // SAFETY: this file's own mapping.
            let _ = unsafe { raw::munmap(piece.start, bytes) };
        }
    }
}

/// Holds the place of memory that a child does not have: who reads or writes there ends by SIGSEGV
/// and finds nothing that was mapped there since, and who unmaps it, as allocators do with what
/// they had before the fork, unmaps nothing else.
fn keep_clear(range: &Range) {
    if let Err(error) = hold(range) {
        say(format_args!("{} bytes that the child lacks are free: {error}", range.bytes()));
    }
}

/// Takes a range's place in a child, which does not have the original. Another thread of the parent
/// may have put something else there between copy and fork: then that is what the child has, too.
fn hold(range: &Range) -> raw::Result<()> {
    let flags = ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let at = range.piece.start;
    // SAFETY: replaces nothing.
    unsafe { raw::mmap(at, range.bytes(), libc::PROT_NONE, flags, -1, 0) }.map(drop)
}

/// A private copy of a range with its rights, somewhere.
fn copy(memory: c_int, range: &Range) -> raw::Result<usize> {
    let copied = huge(range).and_then(|at| fill(memory, range, at, populate));
    // Of ordinary memory only what is written is taken, which is less than a huge page.
    copied.or_else(|_| {
        let at = aligned(range.bytes(), range.page, READ_WRITE, 0)?;
        fill(memory, range, at, |_, _| Ok(()))
    })
}

/// Makes sure of a page's memory before something is written to it.
type Have = fn(usize, usize) -> raw::Result<()>;

/// Fills a copy and returns it, or unmaps it where a page of it cannot be had.
fn fill(memory: c_int, range: &Range, at: usize, have: Have) -> raw::Result<usize> {
    let piece = &range.piece;
    for from in (piece.start..piece.end).step_by(range.page) {
        let to = at + (from - piece.start);
        let is_there = piece.prot & libc::PROT_READ != 0 && raw::is_resident(from);
        let copied = if is_there {
            // SAFETY: a page of the original that is readable and there.
            if unsafe { raw::is_zero(from, range.page) } {
                continue;
            }
            // SAFETY: the same, and its place in the copy, which is as long, nobody else's, and
            // has its memory.
            have(to, range.page).map(|()| unsafe { raw::copy_unless_zero(from, to, range.page) })
        } else {
            through_kernel(memory, from, to, range.page, have)
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
        let _ = unsafe { raw::mprotect(at, range.bytes(), piece.prot) };
    }
    Ok(at)
}

/// A huge page's memory, or the kernel's refusal instead of a signal at the first touch.
fn populate(at: usize, bytes: usize) -> raw::Result<()> {
    // SAFETY: the advice changes no content.
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
const MOVE: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

/// Address space for huge pages of the kernel's that can be moved later.
///
/// Without a promise (`MAP_NORESERVE`), which would be the parent's and no use to the child: where
/// the parent then unmaps first, Linux 6.18 counts it back although the child has the pages, and as
/// long as it has them the pool has promised fewer pages than none, and more than it has to others.
/// [`populate`] finds out whether there are pages.
fn huge(range: &Range) -> raw::Result<usize> {
    let size = c_int::try_from(range.page.trailing_zeros()).map_err(|_| Errno(libc::EINVAL))?;
    let flags = ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_NORESERVE | size << libc::MAP_HUGE_SHIFT;
    // SAFETY: new mappings at addresses of the kernel's choice replace nothing.
    let first = unsafe { raw::mmap(0, range.bytes(), READ_WRITE, flags, -1, 0) }?;
    // Kernels before 5.16 do not move huge pages: better to know before the fork than after it.
    let moved = aligned(range.bytes(), range.page, READ_WRITE, 0).and_then(|place| {
        // SAFETY: both are this function's own.
        let moved = unsafe { raw::mremap(first, range.bytes(), range.bytes(), MOVE, place) };
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

/// Ordinary memory at an address that huge pages could have.
fn aligned(bytes: usize, page: usize, prot: c_int, flags: c_int) -> raw::Result<usize> {
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
