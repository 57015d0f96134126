// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of this process that nobody uses any more.
//!
//! # Safety
//!
//! The unsafe operation is `malloc_trim`. It takes a number and no pointer, locks the arenas itself
//! (MT-Safe), and gives back only what no allocation is in.
#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "glibc's malloc_trim"))]

/// Gives the kernel back what was freed and the allocator keeps. Returns whether it had anything.
///
/// glibc keeps freed memory that lies below memory in use, for ever. Costs milliseconds per 100 MiB
/// of heap. Other C libraries give memory back by themselves: a no-op there.
pub fn give_back() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: no pointer is passed, and nothing that is allocated is touched.
        (unsafe { libc::malloc_trim(0) }) == 1
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}
