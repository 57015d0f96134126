// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The methods of aarch64: what each relies on, and how an odd address reaches its loop.
//!
//! # Safety
//!
//! A value of [`DcZva`] exists only where the CPU allows the instruction; the other instructions
//! are part of the base set. [`units`] gives a loop whole aligned units only.
#![expect(unsafe_code, reason = "calls the store loops on memory that the caller vouches for")]

use core::arch::asm;

use super::leaf;
use crate::arch::Store;
use crate::arch::leaf::Trap;
use crate::{Fault, Method};

/// The unit of the loops over pairs.
const LINE_BYTES: usize = 64;

/// A store loop.
type Leaf = unsafe extern "C" fn(*mut u8, usize, usize) -> Trap;

/// Clears the unaligned head and tail byte by byte and the whole units between them with `leaf`.
///
/// # Safety
///
/// As for [`Store::store`]; and the CPU can execute `leaf`, which clears any positive multiple of
/// `unit` bytes at a multiple of `unit`, a power of two.
#[inline]
unsafe fn units(start: *mut u8, len: usize, unit: usize, leaf: Leaf) -> Result<(), Fault> {
    let head = start.align_offset(unit).min(len);
    let body = (len - head) / unit * unit;
    let tail = len - head - body;
    if head > 0 {
        // SAFETY: the first `head` of the caller's `len` bytes.
        unsafe { leaf::bytes(start, head, 1) }.into_result()?;
    }
    if body > 0 {
        // SAFETY: `head` is at most `len`: inside the caller's bytes.
        let aligned = unsafe { start.add(head) };
        // SAFETY: `head + body` is at most `len`; address and length are multiples of `unit`; the
        // caller has the instruction.
        unsafe { leaf(aligned, body, unit) }.into_result()?;
    }
    if tail > 0 {
        // SAFETY: `head + body` is at most `len`: inside the caller's bytes.
        let rest = unsafe { start.add(head + body) };
        // SAFETY: the last `tail` of the caller's `len` bytes.
        unsafe { leaf::bytes(rest, tail, 1) }.into_result()?;
    }
    Ok(())
}

/// The instruction that zeroes a block without reading it. Holds the block's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcZva {
    block_bytes: usize,
}

impl Store for DcZva {
    const METHOD: Method = Method::DcZva;

    fn new() -> Option<Self> {
        let id: u64;
        // SAFETY: reads a register that every exception level may read, and touches nothing else.
        unsafe {
            asm!("mrs {id}, dczid_el0", id = out(reg) id, options(nomem, nostack, preserves_flags, pure))
        };
        // Bit 4 forbids the instruction; bits 3:0 are the logarithm of the block's size in words of
        // 4 bytes.
        (id & 0x10 == 0).then_some(Self { block_bytes: 4 << (id & 0xf) })
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's obligations; `self` proves the instruction and its block size.
        unsafe { units(start, len, self.block_bytes, leaf::dc_zva) }
    }
}

/// Pairs of words with a non-temporal hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stnp(());

impl Store for Stnp {
    const METHOD: Method = Method::Stnp;

    fn new() -> Option<Self> {
        Some(Self(()))
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's obligations; base instructions.
        unsafe { units(start, len, LINE_BYTES, leaf::stnp) }
    }
}

/// Pairs of words through the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stp(());

impl Store for Stp {
    const METHOD: Method = Method::Stp;

    fn new() -> Option<Self> {
        Some(Self(()))
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's obligations; base instructions.
        unsafe { units(start, len, LINE_BYTES, leaf::stp) }
    }
}
