// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Private memory as it is, copied for a child.
//!
//! # Safety
//!
//! The copies are this file's own mappings, which nobody else has the address of. The original is
//! the program's: where it has one thread, which is in `fork`, it stays as it was found.
#![expect(unsafe_code, reason = "reads the program's private memory")]

use libc::c_int;

use crate::private::{Range, aligned, populate};
use crate::raw::{self, ANONYMOUS, Errno, MOVE, READ_WRITE};

/// Of ordinary memory a copy has none where so much of the original is zero.
const BASE: usize = 4096;

/// How the program's memory is read.
#[derive(Debug)]
pub(crate) struct Reader {
    /// `/proc/self/mem`.
    memory: c_int,
    buffer: Vec<u8>,
    /// Whether the program has threads beside this one, which may take rights from what is read, or
    /// put something else there. A plain read would end the program by SIGSEGV; the kernel says no.
    /// It takes 2.3 times as long.
    is_shared: bool,
}

/// Makes sure of a page's memory before something is written to it.
type Have = fn(usize, usize) -> raw::Result<()>;

impl Reader {
    pub(crate) fn new() -> raw::Result<Self> {
        let memory = raw::open(c"/proc/self/mem")?;
        Ok(Self { memory, buffer: vec![0; 64 << 10], is_shared: raw::threads() != Some(1) })
    }

    /// A private copy of a range with its rights, somewhere.
    pub(crate) fn copy(&mut self, range: &Range) -> raw::Result<usize> {
        let copied = are_a_childs(range.page)
            .then(|| huge(range).and_then(|at| self.fill(range, at, populate)).ok());
        // Of ordinary memory only what is written is taken, which is less than a huge page.
        copied.flatten().map_or_else(
            || {
                let at = aligned(range.bytes(), range.page, READ_WRITE, 0)?;
                self.fill(range, at, |_, _| Ok(()))
            },
            Ok,
        )
    }

    /// Fills a copy and returns it, or unmaps it where a page of it cannot be had.
    fn fill(&mut self, range: &Range, at: usize, have: Have) -> raw::Result<usize> {
        let piece = &range.piece;
        for from in (piece.start..piece.end).step_by(range.page) {
            let to = at + (from - piece.start);
            let is_readable = piece.prot & libc::PROT_READ != 0;
            let copied = if !self.is_shared && is_readable && raw::is_resident(from) {
                plainly(from, to, range.page, have)
            } else {
                self.through_kernel(from, to, range.page, have)
            };
            if let Err(error) = copied {
                // SAFETY: this file's own mapping.
                let _ = unsafe { raw::munmap(at, range.bytes()) };
                return Err(error);
            }
        }
        if piece.prot != READ_WRITE {
            // SAFETY: this function's own mapping. Fewer rights than it has cannot be refused but
            // for want of memory for the mapping's description; the child then has more rights.
            let _ = unsafe { raw::mprotect(at, range.bytes(), piece.prot) };
        }
        Ok(at)
    }

    /// Copies a page that this thread could not read, or not without a signal: one without rights,
    /// one that the program gave up and the kernel has no new one for, which is zero, or one that
    /// another thread changes.
    fn through_kernel(
        &mut self,
        from: usize,
        to: usize,
        bytes: usize,
        have: Have,
    ) -> raw::Result<()> {
        let mut populated = false;
        for offset in (0..bytes).step_by(self.buffer.len()) {
            let at = (from + offset) as u64;
            let read = raw::pread(self.memory, &mut self.buffer, at).unwrap_or(0);
            for (nth, part) in self.buffer[..read].chunks(BASE).enumerate() {
                if part.iter().all(|byte| *byte == 0) {
                    continue;
                }
                if !std::mem::replace(&mut populated, true) {
                    have(to, bytes)?;
                }
                // SAFETY: into this file's own copy, whose page is longer than what was read.
                unsafe { raw::put(part, to + offset + nth * BASE) };
            }
        }
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        raw::close(self.memory);
    }
}

/// Copies a page that stays as it is.
fn plainly(from: usize, to: usize, bytes: usize, have: Have) -> raw::Result<()> {
    // SAFETY: a page of the original that is readable and there.
    if unsafe { raw::is_zero(from, bytes) } {
        return Ok(());
    }
    have(to, bytes)?;
    // SAFETY: the same, and its place in the copy, which is as long, nobody else's, and has its
    // memory.
    unsafe { raw::copy_unless_zero(from, to, bytes) };
    Ok(())
}

/// Whether a child has its parent's private huge pages of that size for sure: those that a page
/// table's entry above the last level maps.
///
/// Linux 6.18 takes the tables of all others for shared ones, by what happens to be left in a field
/// that only the former have, and then leaves the child without: it reads zeros. Of pages of 1 GiB
/// that was a third of all forks, without the shim.
fn are_a_childs(page: usize) -> bool {
    let entries = raw::base_page() / 8;
    page == raw::base_page() * entries
}

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
