// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory there is, and how much of it could still become huge pages.

use std::path::Path;

use units::{Bytes, Node, PageSize};

use crate::error::{Error, Result};
use crate::files::{self, KeptFile};
use crate::roots::Roots;

/// The fields of `/proc/meminfo` that prezero reports or decides by, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of the kernel's memory.
    pub total_bytes: u64,
    /// Entirely unused.
    pub free_bytes: u64,
    /// Available by dropping caches; huge pages of the pool are excluded.
    pub available_bytes: u64,
    /// All hugetlb pages of all sizes, used and unused; `None` if hugetlb is missing.
    pub hugetlb_bytes: Option<u64>,
    /// The size that a hugetlb mapping gets when it names none; `None` without hugetlb.
    pub default_huge_page: Option<PageSize>,
    /// Out of use for memory errors (`HardwareCorrupted`): grows with each error that the kernel
    /// handles. `None` without `CONFIG_MEMORY_FAILURE`.
    pub broken_bytes: Option<u64>,
}

/// The page size of plain memory on this machine, 4 KiB on x86-64.
///
/// # Panics
/// On a kernel with pages smaller than 4 KiB, which Linux lacks.
pub fn base_page() -> PageSize {
    PageSize::new(rustix::param::page_size() as u64).expect("a power of two of at least 4 KiB")
}

/// Reads `/proc/meminfo`.
pub fn memory(roots: &Roots) -> Result<Memory> {
    MemoryMeter::open(roots)?.read()
}

/// `/proc/meminfo` by a file that stays open.
#[derive(Debug)]
pub struct MemoryMeter(KeptFile);

impl MemoryMeter {
    /// Opens the file.
    pub fn open(roots: &Roots) -> Result<Self> {
        KeptFile::open(roots.proc.join("meminfo")).map(Self)
    }

    /// What it says now.
    pub fn read(&self) -> Result<Memory> {
        memory_of(&self.0.path, &self.0.read()?)
    }
}

fn memory_of(path: &Path, text: &str) -> Result<Memory> {
    let optional = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| {
            let kib: u64 = files::parse(path, "N kB", value.trim().trim_end_matches(" kB"))?;
            kib.checked_mul(1024).ok_or_else(|| Error::malformed(path, "N kB", value))
        })
        .transpose()
    };
    let required = |name| {
        optional(name)?.ok_or_else(|| Error::malformed(path, "MemTotal, MemFree, MemAvailable", ""))
    };
    Ok(Memory {
        total_bytes: required("MemTotal")?,
        free_bytes: required("MemFree")?,
        available_bytes: required("MemAvailable")?,
        hugetlb_bytes: optional("Hugetlb")?,
        default_huge_page: optional("Hugepagesize")?.and_then(PageSize::new),
        broken_bytes: optional("HardwareCorrupted")?,
    })
}

/// The memory of one node, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// All of it, huge pages included.
    pub total_bytes: u64,
    /// Entirely unused, outside the pools of huge pages.
    pub free_bytes: u64,
}

/// Reads `meminfo` of the node's directory; of a kernel without NUMA, `/proc/meminfo`.
pub fn node_memory(roots: &Roots, node: Node) -> Result<NodeMemory> {
    NodeMeter::open(roots, node)?.read()
}

/// The memory of one node, by a file that stays open. An open of a file in sysfs waits for a lock
/// that every other open and close there takes.
#[derive(Debug)]
pub struct NodeMeter(Source);

#[derive(Debug)]
enum Source {
    Node(KeptFile),
    /// Of a kernel without NUMA.
    Machine(MemoryMeter),
}

impl NodeMeter {
    /// Opens the node's file; on a kernel without NUMA, `/proc/meminfo`.
    pub fn open(roots: &Roots, node: Node) -> Result<Self> {
        let path = roots.sys.join(format!("devices/system/node/node{node}/meminfo"));
        Ok(Self(match KeptFile::open(path) {
            Ok(file) => Source::Node(file),
            Err(error) if error.is_not_found() => Source::Machine(MemoryMeter::open(roots)?),
            Err(error) => return Err(error),
        }))
    }

