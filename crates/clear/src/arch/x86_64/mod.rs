// SPDX-License-Identifier: Apache-2.0 OR MIT
//! x86-64: the one place where a [`Method`] becomes instructions.
//!
//! The store loops are in `leaf`, their faces in `methods`, the searches for a byte that is not
//! zero in `scan`.
//!
//! # Safety
//!
//! Every variant of `Engine` holds a value of a method, which proves that the CPU has its
//! instructions; the raw entry passes its obligations on unchanged.
#![expect(unsafe_code, reason = "passes the raw entry on to the chosen method")]

pub(crate) mod leaf;
mod methods;
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

pub use methods::{Avx2, Avx2Nt, Avx512Nt, Clzero, RepStosb, RepStosq, Sse2Nt};

use super::Store;
use super::portable::Portable;
use crate::scan::{BlockScan, ScanMethod};
use crate::{Fault, Method};

/// A method that this CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Avx512Nt(Avx512Nt),
    Avx2Nt(Avx2Nt),
    Sse2Nt(Sse2Nt),
    Clzero(Clzero),
    RepStosb(RepStosb),
    RepStosq(RepStosq),
    Avx2(Avx2),
    Portable(Portable),
}

impl Engine {
    pub(crate) fn new(method: Method) -> Option<Self> {
        match method {
            Method::Avx512Nt => Avx512Nt::new().map(Self::Avx512Nt),
            Method::Avx2Nt => Avx2Nt::new().map(Self::Avx2Nt),
            Method::Sse2Nt => Sse2Nt::new().map(Self::Sse2Nt),
            Method::Clzero => Clzero::new().map(Self::Clzero),
            Method::RepStosb => RepStosb::new().map(Self::RepStosb),
            Method::RepStosq => RepStosq::new().map(Self::RepStosq),
            Method::Avx2 => Avx2::new().map(Self::Avx2),
            Method::Portable => Portable::new().map(Self::Portable),
            Method::DcZva | Method::Stnp | Method::Stp => None,
        }
    }

    /// The widest non-temporal store.
    pub(crate) fn first() -> Self {
        Method::ALL.into_iter().find_map(Self::new).unwrap_or(Self::Portable(Portable::always()))
    }

    pub(crate) const fn method(self) -> Method {
        match self {
            Self::Avx512Nt(_) => Avx512Nt::METHOD,
            Self::Avx2Nt(_) => Avx2Nt::METHOD,
            Self::Sse2Nt(_) => Sse2Nt::METHOD,
            Self::Clzero(_) => Clzero::METHOD,
            Self::RepStosb(_) => RepStosb::METHOD,
            Self::RepStosq(_) => RepStosq::METHOD,
            Self::Avx2(_) => Avx2::METHOD,
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
            Self::Avx512Nt(method) => unsafe { method.store(start, len) },
            // SAFETY: as above.
            Self::Avx2Nt(method) => unsafe { method.store(start, len) },
            // SAFETY: as above.
            Self::Sse2Nt(method) => unsafe { method.store(start, len) },
            // SAFETY: as above.
            Self::Clzero(method) => unsafe { method.store(start, len) },
            // SAFETY: as above.
            Self::RepStosb(method) => unsafe { method.store(start, len) },
            // SAFETY: as above.
            Self::RepStosq(method) => unsafe { method.store(start, len) },
            // SAFETY: as above.
            Self::Avx2(method) => unsafe { method.store(start, len) },
            // SAFETY: as above.
            Self::Portable(method) => unsafe { method.store(start, len) },
        }
    }
}

/// The scan that `method` names, where this CPU has it.
pub(crate) fn scanner(method: ScanMethod) -> Option<BlockScan> {
    match method {
        ScanMethod::Avx512 => scan::avx512(),
        ScanMethod::Avx2 => scan::avx2(),
        ScanMethod::Sse2 => scan::sse2(),
        ScanMethod::Portable => Some(super::portable::first_nonzero_block),
        ScanMethod::Neon => None,
    }
}

/// `sfence`, so that whoever sees a later store of this thread sees the zeros: non-temporal stores
/// and `clzero` are weakly ordered, even against a release store of this same thread.
#[inline]
pub fn fence() {
    // SAFETY: SSE is part of x86-64.
    unsafe { core::arch::x86_64::_mm_sfence() };
}
