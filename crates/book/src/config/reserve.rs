// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that the kernel's pool is to have from boot on.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use units::{Node, PageSize, Pages, as_text};

use super::ConfigError;

/// The minimum size of the kernel's pool of one size on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// The node.
    #[serde(default)]
    pub node: Node,
    /// The page size, as in `"1G"`.
    #[serde(with = "as_text")]
    pub page_size: PageSize,
    /// The pages that the pool is to have, used ones included.
    pub pages: Pages,
}

impl FromStr for Reserve {
    type Err = ConfigError;

    /// `1G=64` on node 0, `1:1G=64` on node 1.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let bad = |why: &dyn std::fmt::Display| {
            ConfigError::Syntax(format!("`{text}`: {why}; write [NODE:]SIZE=PAGES, as in 1:1G=64"))
        };
        let (shape, pages) = text.split_once('=').ok_or_else(|| bad(&"no number of pages"))?;
        let (node, size) = shape.split_once(':').unwrap_or(("0", shape));
        Ok(Self {
            node: Node(node.parse().map_err(|_| bad(&format_args!("`{node}` is no node")))?),
            page_size: size.parse().map_err(|error| bad(&error))?,
            pages: Pages(pages.parse().map_err(|_| bad(&format_args!("`{pages}` is no number")))?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_name_node_size_and_pages() {
        let reserve =
            |node, page_size, pages| Reserve { node: Node(node), page_size, pages: Pages(pages) };
        assert_eq!("1G=64".parse(), Ok(reserve(0, PageSize::GIB_1, 64)));
        assert_eq!("1:2M=0".parse(), Ok(reserve(1, PageSize::MIB_2, 0)));
        for (text, part) in
            [("1G", "no number of pages"), ("x:1G=1", "`x`"), ("3M=1", "3M"), ("1G=all", "`all`")]
        {
            let error = text.parse::<Reserve>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("1:1G=64"), "{error}");
        }
    }
}
