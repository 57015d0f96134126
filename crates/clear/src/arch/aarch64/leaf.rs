// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store loops of aarch64.
//!
//! Each is `extern "C" fn(start: x0, len: x1, unit: x2) -> (address: x0, code: x1)` and keeps the
//! rules of [`arch::leaf`](crate::arch::leaf): a leaf in the section `prezero_leaf`. It leaves `sp`
//! and the return address in `x30` alone, and writes only registers that a callee may spoil.
//!
//! # Safety
//!
//! `start` is valid for `len` bytes of writes, `len` is not 0, and both are multiples of the unit
//! named at each loop.
#![expect(unsafe_code, reason = "assembly, placed in a section of its own")]

use core::arch::naked_asm;

use crate::arch::leaf::Trap;

/// Where the handler of SIGBUS lets an interrupted loop go on: back to the caller, with its result
/// in `x0` and `x1`.
#[cfg(feature = "std")]
#[unsafe(naked)]
#[unsafe(link_section = "prezero_leaf")]
pub(crate) unsafe extern "C" fn landing() {
    naked_asm!("ret")
}

/// Single bytes: the unaligned ends of an extent. Unit: 1.
#[unsafe(naked)]
#[unsafe(link_section = "prezero_leaf")]
pub(crate) unsafe extern "C" fn bytes(start: *mut u8, len: usize, _unit: usize) -> Trap {
    naked_asm!(
        "add x1, x1, x0",
        "2:",
        "strb wzr, [x0], #1",
        "cmp x0, x1",
        "b.lo 2b",
        "mov x0, xzr",
        "mov x1, xzr",
        "ret",
    )
}

/// `dc zva`, which zeroes the `unit` bytes around its address. Unit: `unit`, as DCZID_EL0 tells.
#[unsafe(naked)]
#[unsafe(link_section = "prezero_leaf")]
pub(super) unsafe extern "C" fn dc_zva(start: *mut u8, len: usize, unit: usize) -> Trap {
    naked_asm!(
        "add x1, x1, x0",
        "2:",
        "dc zva, x0",
        "add x0, x0, x2",
        "cmp x0, x1",
        "b.lo 2b",
        "mov x0, xzr",
        "mov x1, xzr",
        "ret",
    )
}

/// Pairs of words with a non-temporal hint. Unit: 64.
#[unsafe(naked)]
#[unsafe(link_section = "prezero_leaf")]
pub(super) unsafe extern "C" fn stnp(start: *mut u8, len: usize, _unit: usize) -> Trap {
    naked_asm!(
        "add x1, x1, x0",
        "2:",
        "stnp xzr, xzr, [x0]",
        "stnp xzr, xzr, [x0, #16]",
        "stnp xzr, xzr, [x0, #32]",
        "stnp xzr, xzr, [x0, #48]",
        "add x0, x0, #64",
        "cmp x0, x1",
        "b.lo 2b",
        "mov x0, xzr",
        "mov x1, xzr",
        "ret",
    )
}

/// Pairs of words. Unit: 64.
#[unsafe(naked)]
#[unsafe(link_section = "prezero_leaf")]
pub(super) unsafe extern "C" fn stp(start: *mut u8, len: usize, _unit: usize) -> Trap {
    naked_asm!(
        "add x1, x1, x0",
        "2:",
        "stp xzr, xzr, [x0]",
        "stp xzr, xzr, [x0, #16]",
        "stp xzr, xzr, [x0, #32]",
        "stp xzr, xzr, [x0, #48]",
        "add x0, x0, #64",
        "cmp x0, x1",
        "b.lo 2b",
        "mov x0, xzr",
        "mov x1, xzr",
        "ret",
    )
}
