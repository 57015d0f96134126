// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unused memory of this process.
//!
//! # Safety
//!
//! The unsafe operation is `malloc_trim`. It takes a number instead of a pointer, locks the arenas
//! itself (MT-Safe), and gives back only unallocated memory.
#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "glibc's malloc_trim"))]

/// Gives freed memory that the allocator keeps back to the kernel. Returns whether there was any.
///
/// glibc keeps freed memory that lies below memory in use, for ever. Costs milliseconds per 100 MiB
/// of heap. Other C libraries give memory back by themselves: a no-op there.
pub fn trim() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the argument is a number, and allocated memory stays untouched.
        (unsafe { libc::malloc_trim(0) }) == 1
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}
