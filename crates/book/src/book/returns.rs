// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Returned blocks, kept content, and pages given back to the kernel.

use units::{BlockId, Bytes, LeaseId, Node, PageSize, Pages, PoolKey};

use super::{Book, Effect, LeaseEntry};
use crate::block::{Block, Reach, Settled, State, StateName};

impl Book {
    /// The lease's last descriptor was closed. Its blocks are draining until [`Book::settle`].
    pub fn end_lease(&mut self, lease: LeaseId) -> Vec<Effect> {
        let Some(ended) = self.leases.remove(&lease) else { return Vec::new() };
        if let Some(name) = &ended.name {
            self.names.remove(name);
        }
        let mut effects = Vec::new();
        for id in ended.blocks {
            if let Some(Ok(())) = self.blocks.change(id, |b| b.put_back(lease)) {
                effects.push(Effect::Move(id));
            }
        }
        effects
    }

    /// A loan without a name has reached its borrower: from now on its owner's content is kept.
    /// Earlier, new memory would be kept as zeros for an owner that never had it. No-op for a loan
    /// of kept content, one that keeps no content, one with a name, and one that is gone.
    pub fn sent(&mut self, lease: LeaseId) -> Vec<Effect> {
        let Some(LeaseEntry { blocks, keep_seconds, name: None, .. }) = self.leases.get(&lease)
        else {
            return Vec::new();
        };
        let (blocks, seconds) = (blocks.clone(), *keep_seconds);
        let is_new = |id: &BlockId| self.blocks.change(*id, |b| b.keep_for(seconds)) == Some(true);
        blocks.into_iter().filter(is_new).map(Effect::Mark).collect()
    }

    /// An [`Effect::Mark`] could not be carried out: nothing of the block is kept for its owner, as
    /// its file's name says.
    pub fn mark_failed(&mut self, block: BlockId) {
        self.blocks.change(block, |b| b.keep_for(0));
    }

    /// Ends a loan without keeping content for its owner.
    pub fn end_unkept(&mut self, lease: LeaseId) -> Vec<Effect> {
        for block in self.lease_blocks(lease) {
            self.blocks.change(block, Block::keep_nothing);
        }
        self.end_lease(lease)
    }

    /// Ends a loan and gives its files back to the kernel as they are, or the draining files of an
    /// ended loan; `None` without either. Processes that still have a file find it empty: as with
    /// *fresh*, the kernel keeps pinned pages until they are unpinned.
    pub fn revoke(&mut self, lease: LeaseId) -> Option<(Bytes, Vec<Effect>)> {
        let was_alive = self.leases.contains_key(&lease);
        self.end_lease(lease);
        let of_it =
            |b: &&Block| matches!(b.state(), State::Draining(Some(part)) if part.lease == lease);
        let blocks: Vec<_> =
            self.in_state(StateName::Draining).filter(of_it).map(Block::id).collect();
        let removed: Vec<_> = blocks.into_iter().filter_map(|id| self.blocks.remove(id)).collect();
        let bytes = removed.iter().map(|b| b.pages().bytes(b.pool().page_size)).sum();
        let effects: Vec<_> = removed.iter().map(|b| Effect::Remove(b.id())).collect();
        (was_alive || !effects.is_empty()).then_some((bytes, effects))
    }

    /// Tells how many pages of a draining block have memory, to be called before
    /// [`Book::settle`] where the block may be cleared in place.
    ///
    /// A borrower can punch holes into its file and change its length. An incomplete block is given
    /// back: clearing it would take uncounted pages, or kill the worker that finds none. For a file
    /// of another length than its block, say that it has none.
    pub fn record_memory(&mut self, block: BlockId, allocated: Pages) {
        self.blocks.change(block, |b| b.record_memory(allocated));
    }

    /// Tells who can reach a draining block. Returns what became of it, or `None` if it is not
    /// draining (any more).
    ///
    /// Only a file with unknown users is unlinked with all its pages. Every other is truncated
    /// first, so that processes with a name of it find it empty.
    pub fn settle(
        &mut self,
        block: BlockId,
        reach: Reach,
        now: u64,
    ) -> Option<(Settled, Vec<Effect>)> {
        let recycle = self.recycling(self.blocks.get(block)?.pool());
        let is_unknown = matches!(reach, Reach::Unknown);
        let settled = self.blocks.change(block, |b| b.settle(reach, recycle, now))?.ok()?;
        let effects = match settled {
            Settled::Draining => Vec::new(),
            // A crash may have left the file at its length from before the loan.
            Settled::Kept | Settled::Zeroable => {
                let pages = self.blocks.get(block).map(Block::pages)?;
                vec![Effect::Resize { block, pages }, Effect::Move(block)]
            }
            Settled::Gone => {
                self.blocks.remove(block);
                vec![if is_unknown { Effect::Unlink(block) } else { Effect::Remove(block) }]
            }
        };
        Some((settled, effects))
    }

