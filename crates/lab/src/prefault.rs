// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory touched the way programs do without prezero: mapped and populated by the kernel.
//!
//! For two purposes. As the other side of a comparison: every parallel prefault comes down to
//! `MAP_POPULATE`. And as a warm-up: in a virtual machine, untouched memory has no memory of the
//! host behind it yet, and the first touch of each page would measure the host.
//!
//! # Safety
//!
//! The file maps anonymous memory at addresses of the kernel's choice and unmaps exactly that when
//! the value is dropped. References into it borrow the value; the memory is private, so no other
//! process can write behind them.
#![expect(unsafe_code, reason = "maps, populates and unmaps anonymous memory")]

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr;
use std::time::{Duration, Instant};

use linux::{Errno, Error, Result};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use units::{Bytes, PageSize};

/// Anonymous private memory of one page size, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Anonymous {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the mapping belongs to the value and to no thread.
unsafe impl Send for Anonymous {}
// SAFETY: through a shared reference it can only be populated, which changes no content.
unsafe impl Sync for Anonymous {}

impl Anonymous {
    /// Maps `bytes` of huge pages, or of plain ones for 4 KiB, untouched.
    ///
    /// # Errors
    /// ENOMEM if the kernel's pool has too few free pages; EINVAL for no such page size.
    pub(crate) fn map(bytes: Bytes, page: PageSize) -> Result<Self> {
        Self::new(bytes, page, MapFlags::empty())
    }

    /// The same with every page zeroed and in the page tables: `MAP_POPULATE`. Blocks for all of
    /// it.
    ///
    /// # Errors
    /// As [`Anonymous::map`].
    pub(crate) fn map_populated(bytes: Bytes, page: PageSize) -> Result<Self> {
        Self::new(bytes, page, MapFlags::POPULATE)
    }

    /// The same as [`Anonymous::map`] with plain pages that may be transparent huge ones
    /// (`MADV_HUGEPAGE`), or may not (`MADV_NOHUGEPAGE`), in place of the system's default.
    ///
    /// # Errors
    /// ENOMEM for lack of address space; EINVAL from a kernel without transparent huge pages.
    pub(crate) fn map_transparent(bytes: Bytes, huge: bool) -> Result<Self> {
        let memory = Self::map(bytes, PageSize::KIB_4)?;
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range is this value's own; the advice changes no content.
        unsafe { rustix::mm::madvise(memory.start, memory.bytes, advice) }.map_err(|errno| {
            Error::Call {
                call: format!("madvise({:?}, {}, {advice:?})", memory.start, memory.bytes).into(),
                errno,
                advice: None,
            }
        })?;
        Ok(memory)
    }

    /// The memory. Untouched memory is zero, and is faulted in at its first touch.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable and writable for `bytes`, which is at most isize::MAX as
        // the kernel granted it; the kernel has initialised it with zeros; it is private and
        // borrowed with `self`. Huge pages were promised at `mmap`, so that touching them does not
        // fail.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes) }
    }

    fn new(bytes: Bytes, page: PageSize, more: MapFlags) -> Result<Self> {
        let huge = match page {
            PageSize::KIB_4 => MapFlags::empty(),
            // The size's logarithm, in the six bits from MAP_HUGE_SHIFT on: mmap(2).
            size => {
                MapFlags::HUGETLB | MapFlags::from_bits_retain(size.bytes().trailing_zeros() << 26)
            }
        };
        let flags = MapFlags::PRIVATE | huge | more;
        let len = usize::try_from(bytes.0).map_err(|_| failed(bytes, flags, Errno::NOMEM))?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, prot, flags) }
            .map_err(|errno| failed(bytes, flags, errno))?;
        Ok(Self { start, bytes: len })
    }

    /// Touches `range`, in bytes: the kernel zeroes the missing pages. Blocks for all of it.
    ///
    /// # Errors
    /// ENOMEM or EFAULT if there was no page; EINVAL before Linux 5.14.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<()> {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "{range:?} is outside the mapping"
        );
        let at = self.start.wrapping_byte_add(range.start);
        // SAFETY: the range is this value's own; MADV_POPULATE_WRITE changes no content.
        unsafe { rustix::mm::madvise(at, range.len(), Advice::LinuxPopulateWrite) }.map_err(
            |errno| Error::Call {
                call: format!("madvise({at:?}, {}, MADV_POPULATE_WRITE)", range.len()).into(),
                errno,
                advice: (errno == Errno::INVAL).then_some("needs Linux 5.14"),
            },
        )
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and references into it ended with their borrow.
        let result = unsafe { rustix::mm::munmap(self.start, self.bytes) };
        debug_assert!(result.is_ok(), "munmap({:?}, {}): {result:?}", self.start, self.bytes);
    }
}

