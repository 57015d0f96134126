// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of one block.
//!
//! # Theory of operation
//!
//! ```text
//!            take                 finish(all), sole holder
//! zeroable ─────────▶ zeroing ─────────────────────────────▶ ready
//!    ▲  ▲                │ lost, or still held                 │ lend
//!    │  └─ finish(part) ─┤                                     ▼
//!    │                   ▼         return                     lent ◀─┐
//!    │               draining ◀────────────────────────────── │     │ lend to
//!    └───────────────────┤ sole holder                               │ the same
//!     (nobody's)         ├──────────▶ kept ──────────────────────────┘ owner
//!                        └──────────▶ gone  (fresh: the kernel has the pages back)
//! ```
//!
//! *States* are those of the file system: each is a directory, and *gone* means that the file is
//! removed. *Events* are the methods of [`Block`]. Every other move is an [`IllegalMove`]. *The
//! claim*: [`Block::finish`] with all pages done makes a [`ZeroClaim`]. So does
//! [`Block::adopt_ready`], for a file that a finish put into `ready/` before a restart. Lending
//! consumes the claim. A block is therefore always cleared between two loans. *Unknown means
//! dirty*: a lost worker, a shared file and an unreadable name all lead to `draining`, and from
//! there the way to `ready` goes through clearing.

mod moves;
mod part;
mod reach;

use thiserror::Error;
use units::{BlockId, JobId, Pages, PoolKey, Uid};

pub use part::{Keep, Part};
pub use reach::{HeldBy, Proof, Reach, Unheld};
pub use wire::StateName;

/// The states for which [`Block::is_unlent`] is true.
pub(crate) const UNLENT: [StateName; 2] = [StateName::Zeroable, StateName::Ready];

/// The knowledge that every byte of a block is zero and that only the daemon can write to it.
///
/// Not `Clone`: the loan that relies on it consumes it. The claim covers the loan's ready pages.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a loan has so many ready pages as the claim that it spends says"]
pub struct ZeroClaim(Pages);

impl ZeroClaim {
    /// The pages that are zero; the claim is spent.
    #[must_use]
    pub fn spend(self) -> Pages {
        self.0
    }
}

/// Where a block is in its life.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    /// Free and possibly dirty behind its first `done` pages, which a worker that stopped early
    /// had finished.
    Zeroable {
        /// Pages from the start that need no clearing.
        done: Pages,
    },
    /// In a worker's hands.
    Zeroing {
        /// The worker's job.
        job: JobId,
        /// Pages from the start that were done before this job.
        done: Pages,
    },
    /// Free and known to be zero.
    Ready(ZeroClaim),
    /// In a client's hands.
    Lent(Part),
    /// Returned by a client (`Some`) or lost by a worker (`None`), and perhaps still reachable.
    Draining(Option<Part>),
    /// Returned, content preserved for its owner until `until` (seconds of `CLOCK_BOOTTIME`).
    Kept {
        /// The loan it was part of.
        part: Part,
        /// When it is given up.
        until: u64,
    },
}

/// A move that the life of a block does not have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("block {block} is {from}: it cannot be {event}")]
pub struct IllegalMove {
    /// The block.
    pub block: BlockId,
    /// Its state, unchanged.
    pub from: StateName,
    /// What was attempted.
    pub event: &'static str,
}

/// What becomes of a block after it has left a client or a lost worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Still reachable, or not yet known: ask again.
    Draining,
    /// Its content waits for its owner.
    Kept,
    /// It will be cleared in place.
    Zeroable,
    /// Truncate and unlink its file: the kernel takes the pages back.
    Gone,
}

/// One block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    id: BlockId,
    pool: PoolKey,
    state: State,
    /// Pages that may lack memory: of a file that is being filled for the first time, of an
    /// unbacked part that a client fills, or found without memory at start.
    missing: Pages,
    /// Pages of its borrower's file beyond the lent length.
    grown: Pages,
    /// What keeps it draining, as of the last look.
    hold: HeldBy,
}

impl Block {
    /// A block for `job`, before its file exists.
    #[must_use]
    pub fn new_zeroing(id: BlockId, pool: PoolKey, job: JobId) -> Self {
        let missing = pool.pages_per_block;
        Self {
            id,
            pool,
            state: State::Zeroing { job, done: Pages::ZERO },
            missing,
            grown: Pages::ZERO,
            hold: HeldBy::default(),
        }
    }

