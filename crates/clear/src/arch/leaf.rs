// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all store loops have in common: the section they live in, and how they report a page that can't be written.
//!
//! The loops are naked leaf functions: they touch no stack and no register that a callee must keep, and they all lie in
//! the section [`SECTION`](self) of the executable. So *at any instruction of any of them* returning to the caller is
//! legal, and a handler of SIGBUS can end one by putting the address of the failed store and the signal's code into the
//! two result registers and going on at the section's own `ret` instruction. No jump buffer, no unwinding and no state
//! per thread: the interrupted program counter says all. The handler is in module `guard`.

use crate::{Cause, Fault};

/// What a store loop returns, in two registers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trap {
    /// Address of the store that failed; 0: none did.
    pub(crate) address: usize,
    /// `si_code` of the signal; meaningless without an address.
    pub(crate) code: usize,
}

/// `BUS_MCEERR_AR` of `asm-generic/siginfo.h`: the error was met by this very access.
const BUS_MCEERR_AR: usize = 4;

impl Trap {
    /// The loop's result as the raw entry gives it.
    #[inline]
    pub(crate) const fn into_result(self) -> Result<(), Fault> {
        if self.address == 0 {
            return Ok(());
        }
        let cause = if self.code == BUS_MCEERR_AR { Cause::Hardware } else { Cause::Unbacked };
        Err(Fault { address: self.address, cause })
    }
}
