// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all store loops have in common: the section they live in, and how they report a page that
//! cannot be written.
//!
//! The loops are naked leaf functions: they touch no stack and no register that a callee must keep,
//! and they all lie in the section `prezero_leaf` of the executable. So *at any instruction of any
//! of them* returning to the caller is legal, and a handler of SIGBUS can end one by putting the
//! address of the failed store and the signal's code into the two result registers and going on at
//! the section's own `ret`, the function `landing`. No jump buffer, no unwinding and no state per
//! thread: the interrupted program counter says all. The handler is in module `guard`.

use crate::{Cause, Fault};

/// What a store loop returns, in two registers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trap {
    /// Address of the store that failed. Some hardware cannot tell it; then 0.
    pub(crate) address: usize,
    /// `si_code` of the signal; 0: none came.
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