    /// A block for an unbacked part, before its file exists: the client's own faults fill it.
    #[must_use]
    pub fn new_lent_unbacked(id: BlockId, pool: PoolKey, part: Part) -> Self {
        let missing = part.pages;
        Self {
            id,
            pool,
            state: State::Lent(part),
            missing,
            grown: Pages::ZERO,
            hold: HeldBy::default(),
        }
    }

    fn adopted(id: BlockId, pool: PoolKey, state: State) -> Self {
        let (missing, grown) = (Pages::ZERO, Pages::ZERO);
        Self { id, pool, state, missing, grown, hold: HeldBy::default() }
    }

    /// A file found in `ready/` at start: a finish put it there, and `reach` shows that no other
    /// process could write since. Anything less certain makes it `draining`.
    #[must_use]
    pub fn adopt_ready(id: BlockId, pool: PoolKey, reach: &Reach) -> Self {
        let state = match reach {
            Reach::Nobody(_) | Reach::Sole => State::Ready(ZeroClaim(pool.pages_per_block)),
            Reach::Shared
            | Reach::Mapped
            | Reach::Pinned
            | Reach::Poisoned
            | Reach::Altered
            | Reach::Marked
            | Reach::Unknown => State::Draining(None),
        };
        Self::adopted(id, pool, state)
    }

    /// A file found at start with a live loan.
    #[must_use]
    pub fn adopt_lent(id: BlockId, pool: PoolKey, part: Part) -> Self {
        Self::adopted(id, pool, State::Lent(part))
    }

    /// A file found in `kept/` at start.
    #[must_use]
    pub fn adopt_kept(id: BlockId, pool: PoolKey, part: Part, until: u64) -> Self {
        Self::adopted(id, pool, State::Kept { part, until })
    }

    /// Any other file found at start: dirty, and perhaps reachable.
    #[must_use]
    pub fn adopt_unknown(id: BlockId, pool: PoolKey, part: Option<Part>) -> Self {
        Self::adopted(id, pool, State::Draining(part))
    }

    /// The same block, with memory for only `allocated` of its pages.
    #[must_use]
    pub fn with_memory(mut self, allocated: Pages) -> Self {
        self.missing = self.pages().saturating_sub(allocated);
        self
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> BlockId {
        self.id
    }

    /// The pool with the same shape.
    #[must_use]
    pub fn pool(&self) -> PoolKey {
        self.pool
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Its state's name.
    #[must_use]
    pub fn state_name(&self) -> StateName {
        match self.state {
            State::Zeroable { .. } => StateName::Zeroable,
            State::Zeroing { .. } => StateName::Zeroing,
            State::Ready(_) => StateName::Ready,
            State::Lent(_) => StateName::Lent,
            State::Draining(_) => StateName::Draining,
            State::Kept { .. } => StateName::Kept,
        }
    }

    /// The file's length in pages.
    #[must_use]
    pub fn pages(&self) -> Pages {
        match &self.state {
            State::Lent(part) | State::Draining(Some(part)) | State::Kept { part, .. } => {
                part.pages
            }
            _ => self.pool.pages_per_block,
        }
    }

    /// Pages that may lack memory. Filling them takes them from the kernel's pool.
    #[must_use]
    pub fn missing(&self) -> Pages {
        self.missing
    }

    /// Pages that have memory for sure: what the kernel gets back with the block.
    #[must_use]
    pub fn memory(&self) -> Pages {
        self.pages().saturating_sub(self.missing)
    }

    /// Pages of its borrower's file beyond the lent length: fallocate(2) takes them out of the
    /// kernel's pool for any process that has the file open.
    #[must_use]
    pub fn grown(&self) -> Pages {
        self.grown
    }

    /// The account that pays for it, and the number of pages.
    #[must_use]
    pub fn held(&self) -> Option<(Uid, Pages)> {
        match &self.state {
            State::Lent(part) | State::Draining(Some(part)) | State::Kept { part, .. } => {
                Some((part.account, part.pages + self.grown))
            }
            _ => None,
        }
    }

    fn illegal<T>(&self, event: &'static str) -> Result<T, IllegalMove> {
        Err(IllegalMove { block: self.id, from: self.state_name(), event })
    }

    /// Whether it may be given back to the kernel now: it holds no kept content and no worker has
    /// it.
    #[must_use]
    pub fn is_unlent(&self) -> bool {
        UNLENT.contains(&self.state_name())
    }
}
