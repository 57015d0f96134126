// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What operations know of loans beside the book: which their memory holds, which are being made.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;
use units::{BlockId, LeaseId, Pages};

use crate::storage::memory_held::{MemoryHeld, rotate};

/// Loans that something goes on with.
#[derive(Debug, Default)]
pub(super) struct LoanWork {
    /// Loans that last while their memory is open or mapped.
    pub(super) memory_held: MemoryHeld,
    /// Files that are being filled, with the pages that they are to have.
    filling: BTreeMap<BlockId, Pages>,
    /// What cancels the making of loans by name.
    being_made: BTreeMap<LeaseId, CancellationToken>,
    /// The draining block that was looked at last.
    looked_at: Option<BlockId>,
}

impl LoanWork {
    /// A file takes this number of pages from the kernel from now on.
    pub(super) fn begin_filling(&mut self, block: BlockId, pages: Pages) {
        self.filling.insert(block, pages);
    }

    /// It does so no longer. Returns how many it was to have, if it was being filled.
    pub(super) fn end_filling(&mut self, block: BlockId) -> Option<Pages> {
        self.filling.remove(&block)
    }

    /// Files that are being filled, with the pages that they are to have.
    pub(super) fn filling(&self) -> impl Iterator<Item = (BlockId, Pages)> {
        self.filling.iter().map(|(block, pages)| (*block, *pages))
    }

    /// Begins the making of a loan by name. The token cancels it.
    pub(super) fn begin_making(&mut self, lease: LeaseId) -> CancellationToken {
        let stop = CancellationToken::new();
        self.being_made.insert(lease, stop.clone());
        stop
    }

    /// The loan is made: nothing cancels it any more.
    pub(super) fn end_making(&mut self, lease: LeaseId) {
        self.being_made.remove(&lease);
    }

    /// Cancels the making of a loan. No-op for a loan that is made.
    pub(super) fn cancel_fill(&self, lease: LeaseId) {
        if let Some(stop) = self.being_made.get(&lease) {
            stop.cancel();
        }
    }

    /// A loan has ended: cancels its making and forgets its files.
    pub(super) fn forget(&mut self, lease: LeaseId, blocks: &[BlockId]) {
        self.cancel_fill(lease);
        self.end_making(lease);
        self.filling.retain(|block, _| !blocks.contains(block));
    }

    /// Of the draining blocks, in order, those to look at now: at most `most`, others each time.
    pub(super) fn next_to_look_at(&mut self, draining: &[BlockId], most: usize) -> Vec<BlockId> {
        let now = rotate(draining, self.looked_at, most);
        self.looked_at = now.last().copied();
        now
    }
}