    /// The present text. Other readers never delay it.
    ///
    /// # Errors
    /// Those of `pread`: ENODEV once the node is gone.
    pub fn read(&self) -> Result<NodeMemory> {
        match &self.0 {
            Source::Node(file) => {
                let text = file.read()?;
                let bytes = |name| node_field(&file.path, &text, name);
                Ok(NodeMemory { total_bytes: bytes(" MemTotal")?, free_bytes: bytes(" MemFree")? })
            }
            Source::Machine(meter) => {
                let Memory { total_bytes, free_bytes, .. } = meter.read()?;
                Ok(NodeMemory { total_bytes, free_bytes })
            }
        }
    }
}

/// The memory of a node that programs could still have without swapping. It is at most the
/// machine's `MemAvailable`, and at most the node's free memory, page cache and reclaimable slabs.
pub fn available_on(roots: &Roots, node: Node) -> Result<Bytes> {
    let available = memory(roots)?.available_bytes;
    let path = roots.sys.join(format!("devices/system/node/node{node}/meminfo"));
    let Some(text) = files::read_optional(&path)? else { return Ok(Bytes(available)) };
    let bytes = |name| node_field(&path, &text, name);
    // Shared memory is in the cache and must stay there.
    let cache = bytes(" FilePages")?.saturating_sub(bytes(" Shmem")?);
    let here = bytes(" MemFree")?.saturating_add(cache).saturating_add(bytes(" SReclaimable")?);
    Ok(Bytes(available.min(here)))
}

/// A line as in `Node 0 MemTotal:       24684084 kB`, in bytes.
fn node_field(path: &Path, text: &str, name: &str) -> Result<u64> {
    let value = text.lines().find_map(|line| line.split_once(name)?.1.strip_prefix(':'));
    let value = value.ok_or_else(|| Error::malformed(path, "MemTotal, MemFree", ""))?;
    let kib: u64 = files::parse(path, "N kB", value.trim().trim_end_matches(" kB"))?;
    kib.checked_mul(1024).ok_or_else(|| Error::malformed(path, "N kB", value))
}

/// The buddy allocator's free blocks on one node, all zones together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeBlocks {
    /// Where.
    pub node: Node,
    /// How many free blocks of each order: `[k]` counts runs of `2^k` base pages.
    pub by_order: Vec<u64>,
}

impl FreeBlocks {
    /// Bytes in all free blocks.
    pub fn free_bytes(&self, base: PageSize) -> u64 {
        self.sum(base, 0)
    }

    /// How many pages of size `page` lie ready-made in free blocks, without compaction.
    ///
    /// For sizes above the largest block that the allocator keeps (4 MiB on x86-64, so for 1 GiB
    /// pages) this is an upper bound: the kernel hides which of the largest blocks are neighbours.
    pub fn obtainable(&self, page: PageSize, base: PageSize) -> u64 {
        let order = (page.bytes() / base.bytes()).max(1).trailing_zeros() as usize;
        let top = self.by_order.len().saturating_sub(1);
        self.sum(base, order.min(top)) / page.bytes()
    }

    fn sum(&self, base: PageSize, from_order: usize) -> u64 {
        let blocks = self.by_order.iter().enumerate().skip(from_order);
        blocks.map(|(order, count)| (count << order) * base.bytes()).sum()
    }
}

/// Reads `/proc/buddyinfo`: one entry per node, in the kernel's order.
pub fn free_blocks(roots: &Roots) -> Result<Vec<FreeBlocks>> {
    let path = roots.proc.join("buddyinfo");
    let mut nodes: Vec<FreeBlocks> = Vec::new();
    for line in files::read(&path)?.lines() {
        // Node 0, zone   Normal   1 2 0 ...
        let mut words = line.split_whitespace();
        let node = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("Node"), Some(number), Some("zone"), Some(_)) => {
                Node(files::parse(&path, "a node", number.trim_end_matches(','))?)
            }
            _ => return Err(Error::malformed(&path, "Node N, zone NAME COUNTS", line)),
        };
        let counts = words
            .map(|word| files::parse(&path, "a count of blocks", word))
            .collect::<Result<Vec<u64>>>()?;
        match nodes.iter_mut().find(|entry| entry.node == node) {
            Some(entry) => {
                entry.by_order.resize(entry.by_order.len().max(counts.len()), 0);
                entry.by_order.iter_mut().zip(&counts).for_each(|(sum, count)| *sum += count);
            }
            None => nodes.push(FreeBlocks { node, by_order: counts }),
        }
    }
    Ok(nodes)
}
