// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that the kernel's pool is to have from boot on.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use units::{Node, PageSize, Pages, as_text};

use super::{Amount, ConfigError};

/// The minimum size of the kernel's pool of one size on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Reserve {
    /// The node.
    pub node: Node,
    /// The page size, as in `"1G"`.
    #[serde(with = "as_text")]
    pub page_size: PageSize,
    /// The pages that the pool is to have, used ones included.
    pub pages: Pages,
}

/// The same as the file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    node: Node,
    #[serde(with = "as_text")]
    page_size: PageSize,
    pages: Amount,
}

impl TryFrom<Written> for Reserve {
    type Error = ConfigError;

    fn try_from(Written { node, page_size, pages }: Written) -> Result<Self, ConfigError> {
        let pages = pages.pages(page_size);
        let pages = pages.map_err(|error| ConfigError::Pages("pages", error))?;
        Ok(Self { node, page_size, pages })
    }
}

impl FromStr for Reserve {
    type Err = ConfigError;

    /// `1G=64` on node 0, `1:1G=64` on node 1, `2M=8G` for 4096 pages.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let bad = |why: &dyn std::fmt::Display| {
            ConfigError::Syntax(format!(
                "`{text}`: {why}; write [NODE:]SIZE=AMOUNT, as in 1:1G=64 or 2M=8G"
            ))
        };
        let (shape, amount) = text.split_once('=').ok_or_else(|| bad(&"no number of pages"))?;
        let (node, size) = shape.split_once(':').unwrap_or(("0", shape));
        let page_size: PageSize = size.parse().map_err(|error| bad(&error))?;
        let amount: Amount = amount.parse().map_err(|error| bad(&error))?;
        Ok(Self {
            node: Node(node.parse().map_err(|_| bad(&format_args!("`{node}` is no node")))?),
            page_size,
            pages: amount.pages(page_size).map_err(|error| bad(&error))?,
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
        assert_eq!("2M=8Gi".parse(), Ok(reserve(0, PageSize::MIB_2, 4096)));
        assert_eq!("1:2M=0".parse(), Ok(reserve(1, PageSize::MIB_2, 0)));
        for (text, part) in
            [("1G", "no number of pages"), ("x:1G=1", "`x`"), ("3M=1", "3M"), ("1G=all", "`all`")]
        {
            let error = text.parse::<Reserve>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("1:1G=64"), "{error}");
        }
    }
}
