// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools, as people read of them.

use std::io::{self, Write};

use units::{Bytes, Pages};
use wire::PoolStatus;

use super::table::{self, Align};

/// How many pages its blocks have, behind their size; nothing where that is the daemon's matter.
pub(crate) fn times(pool: &PoolStatus) -> String {
    match pool.pages_per_block {
        0 => String::new(),
        pages => format!(" x {pages}"),
    }
}

/// The same in a column.
pub(crate) fn block(pool: &PoolStatus) -> String {
    match pool.pages_per_block {
        0 => "all".to_owned(),
        pages => pages.to_string(),
    }
}

/// The sizes of blocks that pools have ready and want, where they have several.
pub(crate) fn sizes(out: &mut dyn Write, pools: &[PoolStatus]) -> io::Result<()> {
    use Align::Right;
    let rows: Vec<_> = pools
        .iter()
        .flat_map(|pool| pool.sizes.iter().map(move |size| (pool, size)))
        .map(|(pool, size)| {
            let bytes = Pages(size.pages_per_block).0.saturating_mul(pool.page_bytes);
            vec![
                pool.node.to_string(),
                Bytes(pool.page_bytes).to_string(),
                Bytes(bytes).to_string(),
                size.ready_blocks.to_string(),
                size.wanted_blocks.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let columns =
        [("NODE", Right), ("PAGE", Right), ("BLOCK", Right), ("READY", Right), ("WANTED", Right)];
    table::write(out, &columns, &rows)
}
