// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The search for a block with a nonzero byte, at three widths.
//!
//! Each reads four vectors per turn and tests their union once: the loads wait for memory, the
//! tests are free.
//!
//! # Safety
//!
//! Functions with a target feature are reached only through pointers that were given out after
//! detection. Loads are unaligned ones, inside a block of the slice.
#![expect(unsafe_code, reason = "vector loads, and calls of functions with a target feature")]

use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128,
    _mm_setzero_si128, _mm256_loadu_si256, _mm256_or_si256, _mm256_testz_si256, _mm512_loadu_si512,
    _mm512_or_si512, _mm512_test_epi64_mask,
};

use super::detected;
use crate::arch::portable::first_nonzero_block;
use crate::scan::BlockScan;

/// Searches blocks of `BLOCK` bytes with `dirty`, and the rest with the portable search.
///
/// Always inlined, so that it takes the target feature of its caller.
#[inline(always)]
fn blocks<const BLOCK: usize>(bytes: &[u8], dirty: impl Fn(&[u8; BLOCK]) -> bool) -> Option<usize> {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    match blocks.iter().position(dirty) {
        Some(block) => Some(block * BLOCK),
        None => first_nonzero_block(rest).map(|at| blocks.len() * BLOCK + at),
    }
}

/// The N-th vector of a block.
#[inline(always)]
const fn vector<T, const BLOCK: usize>(block: &[u8; BLOCK], index: usize) -> *const T {
    assert!((index + 1) * size_of::<T>() <= BLOCK);
    block.as_ptr().cast::<T>().wrapping_add(index)
}

/// 16 bytes at a time.
pub(super) fn sse2() -> Option<BlockScan> {
    #[target_feature(enable = "sse2")]
    fn search(bytes: &[u8]) -> Option<usize> {
        blocks::<64>(bytes, |block| {
            // SAFETY: 16 bytes inside the block, by `vector`.
            let load = |index| unsafe { _mm_loadu_si128(vector::<__m128i, 64>(block, index)) };
            let (low, high) = (_mm_or_si128(load(0), load(1)), _mm_or_si128(load(2), load(3)));
            _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_or_si128(low, high), _mm_setzero_si128()))
                != 0xffff
        })
    }
    // SAFETY: SSE2 is part of x86-64.
    Some(|bytes| unsafe { search(bytes) })
}

/// 32 bytes at a time, where the CPU has AVX2.
pub(super) fn avx2() -> Option<BlockScan> {
    #[target_feature(enable = "avx2")]
    fn search(bytes: &[u8]) -> Option<usize> {
        blocks::<128>(bytes, |block| {
            // SAFETY: 32 bytes inside the block, by `vector`.
            let load = |index| unsafe { _mm256_loadu_si256(vector::<__m256i, 128>(block, index)) };
            let (low, high) =
                (_mm256_or_si256(load(0), load(1)), _mm256_or_si256(load(2), load(3)));
            let all = _mm256_or_si256(low, high);
            _mm256_testz_si256(all, all) == 0
        })
    }
    // SAFETY: the pointer is given out only where AVX2 was detected.
    detected!("avx2").then_some(|bytes| unsafe { search(bytes) })
}

/// 64 bytes at a time, where the CPU has AVX-512F.
pub(super) fn avx512() -> Option<BlockScan> {
    #[target_feature(enable = "avx512f")]
    fn search(bytes: &[u8]) -> Option<usize> {
        blocks::<256>(bytes, |block| {
            // SAFETY: 64 bytes inside the block, by `vector`.
            let load = |index| unsafe { _mm512_loadu_si512(vector::<__m512i, 256>(block, index)) };
            let (low, high) =
                (_mm512_or_si512(load(0), load(1)), _mm512_or_si512(load(2), load(3)));
            let all = _mm512_or_si512(low, high);
            _mm512_test_epi64_mask(all, all) != 0
        })
    }
    // SAFETY: the pointer is given out only where AVX-512F was detected.
    detected!("avx512f").then_some(|bytes| unsafe { search(bytes) })
}
