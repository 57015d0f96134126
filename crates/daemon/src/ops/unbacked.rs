// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unbacked parts of loans that their borrowers have not mapped yet.
//!
//! The kernel promises unbacked pages when they are mapped, and a borrower needs time for that:
//! from microseconds to the start of a program. Until then a worker's job or another loan could
//! take those pages, and `mmap` of the granted loan would fail. So an unbacked part counts as taken
//! until the kernel has promised as many pages more, or for [`MAP_TIMEOUT`]. A borrower that maps
//! its loan later may find, as without prezero, that other programs were first.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use units::{BlockId, Domain, PageSize, Pages};

/// How long unbacked pages are reserved for a borrower that does not map them. A program that gets
/// its memory by path maps it within 0.1 s of its start.
const MAP_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
struct Unbacked {
    block: BlockId,
    domain: Domain,
    pages: Pages,
    since: Instant,
}

/// The unbacked parts that were handed out and not mapped, the oldest first.
#[derive(Debug, Default)]
pub(super) struct UnbackedParts {
    unbacked: VecDeque<Unbacked>,
    /// What the kernel had promised at the last look.
    promised: BTreeMap<PageSize, Pages>,
}

impl UnbackedParts {
    /// A loan's block has gone to its borrower with this many pages missing.
    pub(super) fn hand_out(&mut self, block: BlockId, domain: Domain, pages: Pages) {
        self.unbacked.push_back(Unbacked { block, domain, pages, since: Instant::now() });
    }

    /// The loans of these blocks have ended.
    pub(super) fn forget(&mut self, blocks: &[BlockId]) {
        self.unbacked.retain(|unbacked| !blocks.contains(&unbacked.block));
    }

    /// The kernel has promised this many pages of this size, on all nodes together.
    ///
    /// An increase counts for the oldest unbacked parts. If it was another program's mapping, the
    /// mistake costs what every loan risked before this list existed.
    pub(super) fn promised(&mut self, page_size: PageSize, pages: Pages) {
        let before = self.promised.insert(page_size, pages).unwrap_or(pages);
        let mut mapped = pages.saturating_sub(before);
        for unbacked in
            self.unbacked.iter_mut().filter(|unbacked| unbacked.domain.page_size == page_size)
        {
            let here = unbacked.pages.min(mapped);
            unbacked.pages = unbacked.pages.saturating_sub(here);
            mapped = mapped.saturating_sub(here);
        }
        self.unbacked.retain(|unbacked| {
            unbacked.pages > Pages::ZERO && unbacked.since.elapsed() < MAP_TIMEOUT
        });
    }

    /// Pages of a domain that are reserved for their borrowers.
    pub(super) fn waiting(&self, domain: Domain) -> Pages {
        let here = self.unbacked.iter().filter(|unbacked| unbacked.domain == domain);
        here.map(|unbacked| unbacked.pages).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Node;

    const SMALL: Domain = Domain { node: Node(0), page_size: PageSize::MIB_2 };
    const LARGE: Domain = Domain { node: Node(0), page_size: PageSize::GIB_1 };

    #[test]
    fn unbacked_pages_wait_until_the_kernel_has_promised_them() {
        let mut unbacked = UnbackedParts::default();
        unbacked.promised(PageSize::MIB_2, Pages(100));
        unbacked.hand_out(BlockId(1), SMALL, Pages(4));
        unbacked.hand_out(BlockId(2), SMALL, Pages(3));
        unbacked.hand_out(BlockId(3), LARGE, Pages(1));
        assert_eq!((unbacked.waiting(SMALL), unbacked.waiting(LARGE)), (Pages(7), Pages(1)));
        unbacked.promised(PageSize::MIB_2, Pages(105));
        assert_eq!(
            unbacked.waiting(SMALL),
            Pages(2),
            "the first is mapped, and a page of the second"
        );
        unbacked.promised(PageSize::MIB_2, Pages(50));
        assert_eq!(unbacked.waiting(SMALL), Pages(2), "others unmapped theirs");
        unbacked.promised(PageSize::MIB_2, Pages(60));
        assert_eq!((unbacked.waiting(SMALL), unbacked.waiting(LARGE)), (Pages(0), Pages(1)));
    }

    #[test]
    fn ended_and_expired_loans_hold_no_pages() {
        let mut unbacked = UnbackedParts::default();
        unbacked.hand_out(BlockId(1), SMALL, Pages(4));
        unbacked.forget(&[BlockId(1)]);
        assert_eq!(unbacked.waiting(SMALL), Pages::ZERO);
        unbacked.hand_out(BlockId(2), SMALL, Pages(4));
        unbacked.unbacked[0].since =
            Instant::now().checked_sub(MAP_TIMEOUT).expect("a clock that has run");
        unbacked.promised(PageSize::MIB_2, Pages(0));
        assert_eq!(unbacked.waiting(SMALL), Pages::ZERO);
    }
}
