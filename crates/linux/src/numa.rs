// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NUMA: which nodes have memory, which CPUs are near, where pages come from and where they are.
//!
//! A hugetlbfs file has no memory policy of its own, so `fallocate` places its pages by the policy
//! of the *thread* that calls it: [`bind_thread_to`] before, [`nodes_of`] as the check afterwards
//! (`tests/real/numa.rs`, asked of Linux 6.12 in a virtual machine of two nodes). A kernel without
//! NUMA answers ENOSYS to all of it; there node 0 is the whole machine, and these functions say so
//! instead of failing.

use std::ffi::c_void;

use units::{Node, PageSize};

use crate::cpuset::CpuSet;
use crate::error::{Advise, Errno, Error, ErrorContext, Result};
use crate::files::{self, KeptFile};
use crate::mapping::Mapping;
use crate::raw::{self, Mask};
use crate::roots::Roots;

/// The nodes that have memory, in rising order; node 0 alone on a kernel without NUMA.
pub fn nodes(roots: &Roots) -> Result<Vec<Node>> {
    let path = roots.sys.join("devices/system/node/has_memory");
    match files::read_optional(&path)? {
        Some(text) => {
            let list = text.parse::<CpuSet>();
            let list = list.map_err(|_| Error::malformed(&path, "a list like 0-1", &text))?;
            Ok(list.iter().map(Node).collect())
        }
        None => Ok(vec![Node(0)]),
    }
}

/// The CPUs of `node`, empty for a node of memory only; on a kernel without NUMA all that are
/// online.
pub fn cpus_of(roots: &Roots, node: Node) -> Result<CpuSet> {
    CpuMeter::open(roots, node)?.read()
}

/// The CPUs of a node, by a file that stays open. An open of a file in sysfs waits for a lock that
/// every other open and close there takes.
#[derive(Debug)]
pub struct CpuMeter(KeptFile);

impl CpuMeter {
    /// Opens the file; on a kernel without NUMA that of all CPUs that are online.
    pub fn open(roots: &Roots, node: Node) -> Result<Self> {
        let nodes = roots.sys.join("devices/system/node");
        let path = if node == Node(0) && !nodes.exists() {
            roots.sys.join("devices/system/cpu/online")
        } else {
            nodes.join(format!("node{}/cpulist", node.0))
        };
        KeptFile::open(path).map(Self)
    }

    /// The present text. Other readers never delay it.
    pub fn read(&self) -> Result<CpuSet> {
        let text = self.0.read()?;
        text.parse().map_err(|_| Error::malformed(&self.0.path, "a list like 0-3,8", &text))
    }
}

/// Takes all further memory of the calling *thread* from `node`, or fails: `MPOL_BIND`.
///
/// With no free huge page on that node `fallocate` then gives ENOSPC even if others have some.
///
/// # Errors
/// EINVAL for a node without memory or outside the thread's cpuset.
pub fn bind_thread_to(node: Node) -> Result<()> {
    let bind = raw::set_mempolicy(libc::MPOL_BIND, &Mask::from_bits([node.0]));
    without_numa(bind, node, ())
        .or_call(|| format!("set_mempolicy(MPOL_BIND, {{{}}})", node.0))
        .advise(Errno::INVAL, "the node has no memory, or the cpuset does not allow it")
}

/// Gives the calling thread the default policy back: the node of the CPU it runs on.
pub fn reset_policy() -> Result<()> {
    without_numa(raw::set_mempolicy(libc::MPOL_DEFAULT, &Mask::from_bits([])), Node(0), ())
        .or_call(|| "set_mempolicy(MPOL_DEFAULT)".into())
}

/// The node of every page of a mapping, in the order of the addresses.
///
/// Puts missing pages into the page tables, at about 1 us a page. It would also fill a hole in the
/// file, so call it for files that have all their pages.
///
/// # Errors
/// EFAULT if a hole stays unfilled.
pub fn nodes_of(mapping: &Mapping, page: PageSize) -> Result<Vec<Node>> {
    let step = usize::try_from(page.bytes())
        .map_err(|_| Error::invalid("page size", page, "is larger than the address space"))?;
    let addresses = (0..mapping.len())
        .step_by(step)
        .map(|offset| mapping.as_ptr().wrapping_add(offset).cast_const().cast::<c_void>())
        .collect::<Vec<_>>();
    // One call for all pages that are in the page tables. ENOSYS: a kernel without page migration.
    let found = raw::move_pages_query(&addresses).unwrap_or_else(|_| vec![-1; addresses.len()]);
    addresses
        .iter()
        .zip(found)
        .map(|(&address, node)| match u32::try_from(node) {
            Ok(node) => Ok(Node(node)),
            Err(_) => one_node(address),
        })
        .collect()
}

fn one_node(address: *const c_void) -> Result<Node> {
    without_numa(raw::node_of_address(address), Node(0), 0)
        .and_then(|node| u32::try_from(node).map_err(|_| Errno::FAULT))
        .map(Node)
        .or_call(|| format!("get_mempolicy({address:?}, MPOL_F_NODE|MPOL_F_ADDR)"))
}

/// What asks for node 0 is already true on a kernel without NUMA.
fn without_numa<T>(result: Result<T, Errno>, node: Node, on_node_0: T) -> Result<T, Errno> {
    match result {
        Err(Errno::NOSYS) if node == Node(0) => Ok(on_node_0),
        result => result,
    }
}
