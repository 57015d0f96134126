// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared mappings of block files, one alone or several in a row.
//!
//! Mapping a file that has its pages costs page tables only. For 2 GiB on a Zen 4, one core, as
//! `examples/costs.rs` prints, map and unmap take 12 to 19 us. With every page populated they take
//! 14 us for 1 GiB pages and 0.55 ms for 2 MiB pages, against 240 ms and 430 ms for zeroing by the
//! kernel. A hole in a hugetlbfs file is promised pages at `mmap` (ENOMEM if the pool is short of
//! them) and filled at the first touch.
//!
//! The kernel lets mappings of one file share page tables of 2 MiB pages, a whole GiB at a time,
//! where each begins at a GiB's boundary: a second mapping of a populated file takes one fault per
//! GiB. So a mapping of 1 GiB or more begins at such boundaries.
//!
//! A mapping holds the file's open description as a descriptor does: closing the descriptor does
//! not end it, for [`crate::exclusive::prove`] least of all. A writable mapping that is longer than
//! a hugetlbfs file makes the file longer.
//!
//! # Safety
//!
//! The file maps and unmaps memory. Fixed-address mappings go only into an address range that the
//! same value reserved, so they replace no other mapping, and the range is unmapped only when the
//! value is dropped. The memory is shared with other processes and may change at any time, so no
//! reference into it is ever made here: callers get a raw pointer. Touching a page that the file
//! lost (truncation) or that the pool could not give raises SIGBUS, which ends the process but
//! corrupts nothing.
#![expect(unsafe_code, reason = "maps, fills and unmaps memory")]

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use units::PageSize;

use crate::error::{Advise, Errno, Error, ErrorContext, Result};

/// What one page table of the level above 2 MiB pages covers, with 4 KiB tables.
const SHARED_TABLE: u64 = 1 << 30;

/// Memory of one or several files, mapped `MAP_SHARED`, readable and writable. Dropping it unmaps.
#[derive(Debug)]
pub struct Mapping {
    start: *mut c_void,
    len: usize,
}

