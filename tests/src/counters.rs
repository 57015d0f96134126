// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own books, in which no page may be missing.

use linux::{Roots, hugetlb};

use crate::Page;

/// The kernel's count of pages of 2 MiB on the whole machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// All of the pool.
    pub total: u64,
    /// In nobody's hands.
    pub free: u64,
    /// Promised to programs that have mapped them, where the kernel says so.
    pub reserved: Option<u64>,
    /// Beyond the pool's size, until they are free.
    pub surplus: u64,
}

impl Kernel {
    /// As it is now.
    ///
    /// # Panics
    /// Without 2 MiB pages.
    #[must_use]
    pub fn now() -> Self {
        let counters = hugetlb::counters(&Roots::default(), Page::Mib2.size(), None);
        let hugetlb::HugetlbCounters { total, free, surplus, reserved } =
            counters.expect("2 MiB pages");
        Self { total, free, reserved, surplus }
    }
}
