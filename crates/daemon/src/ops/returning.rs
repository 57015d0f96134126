// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of loans, and the check which processes still reach lent memory.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use book::Book;
use book::block::{HeldBy, Reach, Settled, State, StateName};
use linux::Roots;
use linux::meminfo::MemoryMeter;
use pins::Opened;
use units::{BlockId, Bytes, LeaseId, Uid};

use super::{MIN_HELD_PERIOD, Shell, boot_seconds};
use crate::peers::borrowers::LentFile;
use crate::storage::store::Returned;
use crate::storage::unmap_events::WatchedBlocks;

/// How often the daemon checks for memory errors of the kernel.
const MEMORY_ERROR_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Memory that the kernel had retired for errors at the last check.
#[derive(Debug)]
pub(super) struct MemoryErrors {
    meter: Option<MemoryMeter>,
    broken: Option<u64>,
    looked: Option<Instant>,
}

impl MemoryErrors {
    /// Opens the kernel's counts, which stay open.
    pub(super) fn open(roots: &Roots) -> Self {
        let meter = MemoryMeter::open(roots).inspect_err(
            |error| tracing::warn!(%error, "memory errors of free blocks are not seen"),
        );
        Self { meter: meter.ok(), broken: None, looked: None }
    }

    /// Whether the kernel has met another error since the last check.
    fn have_grown(&mut self) -> bool {
        if !self.is_due() {
            return false;
        }
        let memory = self.meter.as_ref().and_then(|meter| meter.read().ok());
        memory.and_then(|memory| memory.broken_bytes).is_some_and(|broken| self.is_new(broken))
    }

    /// Whether another check is due.
    fn is_due(&mut self) -> bool {
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= MEMORY_ERROR_POLL_INTERVAL);
        if is_due {
            self.looked = Some(Instant::now());
        }
        is_due
    }

    /// Whether there are more than at the last check. Takeover has checked the blocks for errors
    /// from before the first one.
    fn is_new(&mut self, broken: u64) -> bool {
        self.broken.replace(broken).is_some_and(|before| before < broken)
    }
}

impl Shell {
    /// The lease's last descriptor was closed. That ends the loan, unless its memory holds it.
    /// `end` is the daemon's end, if there is one. Its close waits for the process that closes the
    /// other end: the last step of that, under the pipe's lock, wakes the daemon.
    pub(crate) fn close_lease(&mut self, lease: LeaseId, end: Option<OwnedFd>) {
        if let Some(end) = end {
            let borrower = self.borrower_of(&self.book.lease_blocks(lease));
            self.store.user_queues().submit(borrower, move || drop(end));
        }
        if !self.loans.memory_held.close(lease) {
            self.end_lease(lease);
            return;
        }
        let mut is_watched_now = false;
        for block in self.book.lease_blocks(lease) {
            is_watched_now |= self.store.watch(block, None);
        }
        // There is no event for earlier unmaps: a process loses its memory before its descriptors.
        if is_watched_now {
            self.end_if_unheld(lease);
        }
    }

    /// The blocks that are watched.
    pub(crate) fn watched(&self) -> &WatchedBlocks {
        self.store.watched()
    }

    /// The blocks that lost a description since the last call.
    pub(crate) fn closed_blocks(&mut self) -> Option<Vec<BlockId>> {
        self.store.closed()
    }

    /// Checks a block that lost a description. Returns whether another check may be worthwhile.
    pub(crate) fn look_at_closed(&mut self, block: BlockId) -> bool {
        match self.book.block(block).map(book::block::Block::state) {
            Some(State::Lent(part)) if self.loans.memory_held.is_closed(part.lease) => {
                let lease = part.lease;
                !self.end_if_unheld(lease)
            }
            Some(State::Draining(_)) => {
                self.settle(block);
                true
            }
            _ => false,
        }
    }

