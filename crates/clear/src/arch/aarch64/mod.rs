// SPDX-License-Identifier: Apache-2.0 OR MIT
//! aarch64: the one place where a [`Method`] becomes instructions.
//!
//! The store loops are in `leaf`, their faces in `methods`, the search for a byte that is not zero
//! in `scan`.
//!
//! # Safety
//!
//! Every variant of `Engine` holds a value of a method, which proves that the CPU has its
//! instructions; the raw entry passes its obligations on unchanged.
#![expect(unsafe_code, reason = "passes the raw entry on to the chosen method")]

pub(crate) mod leaf;
mod methods;
mod scan;

pub use methods::{DcZva, Stnp, Stp};

use super::Store;
use super::portable::Portable;
use crate::scan::{BlockScan, ScanMethod};
use crate::{Fault, Method};

/// A method that this CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    DcZva(DcZva),
    Stnp(Stnp),
    Stp(Stp),
    Portable(Portable),
}

impl Engine {
    pub(crate) fn new(method: Method) -> Option<Self> {
        match method {
            Method::DcZva => DcZva::new().map(Self::DcZva),
            Method::Stnp => Stnp::new().map(Self::Stnp),
            Method::Stp => Stp::new().map(Self::Stp),
            Method::Portable => Portable::new().map(Self::Portable),
            Method::Avx512Nt
            | Method::Avx2Nt
            | Method::Sse2Nt
            | Method::Clzero
            | Method::RepStosb
            | Method::RepStosq
            | Method::Avx2 => None,
        }
    }

    /// `dc zva` where it is allowed.
    pub(crate) fn first() -> Self {
        Method::ALL.into_iter().find_map(Self::new).unwrap_or(Self::Portable(Portable::always()))
    }

    pub(crate) const fn method(self) -> Method {
        match self {
            Self::DcZva(_) => DcZva::METHOD,
            Self::Stnp(_) => Stnp::METHOD,
            Self::Stp(_) => Stp::METHOD,
            Self::Portable(_) => Portable::METHOD,
        }
    }

    /// # Safety
    ///
    /// As for [`Store::store`].
    #[inline]
    pub(crate) unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
        match self {
            // SAFETY: the caller keeps the obligations of the raw entry, which are the same; so for
            // each arm.
            Self::DcZva(method) => unsafe { method.store(start, len) },
            // SAFETY: as above.
            Self::Stnp(method) => unsafe { method.store(start, len) },
            // SAFETY: as above.
            Self::Stp(method) => unsafe { method.store(start, len) },
            // SAFETY: as above.
            Self::Portable(method) => unsafe { method.store(start, len) },
        }
    }
}

/// The scan that `method` names, where this CPU has it.
pub(crate) fn scanner(method: ScanMethod) -> Option<BlockScan> {
    match method {
        ScanMethod::Neon => scan::neon(),
        ScanMethod::Portable => Some(super::portable::first_nonzero_block),
        ScanMethod::Avx512 | ScanMethod::Avx2 | ScanMethod::Sse2 => None,
    }
}

/// `dmb ishst`: stores of this thread, `stnp` and `dc zva` among them, before later stores, so that
/// whoever sees one of these sees the zeros.
#[inline]
pub fn fence() {
    // SAFETY: a barrier; it touches no register and no memory.
    unsafe { core::arch::asm!("dmb ishst", options(nostack, preserves_flags)) };
}
