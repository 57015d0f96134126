// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unbacked parts of loans that their borrowers have not mapped yet.
//!
//! The kernel promises unbacked pages when they are mapped, and a borrower needs time for that:
//! from microseconds to the start of a program. Until then a worker's job or another loan could
//! take those pages, and `mmap` of the granted loan would fail. So an unbacked part counts as taken
//! until the kernel has promised as many pages more, or for [`GRACE`]. A borrower that maps its
//! loan later may find, as without prezero, that other programs were first.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use units::{BlockId, Domain, PageSize, Pages};

/// How long unbacked pages are reserved for a borrower that does not map them. A program that gets
/// its memory by path maps it within 0.1 s of its start.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
struct Hole {
    block: BlockId,
    domain: Domain,
    pages: Pages,
    since: Instant,
}

/// The unbacked parts that were handed out and not mapped, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Holes {
    holes: VecDeque<Hole>,
    /// What the kernel had promised at the last look.
    promised: BTreeMap<PageSize, Pages>,
}

impl Holes {
    /// A loan's block has gone to its borrower with this many pages missing.
    pub(super) fn hand_out(&mut self, block: BlockId, domain: Domain, pages: Pages) {
        self.holes.push_back(Hole { block, domain, pages, since: Instant::now() });
    }

    /// The loans of these blocks have ended.
    pub(super) fn forget(&mut self, blocks: &[BlockId]) {
        self.holes.retain(|hole| !blocks.contains(&hole.block));
    }

    /// The kernel has promised this many pages of this size, on all nodes together.
    ///
    /// An increase counts for the oldest unbacked parts. If it was another program's mapping, the
    /// mistake costs what every loan risked before this list existed.
    pub(super) fn promised(&mut self, page_size: PageSize, pages: Pages) {
        let before = self.promised.insert(page_size, pages).unwrap_or(pages);
        let mut mapped = pages.saturating_sub(before);
        for hole in self.holes.iter_mut().filter(|hole| hole.domain.page_size == page_size) {
            let here = hole.pages.min(mapped);
            hole.pages = hole.pages.saturating_sub(here);
            mapped = mapped.saturating_sub(here);
        }
        self.holes.retain(|hole| hole.pages > Pages::ZERO && hole.since.elapsed() < GRACE);
    }

    /// Pages of a domain that are reserved for their borrowers.
    pub(super) fn waiting(&self, domain: Domain) -> Pages {
        let here = self.holes.iter().filter(|hole| hole.domain == domain);
        here.map(|hole| hole.pages).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Node;

    const SMALL: Domain = Domain { node: Node(0), page_size: PageSize::MIB_2 };
    const LARGE: Domain = Domain { node: Node(0), page_size: PageSize::GIB_1 };

    #[test]
    fn a_hole_waits_until_the_kernel_has_promised_its_pages() {
        let mut holes = Holes::default();
        holes.promised(PageSize::MIB_2, Pages(100));
        holes.hand_out(BlockId(1), SMALL, Pages(4));
        holes.hand_out(BlockId(2), SMALL, Pages(3));
        holes.hand_out(BlockId(3), LARGE, Pages(1));
        assert_eq!((holes.waiting(SMALL), holes.waiting(LARGE)), (Pages(7), Pages(1)));
        holes.promised(PageSize::MIB_2, Pages(105));
        assert_eq!(holes.waiting(SMALL), Pages(2), "the first is mapped, and a page of the second");
        holes.promised(PageSize::MIB_2, Pages(50));
        assert_eq!(holes.waiting(SMALL), Pages(2), "others unmapped theirs");
        holes.promised(PageSize::MIB_2, Pages(60));
        assert_eq!((holes.waiting(SMALL), holes.waiting(LARGE)), (Pages(0), Pages(1)));
    }

    #[test]
    fn an_ended_loan_and_one_that_nobody_maps_hold_nothing() {
        let mut holes = Holes::default();
        holes.hand_out(BlockId(1), SMALL, Pages(4));
        holes.forget(&[BlockId(1)]);
        assert_eq!(holes.waiting(SMALL), Pages::ZERO);
        holes.hand_out(BlockId(2), SMALL, Pages(4));
        holes.holes[0].since = Instant::now().checked_sub(GRACE).expect("a clock that has run");
        holes.promised(PageSize::MIB_2, Pages(0));
        assert_eq!(holes.waiting(SMALL), Pages::ZERO);
    }
}
