// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: what there is, what could be better, and growing its pools. Nothing here needs a
//! daemon.
//!
//! - [`Machine`]: what a report must say about the machine it was made on.
//! - [`boot`]: growing the kernel's pool for good.
//! - [`doctor`]: findings about this machine, each with what to change and the command for it.

pub(crate) mod boot;
mod describe;
pub(crate) mod doctor;

pub use describe::{Machine, describe};

use linux::{NodeId, PageBytes};
use units::{Node, PageSize};

/// Whether this process has root's rights.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The same size in the words of `linux`.
fn page_bytes(page: PageSize) -> PageBytes {
    // A `PageSize` is a power of two of at least 4 KiB, and `PageBytes` takes those from 1 KiB.
    PageBytes::new(page.bytes()).unwrap_or_else(PageBytes::base)
}

fn node_id(node: Node) -> NodeId {
    NodeId(node.0)
}
