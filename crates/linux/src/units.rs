// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Quantities that must not be swapped: which node, how large a page.

use std::fmt;

/// A NUMA node, by the number that `/sys/devices/system/node` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// The size of one page in bytes: a power of two, 4 KiB for plain memory, more for hugetlb pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageBytes(u64);

impl PageBytes {
    /// A size in bytes, or `None` if it is not a power of two of at least 1 KiB.
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= 1024 { Some(Self(bytes)) } else { None }
    }

    /// A size in KiB, the unit of `/sys/kernel/mm/hugepages`.
    pub const fn from_kib(kib: u64) -> Option<Self> {
        match kib.checked_mul(1024) {
            Some(bytes) => Self::new(bytes),
            None => None,
        }
    }

    /// The page size of plain memory on this machine, 4 KiB on x86-64.
    pub fn base() -> Self {
        Self(rustix::param::page_size() as u64)
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// In KiB, as the kernel names its directories.
    pub const fn kib(self) -> u64 {
        self.0 / 1024
    }
}

/// Prints the largest unit that divides it: `4 KiB`, `2 MiB`, `1 GiB`.
impl fmt::Display for PageBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.trailing_zeros() {
            0..20 => write!(f, "{} KiB", self.0 >> 10),
            20..30 => write!(f, "{} MiB", self.0 >> 20),
            _ => write!(f, "{} GiB", self.0 >> 30),
        }
    }
}
