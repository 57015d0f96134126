// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all store loops have in common: the section they live in, and how they report an unwritable
//! page.
//!
//! The loops are naked leaf functions in the section `prezero_leaf` of the executable. They leave
//! the stack and the registers that a callee must keep alone. So *at any instruction of any of
//! them* returning to the caller is legal. A handler of SIGBUS ends one: it puts the address of the
//! failed store and the signal's code into the two result registers and goes on at the section's
//! own `ret`, the function `landing`. The interrupted program counter says all: there is no jump
//! buffer, unwinding or state per thread. The handler is in module `guard`.
//!
//! # Safety
//!
//! [`units`] gives a loop whole aligned units only.

#![expect(unsafe_code, reason = "calls the store loops on memory that the caller vouches for")]

#[cfg(target_arch = "aarch64")]
use super::aarch64::leaf::bytes as ends;
#[cfg(target_arch = "x86_64")]
use super::x86_64::leaf::rep_stosb as ends;
use crate::{Cause, Fault};

/// The cache line of every x86-64 CPU, the unit of `clzero`, and that of the loops over pairs on
/// aarch64.
pub(crate) const LINE_BYTES: usize = 64;

/// A store loop: start, length, unit.
#[cfg(target_arch = "aarch64")]
pub(crate) type Loop = unsafe extern "C" fn(*mut u8, usize, usize) -> Trap;
/// A store loop: start, length, unit.
#[cfg(target_arch = "x86_64")]
pub(crate) type Loop = unsafe extern "sysv64" fn(*mut u8, usize, usize) -> Trap;

/// Clears the unaligned head and tail byte by byte, and the whole units between them with `body`.
///
/// Always inlined, so that `unit` is a constant.
///
/// # Safety
///
/// As for [`StoreZeros::store`](super::StoreZeros::store); and the CPU can execute `body`, which
/// clears any positive multiple of `unit` bytes at a multiple of `unit`, a power of two.
#[inline(always)]
pub(crate) unsafe fn units(
    start: *mut u8,
    len: usize,
    unit: usize,
    body: Loop,
) -> Result<(), Fault> {
    let head = start.align_offset(unit).min(len);
    let middle = (len - head) / unit * unit;
    let tail = len - head - middle;
    if head > 0 {
        // SAFETY: the first `head` of the caller's `len` bytes.
        unsafe { ends(start, head, 1) }.into_result()?;
    }
    if middle > 0 {
        // SAFETY: `head` is at most `len`: inside the caller's bytes.
        let aligned = unsafe { start.add(head) };
        // SAFETY: `head + middle` is at most `len`; address and length are multiples of `unit`;
        // the caller has the instruction.
        unsafe { body(aligned, middle, unit) }.into_result()?;
    }
    if tail > 0 {
        // SAFETY: `head + middle` is at most `len`: inside the caller's bytes.
        let rest = unsafe { start.add(head + middle) };
        // SAFETY: the last `tail` of the caller's `len` bytes.
        unsafe { ends(rest, tail, 1) }.into_result()?;
    }
    Ok(())
}

/// What a store loop returns, in two registers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trap {
    /// Address of the store that failed. 0 where the hardware hides it.
    pub(crate) address: usize,
    /// `si_code` of the signal; 0 without one.
    pub(crate) code: usize,
}

impl Trap {
    /// `BUS_ADRERR` of `asm-generic/siginfo.h`: no page behind the address.
    pub(crate) const UNBACKED: usize = 2;
    /// `BUS_OBJERR`: how arm64 reports an external abort that it met at once.
    #[cfg(feature = "std")]
    pub(crate) const ABORT: usize = 3;
    /// `BUS_MCEERR_AR`: a memory error that this very access met.
    #[cfg(feature = "std")]
    pub(crate) const MEMORY_ERROR: usize = 4;

    /// The loop's result as the raw entry gives it.
    #[inline]
    pub(crate) const fn into_result(self) -> Result<(), Fault> {
        let cause = match self.code {
            0 => return Ok(()),
            Self::UNBACKED => Cause::Unbacked,
            _ => Cause::Hardware,
        };
        Err(Fault { address: self.address, cause })
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_signal_become_causes() {
        let fault = |code| Trap { address: 0x1000, code }.into_result();
        assert_eq!(fault(0), Ok(()));
        assert_eq!(fault(Trap::UNBACKED), Err(Fault { address: 0x1000, cause: Cause::Unbacked }));
        for code in [Trap::ABORT, Trap::MEMORY_ERROR] {
            assert_eq!(fault(code), Err(Fault { address: 0x1000, cause: Cause::Hardware }));
        }
    }
}
