// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes to zero, as fast as this CPU can.
//!
//! The crate clears memory that its caller mapped. It has no mappings, files, huge pages, pools or
//! daemons of its own: an [`Extent`] goes in, a [`Zeroed`] comes out.
//!
//! The walk of one extent:
//!
//! 1. The caller promises exclusive memory: [`Extent::from_raw_parts`].
//! 2. A [`Clearer`] couples a [`Method`] (which instructions) with a [`Chunk`] (how much between
//!    two looks at the caller's wish to stop).
//! 3. [`Clearer::clear`] cuts the extent into chunks and stores zeros.
//! 4. A fence, and then the [`Outcome`]: the claim [`Zeroed`], or how far it got and why it ended.
//!
//! Where to look: the instructions are in [`arch`], one directory and one dispatch file per
//! instruction set.
//!
//! ```
//! use core::ops::ControlFlow;
//! use prezero_clear::{Clearer, Extent, Outcome};
//!
//! let mut bytes = vec![0xa5_u8; 1 << 20];
//! let outcome = Clearer::default().clear(Extent::from(&mut bytes[..]), |_| ControlFlow::Continue(()));
//! let Outcome::Complete(zeroed) = outcome else { panic!("nobody asked to stop") };
//! assert!(zeroed.as_slice().iter().all(|byte| *byte == 0));
//! ```
#![cfg_attr(not(feature = "std"), no_std)]

pub mod arch;
#[cfg(all(feature = "std", target_os = "linux", not(miri)))]
pub mod calibrate;
mod chunk;
mod clearer;
mod extent;
mod fault;
#[cfg(all(
    feature = "std",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri)
))]
pub mod guard;
mod method;
#[cfg(all(feature = "std", target_os = "linux"))]
pub mod parallel;
mod scan;

pub use chunk::{BadChunk, Chunk};
pub use clearer::{Clearer, Outcome, Progress};
pub use extent::{Extent, Zeroed};
pub use fault::{Cause, Fault};
pub use method::{Method, Unavailable, UnknownMethod};
pub use scan::{ScanMethod, Scanner, UnknownScanMethod, first_nonzero, is_zero};
