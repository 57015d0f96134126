// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a measurement asks of the machine, in the words of `units`: free memory, and the work of
//! others.

use std::time::Duration;

use linux::{Errno, Error, Result, Roots, hugetlb, meminfo, process};
use units::{Bytes, Node, PageSize, Pages};

/// The huge page sizes of this kernel, smallest first.
///
/// # Errors
/// [`linux::Error`] where `/proc` or `/sys` are not as the kernel documents them.
pub(crate) fn huge_page_sizes(roots: &Roots) -> Result<Vec<PageSize>> {
    hugetlb::page_sizes(roots)
}

/// Memory that could be had without swapping.
///
/// # Errors
/// [`linux::Error`] where `/proc` or `/sys` are not as the kernel documents them.
pub(crate) fn available(roots: &Roots) -> Result<Bytes> {
    Ok(Bytes(meminfo::memory(roots)?.available_bytes))
}

/// The node with the most free memory: where to reserve pages.
///
/// # Errors
/// [`linux::Error`] where `/proc` or `/sys` are not as the kernel documents them.
pub(crate) fn roomiest_node(roots: &Roots) -> Result<Node> {
    let base = meminfo::base_page();
    let blocks = meminfo::free_blocks(roots)?;
    let roomiest = blocks.iter().max_by_key(|node| node.free_bytes(base));
    Ok(roomiest.map_or(Node(0), |blocks| blocks.node))
}

/// Pages of the kernel's pool on `node` that are free and promised to no process.
///
/// Promised pages are counted for the whole machine only; on one node they may all lie here.
///
/// # Errors
/// [`linux::Error::is_not_found`] where there is no such page size or node.
pub(crate) fn free_pages(roots: &Roots, page: PageSize, node: Node) -> Result<Pages> {
    let promised = hugetlb::counters(roots, page, None)?.reserved.unwrap_or(0);
    let free = hugetlb::counters(roots, page, Some(node))?.free;
    Ok(Pages(free.saturating_sub(promised)))
}

/// Runnable and waiting tasks, averaged over the last minute: `/proc/loadavg`.
///
/// # Errors
/// [`linux::Error`] if the file cannot be read or is not one.
pub(crate) fn load_average(roots: &Roots) -> Result<f64> {
    let path = roots.proc.join("loadavg");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| call_failed(format!("read({path:?})"), &error, None))?;
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| linux::Error::Malformed {
        path: path.into(),
        expected: "a load average",
        found: text.as_str().into(),
    })
}

/// CPU time of all processes but this one and its children since the machine started, a virtual
/// machine's host included. The difference of two looks is the work of others. `None` where the
/// kernel does not say.
#[must_use]
pub(crate) fn cpu_time_of_others(roots: &Roots) -> Option<Duration> {
    // This order: CPU time between the two looks counts as this process's.
    let all = process::machine_cpu_time(roots)?;
    Some(all.saturating_sub(process::cpu_time_with_children(roots)?))
}

/// An error of the system, in the form of `linux`'s own.
pub(crate) fn call_failed(
    call: String,
    error: &std::io::Error,
    advice: Option<&'static str>,
) -> Error {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    Error::Call { call: call.into(), errno, advice }
}
