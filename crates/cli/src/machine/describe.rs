// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine in the words that every report of a measurement opens with.

use linux::{Result, Roots, cpu, hugetlb, meminfo, numa};
use serde::Serialize;
use worker::context;

/// What a report must say about the machine it was made on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The CPU's vendor.
    pub vendor: String,
    /// The CPU's model.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Whether this is a virtual machine, according to the CPU.
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
