// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages are meant.

use units::{Node, PageSize};

/// Which pages: of one node, of one size, both or neither.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Which {
    node: Option<u32>,
    /// The size of the pages.
    pub page_size: Option<PageSize>,
}

impl Which {
    /// Those of a node, of a size, of both or all.
    #[must_use]
    pub fn new(node: Option<Node>, page_size: Option<PageSize>) -> Self {
        Self { node: node.map(|node| node.0), page_size }
    }

    /// Pages of that node and size.
    #[must_use]
    pub fn exact(node: Node, page_size: PageSize) -> Self {
        Self::new(Some(node), Some(page_size))
    }

    /// The node, if one is meant.
    #[must_use]
    pub fn node(&self) -> Option<Node> {
        self.node.map(Node)
    }

    /// Whether a pool of that node and page size is meant.
    #[must_use]
    pub fn fits(&self, node: Node, page_size: PageSize) -> bool {
        self.node.is_none_or(|wanted| wanted == node.0)
            && self.page_size.is_none_or(|wanted| wanted == page_size)
    }
}
