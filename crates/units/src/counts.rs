// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What there is of one domain.

use crate::Pages;

/// The pages of one domain by state, all read at one instant.
///
/// A provider that lacks a count leaves it 0 and says so: the kernel's pool has no loans, and a
/// kernel with neither module nor series no zeroed pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Pages of the pool, in use or not.
    pub total: Pages,
    /// Those of them that are beyond its configured size, and vanish when they are freed.
    pub surplus: Pages,
    /// Unused pages: dirty, being zeroed, and ready.
    pub free: Pages,
    /// Free pages promised to mappings before their first touch, of all nodes together.
    pub reserved: Pages,
    /// Free pages minus promised ones.
    pub available: Pages,
    /// Known to be zero.
    pub ready: Pages,
    /// Free pages that could be zeroed now.
    pub zeroable: Pages,
    /// Being zeroed at this moment.
    pub zeroing: Pages,
    /// In clients' hands.
    pub lent: Pages,
    /// Pages that were wanted zero, and were.
    pub hits: Pages,
    /// Pages that a taker wanted zeroed and had to clear itself.
    pub misses: Pages,
    /// The misses that a taker took over from a zeroer.
    pub waits: Pages,
}
