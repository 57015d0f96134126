// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine in the words that every report of a measurement opens with.

use std::time::Duration;

use linux::{Result, Roots, cpu, hugetlb, meminfo, numa, process};
use serde::Serialize;
use units::{Bytes, Node, PageSize};

use super::{context, node_id, page_size};

/// What a report must say about the machine it was made on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The CPU's vendor.
    pub vendor: String,
    /// The CPU's model.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Whether this is a virtual machine, as far as the CPU says so.
    pub is_virtual: bool,
    /// The kernel's release.
    pub kernel: String,
    /// The frequency governor of CPU 0; most virtual machines have none.
    pub governor: Option<String>,
    /// All memory.
    pub total_bytes: u64,
    /// Memory that could be had without swapping.
    pub available_bytes: u64,
    /// The hugetlb page sizes, in bytes.
    pub page_bytes: Vec<u64>,
    /// Nodes with memory.
    pub nodes: Vec<u32>,
}

/// Looks at the machine.
///
/// # Errors
/// [`linux::Error`] where `/proc` or `/sys` are not as the kernel documents them.
pub fn describe(roots: &Roots) -> Result<Machine> {
    let cpu = cpu::describe(roots)?;
    let memory = meminfo::memory(roots)?;
    Ok(Machine {
        vendor: cpu.vendor,
        cpu: cpu.model,
        cpus: context::allowed_cpus(),
        is_virtual: cpu.is_virtual,
        kernel: cpu.kernel_release,
        governor: cpu.governor,
        total_bytes: memory.total_bytes,
        available_bytes: memory.available_bytes,
        page_bytes: hugetlb::page_sizes(roots)?.iter().map(|page| page.bytes()).collect(),
        nodes: numa::nodes(roots)?.iter().map(|node| node.0).collect(),
    })
}

/// The huge page sizes of this kernel, smallest first.
///
/// # Errors
/// As [`describe`].
pub fn huge_page_sizes(roots: &Roots) -> Result<Vec<PageSize>> {
    Ok(hugetlb::page_sizes(roots)?.into_iter().filter_map(page_size).collect())
}

/// Memory that could be had without swapping.
///
/// # Errors
/// As [`describe`].
pub fn available(roots: &Roots) -> Result<Bytes> {
    Ok(Bytes(meminfo::memory(roots)?.available_bytes))
}

/// The node with the most free memory: where to reserve pages.
///
/// # Errors
/// As [`describe`].
pub fn roomiest_node(roots: &Roots) -> Result<Node> {
    let base = linux::PageBytes::base();
    let blocks = meminfo::free_blocks(roots)?;
    let roomiest = blocks.iter().max_by_key(|node| node.free_bytes(base));
    Ok(Node(roomiest.map_or(0, |blocks| blocks.node.0)))
}

/// Pages of the kernel's pool on `node` that nobody has; promised ones count as free.
///
/// # Errors
/// [`linux::Error::is_not_found`] where there is no such page size or node.
pub fn free_pages(roots: &Roots, page: PageSize, node: Node) -> Result<u64> {
    let counters = hugetlb::counters(roots, super::page_bytes(page), Some(node_id(node)))?;
    Ok(counters.free)
}

/// Runnable and waiting tasks, averaged over the last minute: `/proc/loadavg`.
///
/// # Errors
/// [`linux::Error`] if the file can't be read or is not one.
pub fn load_average(roots: &Roots) -> Result<f64> {
    let path = roots.proc.join("loadavg");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| super::reserve::call_failed(format!("read({path:?})"), &error, None))?;
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| linux::Error::Malformed {
        path: path.into(),
        expected: "a load average",
        found: text.as_str().into(),
    })
}

/// CPU time that everybody but this process and its children has used since the machine started,
/// a virtual machine's host included: between two looks, what others did meanwhile. `None` where
/// the kernel does not say.
#[must_use]
pub fn cpu_time_of_others(roots: &Roots) -> Option<Duration> {
    // This order: what is used between the two is nobody else's.
    let all = process::machine_cpu_time(roots)?;
    Some(all.saturating_sub(process::cpu_time_with_children(roots)?))
}

/// Whether this process has root's rights.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Gathers free memory into larger pieces: see [`linux::hugetlb::make_room`].
///
/// # Errors
/// Those of writing to `/proc/sys/vm`.
pub fn make_room(roots: &Roots) -> linux::Result<()> {
    linux::hugetlb::make_room(roots)
}
