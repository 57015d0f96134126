// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The methods of x86-64: which CPU bit each relies on, and how an odd address reaches its loop.
//!
//! # Safety
//!
//! A value exists only where its CPU feature was detected. [`lines`] gives a loop whole aligned
//! lines only.
#![expect(unsafe_code, reason = "calls the store loops on memory that the caller vouches for")]

use super::{detected, leaf};
use crate::arch::Store;
use crate::arch::leaf::Trap;
use crate::{Fault, Method};

/// The cache line of every x86-64 CPU, and the unit of `clzero`.
const LINE_BYTES: usize = 64;

/// A store loop.
type Leaf = unsafe extern "sysv64" fn(*mut u8, usize) -> Trap;

/// Clears the unaligned head and tail with the string instruction and the whole units between them
/// with `leaf`.
///
/// # Safety
///
/// As for [`Store::store`]; and the CPU can execute `leaf`, which clears any positive multiple of
/// `UNIT` bytes at a multiple of `UNIT`.
#[inline]
unsafe fn units<const UNIT: usize>(start: *mut u8, len: usize, leaf: Leaf) -> Result<(), Fault> {
    let head = start.align_offset(UNIT).min(len);
    let body = (len - head) / UNIT * UNIT;
    let tail = len - head - body;
    if head > 0 {
        // SAFETY: the first `head` of the caller's `len` bytes.
        unsafe { leaf::rep_stosb(start, head) }.into_result()?;
    }
    if body > 0 {
        // SAFETY: `head` is at most `len`: inside the caller's bytes.
        let aligned = unsafe { start.add(head) };
        // SAFETY: `head + body` is at most `len`; both address and length are multiples of `UNIT`;
        // the caller has the feature.
        unsafe { leaf(aligned, body) }.into_result()?;
    }
    if tail > 0 {
        // SAFETY: `head + body` is at most `len`: inside the caller's bytes.
        let rest = unsafe { start.add(head + body) };
        // SAFETY: the last `tail` of the caller's `len` bytes.
        unsafe { leaf::rep_stosb(rest, tail) }.into_result()?;
    }
    Ok(())
}

/// AVX-512F non-temporal stores, one line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Nt(());

impl Store for Avx512Nt {
    const METHOD: Method = Method::Avx512Nt;

    fn new() -> Option<Self> {
        detected!("avx512f").then_some(Self(()))
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's obligations; `self` proves AVX-512F.
        unsafe { units::<LINE_BYTES>(start, len, leaf::avx512_nt) }
    }
}

/// AVX non-temporal stores, half a line each. Named after AVX2, the level at which CPUs are usually
/// bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2Nt(());

impl Store for Avx2Nt {
    const METHOD: Method = Method::Avx2Nt;

    fn new() -> Option<Self> {
        detected!("avx2").then_some(Self(()))
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's obligations; `self` proves AVX2, which includes AVX.
        unsafe { units::<LINE_BYTES>(start, len, leaf::avx_nt) }
    }
}

/// SSE2 non-temporal stores, a quarter of a line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sse2Nt(());

impl Store for Sse2Nt {
    const METHOD: Method = Method::Sse2Nt;

    fn new() -> Option<Self> {
        Some(Self(()))
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's obligations; SSE2 is part of x86-64.
        unsafe { units::<LINE_BYTES>(start, len, leaf::sse2_nt) }
    }
}

/// AMD's instruction that zeroes a line without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clzero(());

impl Store for Clzero {
    const METHOD: Method = Method::Clzero;

    fn new() -> Option<Self> {
        has_clzero().then_some(Self(()))
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's obligations; `self` proves CLZERO.
        unsafe { units::<LINE_BYTES>(start, len, leaf::clzero) }
    }
}

/// CPUID 8000_0008:EBX bit 0, which neither the language nor its library knows by name.
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

/// The string instruction on bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepStosb(());

impl Store for RepStosb {
    const METHOD: Method = Method::RepStosb;

    fn new() -> Option<Self> {
        Some(Self(()))
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's obligations; `rep stosb` takes any address and length.
        unsafe { leaf::rep_stosb(start, len) }.into_result()
    }
}

/// The string instruction on words of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepStosq(());

impl Store for RepStosq {
    const METHOD: Method = Method::RepStosq;

    fn new() -> Option<Self> {
        Some(Self(()))
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's obligations.
        unsafe { units::<8>(start, len, leaf::rep_stosq) }
    }
}

/// AVX stores through the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Store for Avx2 {
    const METHOD: Method = Method::Avx2;

    fn new() -> Option<Self> {
        detected!("avx2").then_some(Self(()))
    }

    #[inline]
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's obligations; `self` proves AVX2, which includes AVX.
        unsafe { units::<LINE_BYTES>(start, len, leaf::avx_cached) }
    }
}
