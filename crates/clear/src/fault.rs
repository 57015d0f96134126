// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An unwritable page.

use core::fmt;

/// Memory that the kernel refused to let us write, reported instead of killing the process.
///
/// Seen only where a handler for SIGBUS is installed (module `guard`, feature `std`); without one
/// the signal has its usual effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address that the kernel reported. For a hardware error it is exact to the page only, and
    /// 0 where the hardware hides it.
    pub address: usize,
    /// The kind of the fault.
    pub cause: Cause,
}

/// The reasons for an unwritable page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The hardware reported an uncorrectable error in this page (`BUS_MCEERR_AR`, on arm64
    /// also `BUS_OBJERR`). It must not be used again.
    Hardware,
    /// There is no page behind the address: the file is shorter than its mapping, or no huge page
    /// was left for a hole (`BUS_ADRERR`).
    Unbacked,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.cause {
            Cause::Hardware => "the hardware reports an uncorrectable error in this page",
            Cause::Unbacked => {
                "no page is behind this address: file truncated, or no huge page left for a hole"
            }
        };
        write!(f, "cannot write at {:#x}: {why}", self.address)
    }
}

impl core::error::Error for Fault {}