    /// Gives a free, unlent block back to the kernel; `None` if it is in use.
    pub fn discard(&mut self, block: BlockId) -> Option<Vec<Effect>> {
        self.blocks.get(block).filter(|b| b.is_unlent())?;
        self.blocks.remove(block)?;
        Some(vec![Effect::Remove(block)])
    }

    /// Gives up kept content at the end of its time: the block is draining, and is settled like any
    /// return.
    pub fn expire(&mut self, now: u64) -> Vec<Effect> {
        let over = |state: &State| matches!(state, State::Kept { until, .. } if *until <= now);
        let kept = self.in_state(StateName::Kept);
        let late: Vec<_> = kept.filter(|b| over(b.state())).map(Block::id).collect();
        late.into_iter()
            .filter(|id| matches!(self.blocks.change(*id, Block::give_up), Some(Ok(()))))
            .map(Effect::Move)
            .collect()
    }

    /// Seconds of `CLOCK_BOOTTIME` at which the next kept content is given up.
    #[must_use]
    pub fn next_expiry(&self) -> Option<u64> {
        self.in_state(StateName::Kept)
            .filter_map(|b| match b.state() {
                State::Kept { until, .. } => Some(*until),
                _ => None,
            })
            .min()
    }

    /// Gives unlent blocks back to the kernel until `pages` are, dirty ones first.
    /// Returns how many pages that is: whole blocks, so perhaps more, or fewer if there are none.
    pub fn release(
        &mut self,
        node: Option<Node>,
        page_size: Option<PageSize>,
        pages: Pages,
    ) -> (Bytes, Vec<Effect>) {
        self.remove_unlent(pages, &[], |key| key.domain().fits(node, page_size))
    }

    pub(super) fn remove_unlent(
        &mut self,
        pages: Pages,
        spare: &[BlockId],
        fits: impl Fn(PoolKey) -> bool,
    ) -> (Bytes, Vec<Effect>) {
        let mut candidates: Vec<_> = self
            .blocks
            .iter()
            .filter(|b| b.is_unlent() && fits(b.pool()) && !spare.contains(&b.id()))
            .map(|b| (b.state_name() == StateName::Ready, b.memory(), b.id()))
            .collect();
        // Dirty before ready, small before large: give back no more than is needed.
        candidates.sort_unstable();
        self.remove_some(pages, candidates.into_iter().map(|(.., id)| id))
    }

    /// Removes unlent blocks, in this order, until the kernel has `pages` more.
    pub(super) fn remove_some(
        &mut self,
        pages: Pages,
        unlent: impl IntoIterator<Item = BlockId>,
    ) -> (Bytes, Vec<Effect>) {
        let (mut given, mut bytes, mut effects) = (Pages::ZERO, Bytes(0), Vec::new());
        for id in unlent {
            if given >= pages {
                break;
            }
            let Some(block) = self.blocks.remove(id) else { continue };
            let (domain, size) = (block.pool().domain(), block.memory());
            given += size;
            bytes += size.bytes(domain.page_size);
            if let Some(available) = self.available.get_mut(&domain) {
                *available += size;
            }
            effects.push(Effect::Remove(id));
        }
        self.counters.released_bytes += bytes;
        (bytes, effects)
    }

    /// Gives blocks back where the kernel's pool has fewer than `leave_free` pages, as others need
    /// them, and the unlent blocks of unwanted pools.
    pub fn relieve(&mut self) -> Vec<Effect> {
        let mut effects = self.dissolve();
        // The other sizes keep their blocks if the sizes with too many can give up enough.
        effects.extend(self.remix());
        let domains: Vec<_> = self.domains().collect();
        let mut short = Vec::new();
        for domain in domains {
            let here = |key: PoolKey| key.domain() == domain;
            let leave = self
                .pools
                .values()
                .filter(|p| here(p.config.key()))
                .map(|p| p.config.leave_free)
                .max()
                .unwrap_or_default();
            let Some(available) = self.available.get(&domain) else { continue };
            let missing = leave.saturating_sub(*available);
            if missing > Pages::ZERO {
                short.extend(self.remove_unlent(missing, &[], here).1);
            }
        }
        // Sizes may lack blocks by that, and others have too many.
        if !short.is_empty() {
            effects.append(&mut short);
            effects.extend(self.remix());
        }
        effects
    }
}
