// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: what there is, what could be better, and growing its pools. Nothing here needs a
//! daemon.
//!
//! - [`Machine`]: what a report must say about the machine it was made on.
//! - [`boot`]: growing the kernel's pool for good.
//! - [`doctor`]: findings about this machine, each with what to change and the command for it.
//! - [`kernel_log`]: what the kernel says while something is done.
//! - [`ways`]: which of the ways to zeroed pages it uses and can have: stock, module, series.

pub(crate) mod boot;
mod describe;
pub(crate) mod doctor;
pub(crate) mod kernel_log;
pub(crate) mod ways;

pub use describe::{Machine, describe};

/// Whether this process has root's rights.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
