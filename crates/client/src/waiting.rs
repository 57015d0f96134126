// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans for programs that would rather wait for ready memory than have the kernel zero it.
//!
//! The daemon tells waiters when its counts change ([`Client::watch`]), at most 20 times a second.
//! A waiter asks for a whole report, which costs the daemon 5 us for each loan of all users, only
//! where these counts could be enough, and ever less often where they were not.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use units::{Bytes, Node, PageSize, Pages};
use wire::{LendRequest, PoolStatus, Provider};

use crate::connection::{Client, StatusWatch};
use crate::error::{Error, Result};
use crate::loan::Loan;

/// For how long a wait may keep its caller from ending it.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The least and the most time between two reports that one wait asks for.
const REPORT_INTERVALS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

impl Client {
    /// Borrows memory once all of it is ready, or what there is after `wait`. Blocks for as long.
    ///
    /// # Errors
    /// As [`Client::lend`]; that there is not enough memory only after `wait`.
    pub fn lend_within(&mut self, request: &LendRequest, wait: Duration) -> Result<Loan> {
        self.lend_within_unless(request, wait, || Ok::<(), Never>(())).map_err(|Never(error)| error)
    }

    /// The same for a program that may have something else to do: the wait asks it ten times a
    /// second and more whether to go on, and ends with its error.
    ///
    /// # Errors
    /// As [`Client::lend_within`]; those of `go_on`.
    pub fn lend_within_unless<E: From<Error>>(
        &mut self,
        request: &LendRequest,
        wait: Duration,
        mut go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<Loan, E> {
        let end = Instant::now().checked_add(wait);
        let mut waiting: Option<Waiting> = None;
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let in_time = left.is_none_or(|left| !left.is_zero());
            let may_be = waiting.as_ref().is_none_or(Waiting::may_look);
            if !in_time || (may_be && self.has_ready(request, &mut waiting)?) {
                match self.lend(request) {
                    Err(Error::Refused(wire::Error::NotEnough { .. })) if in_time => {}
                    result => return result.map_err(E::from),
                }
            }
            go_on()?;
            if let Some(waiting) = &mut waiting {
                waiting.sleep(
                    left.map_or(CANCEL_POLL_INTERVAL, |left| left.min(CANCEL_POLL_INTERVAL)),
                );
            }
        }
    }

    /// Whether it is ready, by a whole report. From the first one on that says no, what changes is
    /// told.
    fn has_ready(&mut self, request: &LendRequest, waiting: &mut Option<Waiting>) -> Result<bool> {
        let status = self.status()?;
        let enough = match request.single {
            true => request.bytes.min(largest_block(fitting(&status.pools, request))),
            false => request.bytes,
        };
        match waiting {
            Some(waiting) => waiting.looked(enough),
            None => *waiting = Some(Waiting::begin(self.path(), request, enough)),
        }
        Ok(is_ready(status.provider, &status.pools, request))
    }
}

/// One wait, between its looks.
#[derive(Debug)]
struct Waiting {
    /// `None` where the daemon tells nothing: then it is looked by the clock.
    watch: Option<StatusWatch>,
    /// Ready bytes by node and page size, as reported.
    ready: BTreeMap<(Node, PageSize), Bytes>,
    /// Fewer ready bytes than these are not enough...
    enough: Bytes,
    /// ... on one node, or on all of them.
    single: bool,
    next_look: Instant,
    pause: Duration,
}

impl Waiting {
    fn begin(socket: &Path, request: &LendRequest, enough: Bytes) -> Self {
        let watch = Client::connect(socket)
            .and_then(|client| client.watch(request.node, request.page_size, None, Duration::ZERO));
        let (ready, pause) = (BTreeMap::new(), REPORT_INTERVALS[0]);
        let next_look = Instant::now() + pause;
        Self { watch: watch.ok(), ready, enough, single: request.single, next_look, pause }
    }

    /// A whole report was asked for; the next one waits for longer.
    fn looked(&mut self, enough: Bytes) {
        self.enough = enough;
        self.pause = (self.pause * 2).min(REPORT_INTERVALS[1]);
        self.next_look = Instant::now() + self.pause;
    }

    /// Whether a whole report is worth asking for, and may be.
    fn may_look(&self) -> bool {
        self.has_enough() && Instant::now() >= self.next_look
    }

    /// Whether enough is ready, according to the last report.
    fn has_enough(&self) -> bool {
        let mut most = BTreeMap::<(Option<Node>, PageSize), Bytes>::new();
        for (&(node, page_size), ready) in &self.ready {
            *most.entry((self.single.then_some(node), page_size)).or_default() += *ready;
        }
        self.watch.is_none() || most.values().any(|ready| *ready >= self.enough)
    }

