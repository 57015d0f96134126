// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a scene is to have.

use units::{Bytes, PageSize, Pages};

/// One pool on the rig.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(super) page: PageSize,
    pub(super) size: Bytes,
    /// `None`: one block can take it all.
    pub(super) pages_per_block: Option<Pages>,
    /// Who may borrow besides root: a group's name or number.
    pub(super) lend_group: Option<String>,
}

impl Pool {
    /// One block, for root alone.
    pub(crate) fn new(page: PageSize, size: Bytes) -> Self {
        Self { page, size, pages_per_block: None, lend_group: None }
    }

    pub(crate) fn page(&self) -> PageSize {
        self.page
    }

    /// A page where less was asked for.
    pub(crate) fn of_a_page_or_more(self) -> Self {
        Self { size: self.size.max(Bytes(self.page.bytes())), ..self }
    }

    pub(crate) fn in_blocks_of(self, pages: Pages) -> Self {
        Self { pages_per_block: Some(pages), ..self }
    }

    pub(crate) fn for_group(self, group: String) -> Self {
        Self { lend_group: Some(group), ..self }
    }
}
