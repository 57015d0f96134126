// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans for who would rather wait for ready memory than have the kernel zero it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wire::{LendRequest, PoolStatus, Provider};

use crate::connection::Client;
use crate::error::{Error, Result};
use crate::loan::Loan;

/// How often is looked whether enough is ready.
const LOOK: Duration = Duration::from_millis(20);

impl Client {
    /// Borrows memory once all of it is ready, or what there is after `wait`. Blocks for as long,
    /// and cannot be cancelled.
    ///
    /// # Errors
    /// As [`Client::lend`]; that there is not enough memory only after `wait`.
    pub fn lend_within(&mut self, request: &LendRequest, wait: Duration) -> Result<Loan> {
        let end = Instant::now().checked_add(wait);
        loop {
            let in_time = end.is_none_or(|end| Instant::now() < end);
            if !in_time || self.has_ready(request)? {
                match self.lend(request) {
                    Err(Error::Refused(wire::Error::NotEnough { .. })) if in_time => {}
                    result => return result,
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    fn has_ready(&mut self, request: &LendRequest) -> Result<bool> {
        let status = self.status()?;
        Ok(is_ready(status.provider, &status.pools, request))
    }
}

/// Whether all of it can be had at once: one file comes from one block, several from any. Where the
/// kernel keeps the pages a file takes as many as one node has.
fn is_ready(provider: Provider, pools: &[PoolStatus], request: &LendRequest) -> bool {
    let mut fit = pools.iter().filter(|pool| fits(pool, request));
    if request.single {
        return match provider {
            Provider::Kernel => {
                fit.any(|pool| pool.ready_pages.saturating_mul(pool.page_bytes) >= request.bytes.0)
            }
            _ => has_block(fit, request.bytes.0),
        };
    }
    // Of one page size, wherever they lie.
    let mut ready = BTreeMap::<u64, u64>::new();
    for pool in fit {
        let bytes = pool.ready_pages.saturating_mul(pool.page_bytes);
        let sum = ready.entry(pool.page_bytes).or_default();
        *sum = sum.saturating_add(bytes);
    }
    ready.values().any(|ready| *ready >= request.bytes.0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use units::{Bytes, Node, PageSize};
    use wire::BlockSize;

    const MIB: u64 = 1 << 20;

    fn pool(node: u32, page_bytes: u64, pages_per_block: u64, ready_pages: u64) -> PoolStatus {
        PoolStatus { node, page_bytes, pages_per_block, ready_pages, ..PoolStatus::default() }
    }

    #[test]
    fn several_blocks_of_one_page_size_are_ready_together_and_one_file_by_itself() {
        let pools = [pool(0, 2 * MIB, 4, 6), pool(1, 2 * MIB, 4, 2), pool(0, 1 << 30, 1, 1)];
        let rows = |bytes| LendRequest::new(Bytes(bytes));
        assert!(is_ready(Provider::Stock, &pools, &rows(16 * MIB)), "on two nodes");
        assert!(!is_ready(Provider::Stock, &pools, &rows(18 * MIB)));
        assert!(!is_ready(
            Provider::Stock,
            &pools,
            &LendRequest { node: Some(Node(1)), ..rows(8 * MIB) }
        ));
        let single = |bytes| LendRequest { single: true, ..rows(bytes) };
        assert!(is_ready(Provider::Stock, &pools, &single(8 * MIB)), "one block has it");
        assert!(
            is_ready(Provider::Stock, &pools, &single(16 * MIB)),
            "of a larger file as much as one block has"
        );
        assert!(
            !is_ready(Provider::Stock, &pools[1..2], &single(8 * MIB)),
            "that block is ready in part"
        );
        assert!(is_ready(Provider::Stock, &pools, &single(1 << 30)));
    }

    #[test]
    fn one_file_takes_as_many_of_the_kernels_pages_as_a_node_has() {
        let pools = [pool(0, 2 * MIB, 1, 3), pool(1, 2 * MIB, 1, 3)];
        let single = |bytes| LendRequest { single: true, ..LendRequest::new(Bytes(bytes)) };
        assert!(is_ready(Provider::Kernel, &pools, &single(6 * MIB)));
        assert!(!is_ready(Provider::Kernel, &pools, &single(8 * MIB)), "of two nodes");
        assert!(is_ready(Provider::Kernel, &pools, &LendRequest::new(Bytes(12 * MIB))));
    }

    #[test]
    fn only_pools_that_fit_the_request_count() {
        let pools = [pool(1, 2 * MIB, 1, 8)];
        let rows = || LendRequest::new(Bytes(4 * MIB));
        let is_ready = |request: &LendRequest| is_ready(Provider::Stock, &pools, request);
        assert!(is_ready(&rows()));
        let of_size = |size| LendRequest { page_size: Some(size), ..rows() };
        assert!(is_ready(&of_size(PageSize::MIB_2)));
        assert!(!is_ready(&of_size(PageSize::GIB_1)), "of pages that it did not ask for");
        assert!(is_ready(&LendRequest { node: Some(Node(1)), ..rows() }));
        assert!(!is_ready(&LendRequest { node: Some(Node(0)), ..rows() }), "of another node");
        assert!(!is_ready(&LendRequest::new(Bytes(3 * MIB))), "of half a page");
    }

    #[test]
    fn one_file_comes_from_a_ready_block_of_a_pool_of_all_sizes() {
        let size = |pages_per_block, ready_blocks| BlockSize {
            pages_per_block,
            ready_blocks,
            ..BlockSize::default()
        };
        let of_sizes =
            |sizes: Vec<BlockSize>, ready| PoolStatus { sizes, ..pool(0, 2 * MIB, 0, ready) };
        let single = |bytes| LendRequest { single: true, ..LendRequest::new(Bytes(bytes)) };
        let is_ready = |pool: &PoolStatus, bytes| {
            is_ready(Provider::Stock, std::slice::from_ref(pool), &single(bytes))
        };
        let small = of_sizes(vec![size(1, 2), size(4, 0)], 2);
        assert!(is_ready(&small, 2 * MIB));
        assert!(!is_ready(&small, 8 * MIB), "the block of that size is not ready");
        let large = of_sizes(vec![size(1, 0), size(4, 1)], 4);
        assert!(is_ready(&large, 8 * MIB));
        assert!(is_ready(&large, 2 * MIB), "of a larger block");
    }
}
