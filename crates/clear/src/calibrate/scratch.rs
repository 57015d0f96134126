// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory to measure on.
//!
//! # Safety
//!
//! [`Scratch`] owns one private anonymous mapping and unmaps it when dropped; borrows of it are
//! borrows of the value.
#![expect(unsafe_code, reason = "maps memory")]

use std::io;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::Extent;

const MIB: usize = 1 << 20;

/// Anonymous memory, with huge pages where the system gives them.
#[derive(Debug)]
pub struct Scratch {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the value, and any thread may have it.
unsafe impl Send for Scratch {}

impl Scratch {
    /// A mapping of `len` bytes, rounded up to 2 MiB; its pages come when they are first touched.
    ///
    /// # Errors
    ///
    /// Those of `mmap(2)`.
    pub fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(2 * MIB);
        // SAFETY: a new mapping at an address of the kernel's choice is disjoint from all others.
        let start = unsafe {
            mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        // Without huge pages the rates are a little lower for all methods alike, so a failure is
        // ignored. SAFETY: advice on the mapping made above leaves its content alone.
        let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, len })
    }

    /// Four times the last-level cache, since lines that stay in the cache have yet to reach
    /// memory; 128 MiB to 1 GiB.
    #[must_use]
    pub fn default_bytes() -> usize {
        let cache = Path::new("/sys/devices/system/cpu/cpu0/cache/index3/size");
        let text = std::fs::read_to_string(cache).unwrap_or_default();
        let kib: usize = text.trim().trim_end_matches('K').parse().unwrap_or(32 * 1024);
        kib.saturating_mul(4 * 1024).clamp(128 * MIB, 1024 * MIB)
    }

    /// The memory.
    pub fn extent(&mut self) -> Extent<'_> {
        // SAFETY: the mapping is writable, its length is what the kernel granted, and it is
        // borrowed with `self`.
        unsafe { Extent::from_raw_parts(self.start, self.len) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; all borrows have ended. It always succeeds for a
        // mapping that exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
