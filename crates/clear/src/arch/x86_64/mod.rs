// SPDX-License-Identifier: Apache-2.0 OR MIT
//! x86-64: the one place where a [`Method`] becomes instructions.
//!
//! The store loops are in `leaf`, the searches for a nonzero byte in `scan`, the list of both in
//! `arch::table`.
//!
//! # Safety
//!
//! Every variant of `Engine` holds a value of a method, which proves that the CPU has its
//! instructions; the raw entry passes its obligations on unchanged.
#![expect(unsafe_code, reason = "calls the store loops on memory that the caller vouches for")]

pub(crate) mod leaf;
mod scan;

/// Whether the CPU has a feature and the system enabled it: a constant where the target promises
/// it, else detected, else false.
macro_rules! detected {
    ($feature:tt) => {{
        #[cfg(feature = "std")]
        let detected = std::is_x86_feature_detected!($feature);
        #[cfg(not(feature = "std"))]
        let detected = cfg!(target_feature = $feature);
        detected
    }};
}
use detected;

use super::StoreZeros;
use super::engine::{engine, scanner};
use super::leaf::{LINE_BYTES, units};
use super::portable::{Portable, first_nonzero_block};
use super::table::{methods, scans};
use crate::scan::{BlockScan, ScanMethod};
use crate::{Fault, Method};

macro_rules! methods_of_x86_64 {
    (x86_64 { $($rows:tt)* } aarch64 { $($others:tt)* }) => { engine! { $($rows)* } };
}
methods!(methods_of_x86_64);

macro_rules! scans_of_x86_64 {
    (x86_64 { $($rows:tt)* } aarch64 { $($others:tt)* }) => { scanner! { $($rows)* } };
}
scans!(scans_of_x86_64);

/// CPUID 8000_0008:EBX bit 0, which has a name in neither the language nor its library.
#[allow(unused_unsafe, reason = "CPUID became a safe call after the oldest supported compiler")]
fn has_clzero() -> bool {
    use core::arch::x86_64::__cpuid;
    const EXTENDED: u32 = 0x8000_0000;
    const SIZES: u32 = EXTENDED + 8;
    // SAFETY: CPUID is part of x86-64.
    let highest = unsafe { __cpuid(EXTENDED) }.eax;
    // SAFETY: as above, and the leaf exists.
    highest >= SIZES && unsafe { __cpuid(SIZES) }.ebx & 1 != 0
}

/// `sfence`, so that a thread that sees a later store of this one sees the zeros. Non-temporal
/// stores and `clzero` are weakly ordered, even against a release store of the same thread.
#[inline]
pub fn fence() {
    // SAFETY: SSE is part of x86-64.
    unsafe { core::arch::x86_64::_mm_sfence() };
}