    /// Ends a loan that its memory no longer holds. Returns whether it did. A user queue checks
    /// blocks that must be opened for that, and [`settled`](Self::settled) takes its answer.
    fn end_if_unheld(&mut self, lease: LeaseId) -> bool {
        let mut unknown = Vec::new();
        for block in self.book.lease_blocks(lease) {
            match self.store.holders_while_lent(block) {
                Some(Opened::Open) => return false,
                Some(Opened::Named | Opened::Nobody) => {}
                None => unknown.push(block),
            }
        }
        if unknown.is_empty() {
            self.loans.memory_held.remove(lease);
            self.end_lease(lease);
            return true;
        }
        self.store.look_at_lent(&unknown);
        false
    }

    /// Ends loans that their memory no longer holds, of those with a lease closed for `age`. Checks
    /// `most` loans.
    fn end_unheld(&mut self, age: Duration, most: usize) {
        for lease in self.loans.memory_held.due(age, most) {
            self.end_if_unheld(lease);
        }
    }

    /// Ends a loan: its blocks are free when no process reaches them. No-op for an ended loan.
    pub(crate) fn end_lease(&mut self, lease: LeaseId) {
        self.end(lease, true);
    }

    /// The same; `keeps` the content for an owner that asked for that.
    pub(super) fn end(&mut self, lease: LeaseId, keeps: bool) {
        let blocks = self.book.lease_blocks(lease);
        self.forget_loan(lease, &blocks);
        if keeps {
            self.apply(|book| book.end_lease(lease));
        } else {
            self.apply(|book| book.end_unkept(lease));
        }
        for block in blocks {
            self.settle(block);
        }
    }

    /// Forgets what the daemon knows of a loan beside the book.
    fn forget_loan(&mut self, lease: LeaseId, blocks: &[BlockId]) {
        // In the queue that looks at the blocks then: a file that is bound is not recycled.
        if let Some(remove) = self.loan_paths.remove(lease) {
            self.store.submit_for(blocks.first().copied(), remove);
        }
        self.loans.forget(lease, blocks);
        self.observed.unbacked.forget(blocks);
        self.peers.borrowers.remove(lease);
        let borrower = self.borrower_of(blocks);
        if let Some(forget) = self.leases.remove(lease) {
            self.store.user_queues().submit(borrower, forget);
        }
    }

    /// The account that has blocks of one loan.
    fn borrower_of(&self, blocks: &[BlockId]) -> Option<Uid> {
        blocks.iter().find_map(|block| match self.book.block(*block)?.state() {
            State::Lent(part) => Some(part.account),
            _ => None,
        })
    }

    /// Takes a loan's memory away from every process: truncates and unlinks its files, in their
    /// user's queue. `None` if there is no such loan and no block of it drains.
    pub(crate) fn revoke(&mut self, lease: LeaseId) -> Option<Bytes> {
        let blocks = self.book.lease_blocks(lease);
        self.forget_loan(lease, &blocks);
        self.loans.memory_held.remove(lease);
        self.apply(|book| book.revoke(lease)).0
    }

    /// The files of all loans, or of one: their user, whether the loan has ended, and their
    /// identity.
    pub(crate) fn lent_files(&self, lease: Option<LeaseId>) -> Vec<LentFile> {
        let of = |block: &book::block::Block| {
            let (part, draining) = match block.state() {
                State::Lent(part) => (Some(part), false),
                State::Draining(part) => (part.as_ref(), true),
                _ => return None,
            };
            let its = part.map(|part| part.lease);
            if lease.is_some() && its != lease {
                return None;
            }
            Some(LentFile {
                lease: its,
                uid: part.map(|part| part.uid),
                draining,
                is_pinned: draining && block.held_by() == HeldBy::Pinned,
                domain: block.pool().domain(),
                pages: block.pages(),
                identity: self.store.identity(block.id()).ok()?,
            })
        };
        let states = [StateName::Lent, StateName::Draining];
        states.into_iter().flat_map(|state| self.book.in_state(state)).filter_map(of).collect()
    }

