// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine around the daemon: what there is, what could be better, and changing it for a while.
//!
//! For programs that may not ask the kernel themselves (the `prezero` command): everything here is
//! asked of `linux` and told in the words of `units`. Nothing here needs a running daemon.
//!
//! - [`boot`]: growing the kernel's pool for good.
//! - [`doctor`]: findings about this machine, each with what to change and the command for it.
//! - [`context`]: the CPUs, nice value, policy and cgroup that a worker puts itself into.
//! - [`leftover`]: the mounts of an embedded daemon that was killed.
//! - [`reserve`]: huge pages taken out of free memory, and put back whatever happens.
//! - [`prefault`]: touching memory as programs without prezero do, to compare and to warm up.
//! - [`throttle`]: a CPU quota for single threads.
//! - [`machine`]: what a report must say about the machine it was made on.

pub mod boot;
pub mod context;
pub mod doctor;
pub mod leftover;
pub mod machine;
pub mod prefault;
pub mod reserve;
pub mod throttle;

pub use linux::{Error, Result, Roots};

use linux::{NodeId, PageBytes};
use units::{Node, PageSize};

/// The same size in the words of `linux`.
fn page_bytes(page: PageSize) -> PageBytes {
    // A `PageSize` is a power of two of at least 4 KiB, and `PageBytes` takes those from 1 KiB.
    PageBytes::new(page.bytes()).unwrap_or_else(PageBytes::base)
}

/// The same size in the words of `units`; `None` below 4 KiB, which no huge page is.
fn page_size(page: PageBytes) -> Option<PageSize> {
    PageSize::new(page.bytes())
}

fn node_id(node: Node) -> NodeId {
    NodeId(node.0)
}
