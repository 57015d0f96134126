// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The instructions, one directory per instruction set.
//!
//! `table` lists every method and every scan, one row each. Each method is a type that implements
//! [`StoreZeros`]: `is_available`, `new`, and a raw entry. Holding a value proves that the CPU can
//! execute it. `engine` makes the types and the dispatch of one instruction set from its rows: the
//! dispatch maps a [`Method`] to a value, and a [`ScanMethod`](crate::ScanMethod) to a function.
//! Miri cannot execute assembly: there only the portable method exists.
//!
//! # Safety
//!
//! Declares the raw entry and its obligations.
#![expect(unsafe_code, reason = "declares the raw entry")]

use crate::{Fault, Method};

mod engine;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
pub(crate) mod leaf;
pub mod portable;
pub(crate) mod table;

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub mod aarch64;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub mod x86_64;

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub use aarch64::fence;
#[cfg(all(target_arch = "aarch64", not(miri)))]
pub(crate) use aarch64::{Engine, scanner};
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
pub use portable::fence;
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
pub(crate) use portable::{Engine, scanner};
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub use x86_64::fence;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use x86_64::{Engine, scanner};

/// The face of every method.
pub trait StoreZeros: Copy + Sized {
    /// The method's name.
    const METHOD: Method;

    /// A value, where this CPU can execute the method. Constant for the life of the process.
    fn new() -> Option<Self>;

    /// Whether [`StoreZeros::new`] gives a value.
    #[must_use]
    fn is_available() -> bool {
        Self::new().is_some()
    }

    /// Writes `len` zero bytes at `start`, any alignment, any length. Does not fence.
    ///
    /// # Errors
    ///
    /// A page that cannot be written, where the guard is installed; bytes before and after it may
    /// have been written.
    ///
    /// # Safety
    ///
    /// - `start` is valid for writes of `len` bytes, within one allocation or mapping;
    /// - no other code reads or writes these bytes during the call;
    /// - `start + len` does not wrap and `len` is at most `isize::MAX`;
    /// - before another thread, process or device is told of the zeros, the caller calls [`fence`].
    unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault>;
}
