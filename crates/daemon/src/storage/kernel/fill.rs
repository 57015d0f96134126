// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A loan's new file takes its pages from what the kernel has zeroed.
//!
//! `fallocate` does not clear a page that the pool knows to be zero, so this costs page cache
//! entries only. It runs on a thread of its own all the same: 256 GiB of 2 MiB pages are 131,072 of
//! them, and the daemon has others to serve.
//!
//! *No zeroing for others*: pages go to the first caller, so another program may take the last
//! zeroed ones between our look and our allocation, and the kernel would clear a dirty one on the
//! daemon's account. The look is therefore taken anew for each [`STEP_BYTES`], which bounds the
//! cost of a lost race. Dirty pages then stay an unbacked part, which the client's own faults fill.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

use linux::kernel::Device;
use linux::{BlockFile, numa};
use tokio_util::sync::CancellationToken;
use units::{BlockId, Bytes, Domain, Pages};

use super::KernelPool;

/// Between two looks, at least a page: what the daemon may have to clear if it loses a race.
const STEP_BYTES: u64 = 32 << 20;

/// One file to fill.
#[derive(Debug)]
pub(crate) struct Fill {
    /// Its block.
    pub(crate) block: BlockId,
    /// This number of pages from its start.
    pub(crate) pages: Pages,
    device: Arc<Device>,
    file: BlockFile,
    domain: Domain,
}

impl Fill {
    pub(crate) fn new(
        pool: &KernelPool,
        block: BlockId,
        file: BlockFile,
        domain: Domain,
        pages: Pages,
    ) -> Self {
        Self { block, pages, device: Arc::clone(&pool.device), file, domain }
    }

    /// Allocates the pages on their node, in the calling thread. Returns how many from the start of
    /// the file are there: fewer when others were faster, or when `stop` was cancelled.
    pub(crate) fn run(self, stop: &CancellationToken) -> Pages {
        let filled = numa::bind_thread_to(self.domain.node).and_then(|()| {
            let filled = self.fill(stop);
            numa::reset_policy()?;
            filled
        });
        filled.unwrap_or_else(|error| {
            if !error.is_no_space() {
                tracing::warn!(%error, block = %self.block, "a loan stays an unbacked part");
            }
            let there = self.file.allocated_bytes().unwrap_or_default();
            Bytes(there).whole_pages(self.domain.page_size)
        })
    }

    fn fill(&self, stop: &CancellationToken) -> linux::Result<Pages> {
        let page = self.domain.page_size.bytes();
        let mut done = 0;
        while done < self.pages.0 && !stop.is_cancelled() {
            let zeroed = self.device.query(self.domain)?.ready.0;
            let step = zeroed.min(self.pages.0 - done).min((STEP_BYTES / page).max(1));
            if step == 0 {
                break;
            }
            let range = done * page..(done + step) * page;
            let mut each = |_| if stop.is_cancelled() { Break(()) } else { Continue(()) };
            let bytes = self.file.allocate_pages(range, self.domain.page_size, &mut each);
            done += bytes? / page;
        }
        Ok(Pages(done))
    }
}
