// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools, as people read of them.

use std::io::{self, Write};

use units::{Bytes, Pages};
use wire::PoolStatus;

use super::table::{self, Align};
use super::text;

/// How many pages its blocks have, behind their size; nothing where that is the daemon's matter.
pub(crate) fn times(pool: &PoolStatus) -> String {
    match pool.pages_per_block {
        Pages(0) => String::new(),
        pages => format!(" x {pages}"),
    }
}

/// The size of its blocks.
pub(crate) fn block(pool: &PoolStatus) -> String {
    match pool.pages_per_block {
        Pages(0) => "all".to_owned(),
        pages => pages.bytes(pool.page_size).to_string(),
    }
}

/// What becomes of the kernel's pool of each that may change it.
pub(crate) fn resize(out: &mut dyn Write, pools: &[PoolStatus]) -> io::Result<()> {
    for pool in pools {
        let Some(of) = &pool.resize else { continue };
        let (node, page) = (pool.node, pool.page_size);
        let size = |pages: Pages| pages.bytes(pool.page_size);
        let (total, grown) = (size(of.total_pages), size(of.added_pages));
        let (min, max) = (size(of.min_pages), size(of.max_pages));
        let mut line = format!(
            "size, node {node}, {page}: the kernel's pool has {total}, {grown} of it added by the \
             daemon; {min} to {max}"
        );
        if of.adding_pages > Pages(0) {
            line += &format!("; adding {}", size(of.adding_pages));
        }
        if let Some(held) = of.held_pages {
            line += &format!(
                "; another program made it smaller: it stays within {} until pages are added, or a \
                 reload",
                size(held)
            );
        }
        if let Some(why) = &of.short_because {
            line += &format!("; smaller than wanted: {why}");
        }
        writeln!(out)?;
        text::write(out, &line)?;
    }
    Ok(())
}

/// How much a pool keeps ready at this time of the day, where it learns that.
pub(crate) fn learnt(pool: &PoolStatus) -> Option<String> {
    /// As the policy has it.
    const NEEDED_DAYS: u64 = 3;
    let of = pool.learnt?;
    let size = |pages: Pages| pages.bytes(pool.page_size);
    let (now, max, days) = (size(pool.ready_high), size(of.max_pages), of.known_days);
    let (node, page) = (pool.node, pool.page_size);
    let why = match days < NEEDED_DAYS {
        true => format!("knows {days} of {NEEDED_DAYS} days of this quarter of an hour"),
        false => format!("learnt from {}, at most {max}", super::count(days, "day")),
    };
    Some(format!("ready, node {node}, {page}: {now} at this time of the day; {why}"))
}

/// The sizes of blocks that pools have ready and want, where they have several.
pub(crate) fn sizes(out: &mut dyn Write, pools: &[PoolStatus]) -> io::Result<()> {
    use Align::Right;
    let rows: Vec<_> = pools
        .iter()
        .flat_map(|pool| pool.sizes.iter().map(move |size| (pool, size)))
        .map(|(pool, size)| {
            let bytes = size.pages_per_block.0.saturating_mul(pool.page_size.bytes());
            vec![
                pool.node.to_string(),
                pool.page_size.to_string(),
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