    /// Waits for the daemon to tell of a change, or for the next look.
    fn sleep(&mut self, most: Duration) {
        let most = match self.has_enough() {
            true => most.min(self.next_look.saturating_duration_since(Instant::now())),
            false => most,
        };
        match self.watch.as_mut().map(|watch| watch.next_within(most)) {
            None => std::thread::sleep(most),
            Some(Ok(None)) => {}
            Some(Ok(Some(reported))) => {
                for level in reported.levels {
                    let ready = level.ready_pages.bytes(level.page_size);
                    self.ready.insert((level.node, level.page_size), ready);
                }
            }
            // The next look says what became of the daemon.
            Some(Err(_)) => self.watch = None,
        }
    }
}

/// The error of a wait that its caller does not end.
struct Never(Error);

impl From<Error> for Never {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

fn fitting<'a>(
    pools: &'a [PoolStatus],
    request: &LendRequest,
) -> impl Iterator<Item = &'a PoolStatus> + Clone {
    let request = request.clone();
    pools.iter().filter(move |pool| fits(pool, &request))
}

/// Whether all of it can be had at once: one file comes from one block, several from any. Where the
/// kernel keeps the pages a file takes as many as one node has.
fn is_ready(provider: Provider, pools: &[PoolStatus], request: &LendRequest) -> bool {
    let mut fit = fitting(pools, request);
    if request.single {
        return match provider {
            Provider::Kernel => {
                fit.any(|pool| pool.ready_pages.bytes(pool.page_size) >= request.bytes)
            }
            _ => has_block(fit, request.bytes),
        };
    }
    // Of one page size, on any nodes.
    let mut ready = BTreeMap::<PageSize, Bytes>::new();
    for pool in fit {
        *ready.entry(pool.page_size).or_default() += pool.ready_pages.bytes(pool.page_size);
    }
    ready.values().any(|ready| *ready >= request.bytes)
}

fn fits(pool: &PoolStatus, request: &LendRequest) -> bool {
    request.node.is_none_or(|node| node == pool.node)
        && request.page_size.is_none_or(|size| size == pool.page_size)
        && request.bytes.0.is_multiple_of(pool.page_size.bytes())
}

/// The length of the longest blocks.
fn largest_block<'a>(pools: impl Iterator<Item = &'a PoolStatus>) -> Bytes {
    let block = |pool: &PoolStatus| {
        let sizes = pool.sizes.iter().map(|size| size.pages_per_block);
        sizes.max().unwrap_or(pool.pages_per_block).bytes(pool.page_size)
    };
    pools.map(block).max().unwrap_or_default()
}

/// Whether one block has `bytes` ready. Where all pools have smaller blocks: as much as one has.
fn has_block<'a>(pools: impl Iterator<Item = &'a PoolStatus> + Clone, bytes: Bytes) -> bool {
    let enough = bytes.min(largest_block(pools.clone()));
    let has = |pool: &PoolStatus| {
        let of_size = |pages: Pages| pages.bytes(pool.page_size) >= enough;
        match pool.pages_per_block {
            Pages::ZERO => {
                let mut sizes = pool.sizes.iter();
                sizes.any(|one| one.ready_blocks > 0 && of_size(one.pages_per_block))
            }
            pages => of_size(pages) && of_size(pool.ready_pages),
        }
    };
    pools.into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::BlockSize;

    const MIB: u64 = 1 << 20;

    fn pool(node: u32, page_bytes: u64, pages_per_block: u64, ready_pages: u64) -> PoolStatus {
        PoolStatus {
            node: Node(node),
            page_size: PageSize::new(page_bytes).expect("a page size"),
            pages_per_block: Pages(pages_per_block),
            ready_pages: Pages(ready_pages),
            ..PoolStatus::default()
        }
    }

    #[test]
    fn blocks_of_one_page_size_count_together_and_one_file_alone() {
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
        let small = of_sizes(vec![size(Pages(1), 2), size(Pages(4), 0)], 2);
        assert!(is_ready(&small, 2 * MIB));
        assert!(!is_ready(&small, 8 * MIB), "the block of that size is not ready");
        let large = of_sizes(vec![size(Pages(1), 0), size(Pages(4), 1)], 4);
        assert!(is_ready(&large, 8 * MIB));
        assert!(is_ready(&large, 2 * MIB), "of a larger block");
    }
}
