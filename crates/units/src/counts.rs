// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What there is of one domain.

use crate::Pages;

/// The pages of one domain by what is known of them, all numbers of one instant.
///
/// Whoever cannot know a count leaves it 0 and says so: the kernel's pool knows nothing of loans, a
/// kernel without the series nothing of zeroed pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Pages of the pool, in use or not.
    pub total: Pages,
    /// Those of them that are beyond its configured size, and vanish when they are freed.
    pub surplus: Pages,
    /// Pages nobody uses: dirty, being zeroed, and ready.
    pub free: Pages,
    /// Free pages promised to mappings that have not touched them, of all nodes together.
    pub reserved: Pages,
    /// Free pages that nobody was promised.
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
    /// Pages that were wanted zero, and had to be cleared by whoever wanted them.
    pub misses: Pages,
    /// Those of the misses that were taken from whoever was zeroing them.
    pub waits: Pages,
}
