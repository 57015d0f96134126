// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What operations know of loans beside the book: which their memory holds, which are being made.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;
use units::{BlockId, LeaseId, Pages};

use crate::storage::memory_held::{Held, turn_about};

/// Loans that something goes on with.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// Those that last as long as their memory is open or mapped.
    pub(super) memory_held: Held,
    /// Files that are being filled, with the pages that they are to have.
    filling: BTreeMap<BlockId, Pages>,
    /// What cancels the making of loans by name.
    being_made: BTreeMap<LeaseId, CancellationToken>,
    /// The lingering block that was looked at last.
    looked_at: Option<BlockId>,
}

impl Loans {
    /// A file takes so many pages from the kernel from now on.
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
    pub(super) fn stop_making(&self, lease: LeaseId) {
        if let Some(stop) = self.being_made.get(&lease) {
            stop.cancel();
        }
    }

    /// A loan has ended: cancels its making and forgets its files.
    pub(super) fn forget(&mut self, lease: LeaseId, blocks: &[BlockId]) {
        self.stop_making(lease);
        self.end_making(lease);
        self.filling.retain(|block, _| !blocks.contains(block));
    }

    /// Of the lingering blocks, in order, those to look at now: at most `most`, others each time.
    pub(super) fn next_to_look_at(&mut self, lingering: &[BlockId], most: usize) -> Vec<BlockId> {
        let now = turn_about(lingering, self.looked_at, most);
        self.looked_at = now.last().copied();
        now
    }
}