// SAFETY: the value owns an address range, not thread-local state. It hands out raw pointers only,
// so code that dereferences them answers for the synchronisation.
unsafe impl Send for Mapping {}
// SAFETY: as above; methods behind a shared reference leave the value alone.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd` at an address that is a multiple of `page`, and of 1 GiB
    /// if `len` is at least that.
    ///
    /// # Errors
    /// EINVAL if `len` is a fraction of pages of the file; ENOMEM if the file has a hole and the
    /// pool too few free pages for it.
    pub fn map(fd: impl AsFd, len: u64, page: PageSize) -> Result<Self> {
        Self::map_row(&[(fd.as_fd(), len)], page)
    }

    /// Maps the first `len` bytes of each file, directly one behind the other.
    ///
    /// All or nothing: one failure unmaps the others.
    pub fn map_row(files: &[(BorrowedFd<'_>, u64)], page: PageSize) -> Result<Self> {
        let mut total: u64 = 0;
        for &(_, len) in files {
            if len == 0 || !len.is_multiple_of(page.bytes()) {
                return Err(Error::invalid("length", len, "is not a whole number of pages"));
            }
            total = total.checked_add(len).ok_or_else(|| too_long(len))?;
        }
        let row = Self::reserve(total, page)?;
        let mut offset = 0;
        for &(fd, len) in files {
            let len = usize::try_from(len).map_err(|_| too_long(len))?;
            row.place(fd, len, offset)?;
            offset += len;
        }
        Ok(row)
    }

    /// Address space alone: reads and writes fault there.
    fn reserve(len: u64, page: PageSize) -> Result<Self> {
        let fits = |bytes: u64| usize::try_from(bytes).map_err(|_| too_long(len));
        if len == 0 {
            return Err(Error::invalid("length", len, "is not a whole number of pages"));
        }
        let boundary =
            if len >= SHARED_TABLE { page.bytes().max(SHARED_TABLE) } else { page.bytes() };
        let padded = fits(len.checked_add(boundary).ok_or_else(|| too_long(len))?)?;
        let (len, boundary) = (fits(len)?, fits(boundary)?);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), padded, ProtFlags::empty(), flags)
        }
        .or_call(|| format!("mmap(NULL, {padded}, PROT_NONE, MAP_PRIVATE|MAP_ANONYMOUS)"))?;
        let mut whole = Self { start, len: padded };
        let head = start.align_offset(boundary);
        let tail = padded - head - len;
        whole.trim(head, tail)?;
        Ok(whole)
    }

    /// Unmaps `head` bytes at the front and `tail` at the end, whole base pages both.
    fn trim(&mut self, head: usize, tail: usize) -> Result<()> {
        if tail > 0 {
            let end = self.start.wrapping_byte_add(self.len - tail);
            // SAFETY: the last `tail` bytes of a range that this value owns, without a pointer into
            // them.
            unsafe { rustix::mm::munmap(end, tail) }
                .or_call(|| format!("munmap({end:?}, {tail})"))?;
            self.len -= tail;
        }
        if head > 0 {
            let start = self.start;
            // SAFETY: the first `head` bytes of the same range, with the same argument.
            unsafe { rustix::mm::munmap(start, head) }
                .or_call(|| format!("munmap({start:?}, {head})"))?;
            self.start = start.wrapping_byte_add(head);
            self.len -= head;
        }
        Ok(())
    }

    /// Puts the first `len` bytes of `fd` at `offset` of the reserved range.
    fn place(&self, fd: BorrowedFd<'_>, len: usize, offset: usize) -> Result<()> {
        debug_assert!(offset + len <= self.len, "the row was reserved for all of its files");
        let at = self.start.wrapping_byte_add(offset);
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: `at..at + len` lies in the range reserved by this value, which holds nothing yet.
        unsafe { rustix::mm::mmap(at, len, prot, flags, fd, 0) }
            .or_call(|| {
                let fd = crate::block_file::name_of(fd);
                format!("mmap({at:?}, {len}, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_FIXED, {fd}, 0)")
            })
            .advise(
                Errno::NOMEM,
                "the file has a hole, and the pool too few free pages to promise for it",
            )
            .advise(Errno::INVAL, "the length must be whole pages of the file's page size")
            .map(drop)
    }

    /// Where it starts, a multiple of the page size it was mapped with.
    ///
    /// The pointer is good until the mapping is dropped. Other processes may write behind it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.cast()
    }

    /// Its length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Puts every page into the page tables, allocating (and zeroing) those that are holes.
    ///
    /// # Errors
    /// EFAULT or ENOMEM if a hole stays unfilled, EHWPOISON for a broken page; the rest may be
    /// populated.
    pub fn populate(&self) -> Result<()> {
        self.populate_range(0..self.len)
    }

    /// The same for the pages of `range` (offsets, half-open): several threads may each do a part,
    /// and the pages come from where the calling thread's memory policy says.
    ///
    /// # Errors
    /// As [`Mapping::populate`].
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn populate_range(&self, range: Range<usize>) -> Result<()> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} is outside the mapping"
        );
        let (start, len) = (self.start.wrapping_byte_add(range.start), range.len());
        // SAFETY: the range is this value's own; MADV_POPULATE_WRITE changes no content.
        unsafe { rustix::mm::madvise(start, len, Advice::LinuxPopulateWrite) }
            .or_call(|| format!("madvise({start:?}, {len}, MADV_POPULATE_WRITE)"))
            .advise(Errno::INVAL, "needs Linux 5.14")
    }

    /// Writes `byte` to every byte of `range` (offsets, half-open).
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn fill(&self, range: Range<usize>, byte: u8) {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} is outside the mapping"
        );
        let at = self.as_ptr().wrapping_add(range.start);
        // SAFETY: inside the mapping, which is writable and lives as long as `self`; no Rust
        // reference to this memory exists, since none is ever made.
        unsafe { ptr::write_bytes(at, byte, range.len()) };
    }

    /// Copies what lies at `offset` into `buffer`. What another process writes meanwhile may be
    /// seen in part.
    ///
    /// # Panics
    /// If the range leaves the mapping.
    pub fn read(&self, offset: usize, buffer: &mut [u8]) {
        let end = offset.checked_add(buffer.len());
        assert!(end.is_some_and(|end| end <= self.len), "{offset} is outside the mapping");
        let at = self.as_ptr().wrapping_add(offset);
        // SAFETY: the source is inside the mapping, readable and alive as long as `self`; the
        // buffer is a Rust value of its own, so that they don't overlap.
        unsafe { ptr::copy_nonoverlapping(at, buffer.as_mut_ptr(), buffer.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and raw pointers into it end with it by contract.
        let result = unsafe { rustix::mm::munmap(self.start, self.len) };
        // If the kernel has merged it with its neighbours, it must be cut out of them, and memory
        // for that may be missing: then it stays until the process ends. EINVAL would be a file of
        // larger pages than `place` accepted, which mmap refuses.
        debug_assert!(
            matches!(result, Ok(()) | Err(Errno::NOMEM)),
            "munmap({:?}, {}): {result:?}",
            self.start,
            self.len
        );
    }
}

fn too_long(len: u64) -> Error {
    Error::invalid("length", len, "is larger than the address space")
}
