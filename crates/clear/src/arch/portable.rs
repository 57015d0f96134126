// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The method that every CPU has, and the dispatch of architectures that have it alone.
//!
//! # Safety
//!
//! One call of `write_bytes` under the promises of the raw entry.
#![expect(
    unsafe_code,
    reason = "the raw entry writes through a pointer that its caller vouches for"
)]

use super::StoreZeros;
use crate::{Fault, Method};

/// `memset`, as the compiler and the C library know it. Cached stores up to a size that the library
/// chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portable(());

impl Portable {
    /// A value: every CPU can execute it.
    #[must_use]
    pub const fn always() -> Self {
        Self(())
    }
}

impl StoreZeros for Portable {
    const METHOD: Method = Method::Portable;

    fn new() -> Option<Self> {
        Some(Self::always())
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller promises `len` bytes valid for writes and touched by this call alone.
        unsafe { start.write_bytes(0, len) };
        Ok(())
    }
}

/// The offset of the first block of up to 64 bytes that has a nonzero byte.
///
/// Plain enough for the compiler to make vector code of it.
pub(crate) fn first_nonzero_block(bytes: &[u8]) -> Option<usize> {
    const BLOCK_BYTES: usize = 64;
    bytes
        .chunks(BLOCK_BYTES)
        .position(|block| block.iter().fold(0, |seen, byte| seen | byte) != 0)
        .map(|block| block * BLOCK_BYTES)
}

#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
pub use only::fence;
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
pub(crate) use only::{Engine, scanner};

/// The dispatch of all other architectures.
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
mod only {
    use super::{Portable, StoreZeros, first_nonzero_block};
    use crate::arch::engine::{engine, scanner};
    use crate::scan::{BlockScan, ScanMethod};
    use crate::{Fault, Method};

    engine! {}
    scanner! {}

    /// Orders earlier stores before later ones: a thread that sees a later one sees the zeros.
    /// `memset` may use non-temporal stores itself, but fences them.
    #[inline]
    pub fn fence() {
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
    }
}
