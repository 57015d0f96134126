// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans for who would rather wait for ready memory than have the kernel zero it.

use std::time::{Duration, Instant};

use wire::{LendRequest, PoolStatus};

use crate::connection::Client;
use crate::error::{Error, Result};
use crate::loan::Loan;

/// How often is looked whether enough is ready.
const LOOK: Duration = Duration::from_millis(20);

impl Client {
    /// Borrows memory once all of it is ready, or what there is after `wait`. Blocks for as long;
    /// another thread that shuts the program down does not end it sooner.
    ///
    /// # Errors
    /// As [`Client::lend`]; that there is not enough memory only after `wait`.
    pub fn lend_within(&mut self, request: &LendRequest, wait: Duration) -> Result<Loan> {
        let end = Instant::now().checked_add(wait);
        loop {
            let in_time = end.is_none_or(|end| Instant::now() < end);
            if !in_time || is_ready(&self.status()?.pools, request) {
                match self.lend(request) {
                    Err(Error::Refused(wire::Error::NotEnough { .. })) if in_time => {}
                    result => return result,
                }
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Whether all of it can be had at once: one file comes from one block, several from any.
fn is_ready(pools: &[PoolStatus], request: &LendRequest) -> bool {
    let fit = pools.iter().filter(|pool| fits(pool, request));
    if request.single {
        return has_block(fit, request.bytes.0);
    }
    let ready = |pool: &PoolStatus| pool.ready_pages.saturating_mul(pool.page_bytes);
    fit.map(ready).any(|ready| ready >= request.bytes.0)
}

fn fits(pool: &PoolStatus, request: &LendRequest) -> bool {
    request.node.is_none_or(|node| node.0 == pool.node)
        && request.page_size.is_none_or(|size| size.bytes() == pool.page_bytes)
        && request.bytes.0.is_multiple_of(pool.page_bytes)
}

/// Whether one block has `bytes` ready. Where no pool's blocks are as large, as much as one has.
fn has_block<'a>(pools: impl Iterator<Item = &'a PoolStatus> + Clone, bytes: u64) -> bool {
    let block = |pool: &PoolStatus| {
        let sizes = pool.sizes.iter().map(|size| size.pages_per_block);
        pool.page_bytes.saturating_mul(sizes.max().unwrap_or(pool.pages_per_block))
    };
    let largest = pools.clone().map(block).max().unwrap_or_default();
    let enough = bytes.min(largest);
    let has = |pool: &PoolStatus| {
        let of_size = |pages: u64| pages.saturating_mul(pool.page_bytes) >= enough;
        match pool.pages_per_block {
            0 => pool.sizes.iter().any(|one| one.ready_blocks > 0 && of_size(one.pages_per_block)),
            pages => of_size(pages) && of_size(pool.ready_pages),
        }
    };
    pools.into_iter().any(has)
}
