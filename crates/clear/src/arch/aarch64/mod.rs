// SPDX-License-Identifier: Apache-2.0 OR MIT
//! aarch64: the one place where a [`Method`] becomes instructions.
//!
//! The store loops are in `leaf`, the search for a nonzero byte in `scan`, the list of both in
//! `arch::table`.
//!
//! # Safety
//!
//! Every variant of `Engine` holds a value of a method, which proves that the CPU has its
//! instructions; the raw entry passes its obligations on unchanged.
#![expect(unsafe_code, reason = "calls the store loops on memory that the caller vouches for")]

pub(crate) mod leaf;
mod scan;

use core::arch::asm;

use super::StoreZeros;
use super::engine::{engine, scanner};
use super::leaf::{LINE_BYTES, units};
use super::portable::{Portable, first_nonzero_block};
use super::table::{methods, scans};
use crate::scan::{BlockScan, ScanMethod};
use crate::{Fault, Method};

macro_rules! methods_of_aarch64 {
    (x86_64 { $($others:tt)* } aarch64 { $($rows:tt)* }) => { engine! { $($rows)* } };
}
methods!(methods_of_aarch64);

macro_rules! scans_of_aarch64 {
    (x86_64 { $($others:tt)* } aarch64 { $($rows:tt)* }) => { scanner! { $($rows)* } };
}
scans!(scans_of_aarch64);

/// The block that `dc zva` zeroes, where the CPU allows the instruction.
fn zva_bytes() -> Option<usize> {
    let id: u64;
    // SAFETY: reads a register that every exception level may read, and only that.
    unsafe {
        asm!("mrs {id}, dczid_el0", id = out(reg) id, options(nomem, nostack, preserves_flags, pure))
    };
    // Bit 4 forbids the instruction; bits 3:0 are the logarithm of the block's size in words of 4
    // bytes.
    (id & 0x10 == 0).then_some(4 << (id & 0xf))
}

/// `dmb ishst`: stores of this thread, `stnp` and `dc zva` among them, before later stores: a
/// thread that sees a later one sees the zeros.
#[inline]
pub fn fence() {
    // SAFETY: a barrier; it touches no register and no memory.
    unsafe { asm!("dmb ishst", options(nostack, preserves_flags)) };
}