fn failed(bytes: Bytes, flags: MapFlags, errno: Errno) -> Error {
    Error::Call {
        call: format!("mmap(NULL, {}, PROT_READ|PROT_WRITE, {:#x})", bytes.0, flags.bits()).into(),
        errno,
        advice: (errno == Errno::NOMEM)
            .then_some("the kernel's pool has too few free pages of this size"),
    }
}

/// How long `MAP_POPULATE` of `bytes` takes; unmapping is not counted.
///
/// # Errors
/// As [`Anonymous::map`].
pub(crate) fn time_populate(bytes: Bytes, page: PageSize) -> Result<Duration> {
    let begin = Instant::now();
    let memory = Anonymous::map_populated(bytes, page)?;
    let took = begin.elapsed();
    drop(memory);
    Ok(took)
}

/// An unnamed file of huge pages. Dropped, it gives its pages back.
#[derive(Debug)]
pub(crate) struct HugeFile(OwnedFd);

impl HugeFile {
    /// An empty one.
    ///
    /// # Errors
    /// EINVAL or ENODEV for no such page size.
    pub(crate) fn new(page: PageSize) -> Result<Self> {
        let size = MemfdFlags::from_bits_retain(page.bytes().trailing_zeros() << 26);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | size;
        let file = rustix::fs::memfd_create("prezero", flags);
        file.map(Self).map_err(|errno| Error::Call {
            call: format!("memfd_create(\"prezero\", {:#x})", flags.bits()).into(),
            errno,
            advice: None,
        })
    }

    /// Has the kernel make and zero its first `bytes`, without mapping them. Blocks for all of it.
    ///
    /// # Errors
    /// ENOSPC if the kernel's pool has too few free pages.
    pub(crate) fn fallocate(&self, bytes: Bytes) -> Result<()> {
        rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, bytes.0).map_err(|errno| {
            Error::Call {
                call: format!("fallocate(memfd:prezero, 0, 0, {})", bytes.0).into(),
                errno,
                advice: (errno == Errno::NOSPC)
                    .then_some("the kernel's pool has too few free pages of this size"),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_memory_is_mapped_populated_and_touched() {
        let bytes = Bytes(8 << 20);
        assert!(time_populate(bytes, PageSize::KIB_4).unwrap() > Duration::ZERO);
        let memory = Anonymous::map(bytes, PageSize::KIB_4).unwrap();
        memory.populate(4096..1 << 20).unwrap();
    }

    #[test]
    fn memory_can_be_written_and_starts_at_zero() {
        let mut memory = Anonymous::map_transparent(Bytes(4 << 20), true).unwrap();
        let bytes = memory.as_mut_slice();
        assert_eq!((bytes.len(), bytes[4097]), (4 << 20, 0));
        bytes[4097] = 7;
        assert_eq!(memory.as_mut_slice()[4097], 7);
    }

    #[test]
    fn unknown_page_size_is_an_error_that_names_the_call() {
        let error = Anonymous::map(Bytes(1 << 40), PageSize::new(1 << 40).unwrap());
        let text = error.unwrap_err().to_string();
        assert!(text.starts_with("mmap("), "{text}");
    }
}
