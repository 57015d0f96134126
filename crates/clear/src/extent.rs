// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory to clear, and the claim that it has been cleared.
//!
//! # Safety
//!
//! The types here carry a pointer with the promises of [`Extent::from_raw_parts`]: valid,
//! exclusive, and live for the lifetime in the type. Splitting hands disjoint halves of the same
//! promise on, and a promise is never extended. Only this crate constructs the claim [`Zeroed`].
#![expect(
    unsafe_code,
    reason = "raw memory enters here, under the promises of `Extent::from_raw_parts`"
)]

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::slice;

/// A contiguous range of memory that its holder alone may touch for `'a`, with any content,
/// initialised or not.
///
/// Any alignment is allowed; whole pages clear fastest.
#[derive(Debug)]
pub struct Extent<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a mut [MaybeUninit<u8>]>,
}

// SAFETY: an extent is exclusive access to plain bytes, as `&mut [u8]` is, and any thread may have
// bytes.
unsafe impl Send for Extent<'_> {}

impl<'a> Extent<'a> {
    /// The extent of `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// For all of `'a`:
    /// - `start` is valid for writes of `len` bytes, within one allocation or mapping;
    /// - no other pointer, thread, process or device reads or writes these bytes. A shared mapping
    ///   qualifies while it is the only one of its file;
    /// - `start + len` does not wrap and `len` is at most `isize::MAX`;
    /// - a page that may be missing or poisoned is covered by the handler of module `guard`.
    #[must_use]
    pub const unsafe fn from_raw_parts(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// The first byte. May be written through for `'a`.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether its length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same memory for a shorter time, so that the extent is still there afterwards.
    #[must_use]
    pub const fn reborrow(&mut self) -> Extent<'_> {
        Extent { start: self.start, len: self.len, memory: PhantomData }
    }

    /// Two extents, the first of `mid` bytes; of all the bytes where the extent is shorter.
    #[must_use]
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        let mid = mid.min(self.len);
        // SAFETY: `mid` is at most `len`, so the sum stays in the extent's allocation or one past
        // it and does not wrap.
        let second = unsafe { self.start.add(mid) };
        (
            Self { start: self.start, len: mid, memory: PhantomData },
            Self { start: second, len: self.len - mid, memory: PhantomData },
        )
    }
}

impl<'a> From<&'a mut [u8]> for Extent<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { start: NonNull::from(&mut *bytes).cast(), len: bytes.len(), memory: PhantomData }
    }
}

impl<'a> From<&'a mut [MaybeUninit<u8>]> for Extent<'a> {
    fn from(bytes: &'a mut [MaybeUninit<u8>]) -> Self {
        Self { start: NonNull::from(&mut *bytes).cast(), len: bytes.len(), memory: PhantomData }
    }
}

/// The claim that every byte of an extent is zero. Only clearing makes it.
///
/// Builds with debug assertions read the memory back before they make the claim: all of it up to 64
/// MiB, one line of each 4 KiB above.
#[derive(Debug)]
#[must_use = "the claim is what clearing was for"]
pub struct Zeroed<'a> {
    extent: Extent<'a>,
}

impl<'a> Zeroed<'a> {
    /// The claim, made by the code that stored the zeros and fenced them.
    pub(crate) const fn claim(extent: Extent<'a>) -> Self {
        Self { extent }
    }

    /// The same claim, re-verified in builds with debug assertions.
    pub(crate) fn verified(self) -> Self {
        if cfg!(debug_assertions) {
            self.spot_check();
        }
        self
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.extent.len
    }

    /// Whether the claim is about 0 bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.extent.is_empty()
    }

    /// The bytes, all zero.
    #[must_use]
    pub const fn as_slice(&self) -> &[u8] {
        // SAFETY: the extent's promises make the pointer valid and exclusive for `len` bytes while
        // `self` is borrowed; the bytes were written, hence are initialised; `len` is at most
        // `isize::MAX`.
        unsafe { slice::from_raw_parts(self.extent.start.as_ptr(), self.extent.len) }
    }

    /// Reads the bytes back.
    ///
    /// # Panics
    ///
    /// Where one is nonzero: the promise of exclusive memory was broken, or a clearing method is
    /// wrong.
    fn spot_check(&self) {
        const FULL_BYTES: usize = 64 << 20;
        const LINE_BYTES: usize = 64;
        let bytes = self.as_slice();
        let found = if bytes.len() <= FULL_BYTES {
            crate::first_nonzero(bytes)
        } else {
            // Another line in each page, so that a fault at one offset of the page is met as well.
            bytes.chunks(4096).enumerate().find_map(|(page, content)| {
                let line = (page * 7 % (4096 / LINE_BYTES) * LINE_BYTES).min(content.len());
                let end = (line + LINE_BYTES).min(content.len());
                crate::first_nonzero(&content[line..end]).map(|at| page * 4096 + line + at)
            })
        };
        assert!(found.is_none(), "byte {found:?} of {} is not zero after clearing", bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_disjoint_and_whole() {
        let mut bytes = [1_u8; 100];
        let start = bytes.as_ptr().addr();
        for (mid, first_len) in
            [(0, 0), (1, 1), (99, 99), (100, 100), (101, 100), (usize::MAX, 100)]
        {
            let (first, second) = Extent::from(&mut bytes[..]).split_at(mid);
            assert_eq!((first.as_ptr().addr(), first.len()), (start, first_len));
            assert_eq!(
                (second.as_ptr().addr(), second.len()),
                (start + first_len, 100 - first_len)
            );
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_false_claim_panics_in_debug_builds() {
        for (len, at) in [(1, 0), (4096, 4095), (100_000, 77)] {
            let mut bytes = vec![0_u8; len];
            bytes[at] = 1;
            let claim = std::panic::catch_unwind(move || {
                Zeroed::claim(Extent::from(&mut bytes[..])).verified().len()
            });
            assert!(claim.is_err(), "{len} bytes with a one at {at}");
        }
    }
}
