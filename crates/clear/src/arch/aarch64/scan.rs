// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The search for a block with a nonzero byte.
//!
//! # Safety
//!
//! NEON is part of every aarch64 target with floating point. Loads stay inside a block of the
//! slice.
#![expect(unsafe_code, reason = "vector loads")]

use core::arch::aarch64::{vld1q_u8, vmaxvq_u8, vorrq_u8};

use crate::arch::portable::first_nonzero_block;
use crate::scan::BlockScan;

/// 16 bytes at a time, four times per turn.
pub(super) fn neon() -> Option<BlockScan> {
    #[target_feature(enable = "neon")]
    fn search(bytes: &[u8]) -> Option<usize> {
        let (blocks, rest) = bytes.as_chunks::<64>();
        let dirty = |block: &[u8; 64]| {
            // SAFETY: 16 bytes at offsets 0, 16, 32 and 48 of 64.
            let load = |at: usize| unsafe { vld1q_u8(block.as_ptr().wrapping_add(at)) };
            let (low, high) = (vorrq_u8(load(0), load(16)), vorrq_u8(load(32), load(48)));
            vmaxvq_u8(vorrq_u8(low, high)) != 0
        };
        match blocks.iter().position(dirty) {
            Some(block) => Some(block * 64),
            None => first_nonzero_block(rest).map(|at| blocks.len() * 64 + at),
        }
    }
    // SAFETY: NEON is part of every aarch64 target with floating point, and of every one that std
    // exists for.
    Some(|bytes| unsafe { search(bytes) })
}
