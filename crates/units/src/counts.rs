// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What there is of one domain.

use crate::Pages;

/// The pages of one domain by state, all numbers of one instant.
///
/// A source that cannot know a count leaves it 0 and says so: the kernel's pool knows no loans, a
/// kernel without the series no zeroed pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Pages of the pool, used and unused.
    pub total: Pages,
    /// Those of them that are beyond its configured size, and vanish when they are freed.
    pub surplus: Pages,
    /// Unused pages: dirty, being zeroed, and ready.
    pub free: Pages,
    /// Free pages promised to mappings that have yet to touch them, of all nodes together.
    pub reserved: Pages,
    /// Free and unpromised pages.
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
    /// Pages that were wanted zero, and that the requester had to clear.
    pub misses: Pages,
    /// Misses that were taken from a zeroer.
    pub waits: Pages,
}
