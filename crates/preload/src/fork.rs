// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies of private memory for a child, made before the fork and put in place after it.
//!
//! What a child is to have is copied into memory that is private in the kernel's own sense; the
//! child moves it to where the original was, which `MADV_DONTFORK` keeps from it.
//!
//! # Safety
//!
//! The copies are this file's own mappings, which nobody else has the address of; so is what holds
//! the original's place in a child.
#![expect(unsafe_code, reason = "moves copies of the program's private memory")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::config::AtFork;
use crate::copying::Reader;
use crate::maps;
use crate::private::{Range, is_dump_advised, private_place};
use crate::raw::{self, ANONYMOUS, MOVE, READ_WRITE};
use crate::say::say;
use crate::stays::Stays;

/// A copy that waits for the fork.
#[derive(Debug)]
struct Copy {
    at: usize,
    of: Range,
    /// Whether the child has nothing else where the original was.
    held: bool,
}

/// What waits for a fork.
#[derive(Debug)]
pub(crate) struct Fork {
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

impl Fork {
    pub(crate) const fn new() -> Self {
        Self { copies: Vec::new(), dropped: Vec::new(), sign: None }
    }

    /// Before a fork: copies what the child is to have.
    pub(crate) fn prepare(&mut self, stays: &Stays, how: AtFork) -> raw::Result<()> {
        let mut ranges = Vec::new();
        for piece in maps::pieces(0, usize::MAX)? {
            let Some(place) = private_place(&piece) else { continue };
            let runs = stays.runs(Range { piece, page: place.page });
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
            let mut reader = Reader::new()?;
            ranges.iter().try_for_each(|range| {
                let at = reader.copy(range)?;
                self.copies.push(Copy { at, of: *range, held: false });
                let advice = is_dump_advised().then(|| maps::advice(range.piece));
                if advice.flatten().is_some_and(|all| all.contains(&libc::MADV_DONTDUMP)) {
                    // SAFETY: this file's own mapping; the advice changes no content.
                    unsafe { raw::madvise(at, range.bytes(), libc::MADV_DONTDUMP) }?;
                }
                Ok(())
            })
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
    pub(crate) fn in_child(&mut self, stays: &mut Stays) {
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
        stays.clear();
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