    /// Begins the check of a draining block; [`settled`](Self::settled) takes the answer.
    pub(super) fn settle(&mut self, block: BlockId) {
        let draining = |b: &&book::block::Block| b.state_name() == StateName::Draining;
        let Some(lent) = self.book.block(block).filter(draining).map(book::block::Block::pages)
        else {
            return;
        };
        if let Err(error) = self.store.look_at(block, lent) {
            tracing::warn!(%error, %block, "cannot tell who holds a block");
        }
    }

    /// A user queue has checked a draining block, or a block of a loan that its memory may hold.
    pub(crate) fn settled(&mut self, found: Returned) {
        self.store.looked(found.block);
        if let Some(State::Lent(part)) = self.book.block(found.block).map(book::block::Block::state)
        {
            let lease = part.lease;
            if found.reach != Reach::Shared && self.loans.memory_held.is_closed(lease) {
                self.loans.memory_held.remove(lease);
                self.end_lease(lease);
            }
            return;
        }
        if found.reach == Reach::Poisoned
            && self.apply(|book| book.discard(found.block)).0.is_some()
        {
            tracing::warn!(block = %found.block, "memory errors: a free block is given back");
            return;
        }
        // A client can truncate its file, grow it, or punch holes into it.
        self.book.record_memory(found.block, found.memory);
        let settled = self.apply(|book| book.settle(found.block, found.reach, boot_seconds())).0;
        if settled == Some(Settled::Draining) {
            // There is no event for a description that ended since the check.
            if self.store.watch(found.block, found.file) {
                self.settle(found.block);
            }
            return;
        }
        self.store.unwatch(found.block);
        if let Some(file) = found.file {
            self.store.close(found.block, file);
        }
    }

    /// Checks draining blocks, loans that their memory holds, and files that could not be removed:
    /// `most` of each, others each time. Returns how many blocks drain.
    ///
    /// While a loan waits for pages, this includes the youngest loans that their memory holds.
    pub(crate) fn settle_some(&mut self, most: usize) -> usize {
        let age = if self.peers.waiting.has_waiters() { Duration::ZERO } else { MIN_HELD_PERIOD };
        self.end_unheld(age, most);
        self.update_pin_sizes();
        self.see_errors();
        if self.store.remove_again(most) {
            self.observed.expire();
            self.changes.wake();
        }
        let draining: Vec<_> = self.book.in_state(StateName::Draining).map(|b| b.id()).collect();
        let now = self.loans.next_to_look_at(&draining, most);
        now.iter().for_each(|id| self.settle(*id));
        draining.len()
    }

    /// Has the free blocks checked within a second of another memory error.
    fn see_errors(&mut self) {
        if self.errors.have_grown() {
            self.store.check_memory_errors();
        }
    }

    /// Tells the book the page sizes with visible pins, and measures the others again.
    pub(super) fn update_pin_sizes(&mut self) {
        self.book.see_pins_of(self.store.proofs().sizes());
        if self.provable && self.provider.recycles() {
            self.store.measure_again(self.book.misses_pins_of());
        }
    }

    /// Releases kept content after its time. Returns the second of the next such moment.
    pub(crate) fn expire(&mut self) -> Option<u64> {
        self.apply(|book| book.expire(boot_seconds()));
        self.book.next_expiry()
    }

    /// Releases blocks where the kernel's pool has fewer free pages than `leave_free`.
    pub(crate) fn relieve(&mut self) {
        if self.drain_mode.is_on() {
            self.release_all();
        }
        self.apply(Book::relieve);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise P256.
    #[test]
    fn free_blocks_are_looked_at_once_for_each_memory_error() {
        let mut errors = MemoryErrors::open(&Roots::default());
        let looks = [0, 0, 2048, 2048, 4096, 2048].map(|broken| errors.is_new(broken));
        assert_eq!(looks, [false, false, true, false, true, false]);
        assert!(errors.is_due() && !errors.is_due(), "once a second");
    }
}
