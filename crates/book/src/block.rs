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
//!    │               lingering ◀────────────────────────────── │     │ lend to
//!    └───────────────────┤ sole holder                               │ the same
//!     (nobody's)         ├──────────▶ kept ──────────────────────────┘ owner
//!                        └──────────▶ gone  (fresh: the kernel has the pages back)
//! ```
//!
//! *States*: those of the file system, where each is a directory; *gone* is no file at all.
//! *Events*: the methods of [`Block`]. Every other move is an [`IllegalMove`].
//! *The claim*: only [`Block::finish`] with all pages done, and [`Block::adopt_ready`] for a file
//! that such a finish put into `ready/` before a restart, make a [`ZeroClaim`]; lending consumes
//! it. A block therefore cannot be lent twice without having been cleared in between.
//! *Unknown means dirty*: a lost worker, a shared file, an unreadable name all lead to
//! `lingering`, and from there only through clearing back to `ready`.

use thiserror::Error;

use crate::config::Recycle;

use units::{BlockId, JobId, LeaseId, LoanName, Owner, Pages, PoolKey, Uid};
pub use wire::StateName;

/// The states of which [`Block::is_unlent`] is true.
pub(crate) const UNLENT: [StateName; 2] = [StateName::Zeroable, StateName::Ready];

/// The knowledge that every byte of a block is zero and that nobody else can write to it.
///
/// Not `Clone`: it is consumed by the loan that relies on it, whose ready pages are the claim's.
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

/// What shows that a block is nobody's: that nobody has it open, maps it, pins a page of it or is
/// about to open it. Implemented by the shell, for what its looks at the kernel make and nothing
/// else can.
pub trait Proof {}

/// The knowledge that a block is nobody's, which a [`Proof`] makes.
///
/// Not `Clone`: it is spent by the move that relies on it.
#[derive(Debug, PartialEq, Eq)]
pub struct Unheld(());

impl Unheld {
    /// Spends the proof.
    #[must_use]
    pub fn by(proof: impl Proof) -> Self {
        drop(proof);
        Self(())
    }
}

/// Whether anybody but the daemon can still reach a block's memory, as proven by the kernel.
#[derive(Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nobody.
    Nobody(Unheld),
    /// The daemon's descriptor is the only one, and nothing maps the file. Whether its pages are
    /// pinned cannot be told here, or somebody has a name of it (`O_PATH`).
    Sole,
    /// Another descriptor exists.
    Shared,
    /// Another mapping exists.
    Mapped,
    /// Pages of it are pinned: what I/O began on them is not over.
    Pinned,
    /// Nobody, but pages of it have a memory error: nobody may get it again. Given back, those stay
    /// with the kernel and the others are free.
    Poisoned,
    /// This kernel cannot tell; only the kernel's own isolation (`fresh`) is safe.
    Unknown,
}

/// By what a lingering block is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Hold {
    /// A descriptor; or nobody has looked yet.
    #[default]
    Open,
    /// A mapping.
    Mapped,
    /// Pinned pages.
    Pinned,
}

/// Why a block may be cleared where it lies: nothing else lets it.
enum InPlace {
    /// It is nobody's.
    Proven,
    /// Nobody has it open or maps it, and the operator has said that nobody pins what is returned.
    Trusted,
}

impl InPlace {
    /// `is_named`: a loan by name goes to whoever the agent gives it to, which the operator's word
    /// for borrowers is not about.
    fn of(reach: &Reach, recycle: Recycle, is_named: bool) -> Option<Self> {
        match (reach, recycle) {
            (Reach::Nobody(Unheld(())), Recycle::Auto | Recycle::InPlace) => Some(Self::Proven),
            (Reach::Sole, Recycle::InPlace) if !is_named => Some(Self::Trusted),
            _ => None,
        }
    }
}

/// Who returns to content that was left, and until when it stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// The owner's name.
    pub owner: Owner,
    /// The scope of the loan's name, if it has one: an owner is one within its scope, and one of a
    /// loan that lasts by a descriptor is none of them.
    pub scope: Option<String>,
    /// How long content stays after its return, in seconds.
    pub seconds: u64,
}

/// One block's part in a loan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The loan.
    pub lease: LeaseId,
    /// This block's place in the loan, from 0, in the order in which it is mapped.
    pub index: u32,
    /// The borrower.
    pub uid: Uid,
    /// The user whose quota it counts against: the borrower, or whose subordinate it is.
    pub account: Uid,
    /// What to do with the content on return; `None` is to clear it.
    pub keep: Option<Keep>,
    /// The file's length while lent: a trimmed or grown block differs from its pool's shape.
    pub pages: Pages,
    /// By what name the loan lasts, with nobody's descriptor. While it is lent that is the loan;
    /// afterwards it says how it was held.
    pub name: Option<LoanName>,
}

impl Part {
    /// Who returns to it: an owner, and the scope in which it is one.
    pub(crate) fn keeper(&self) -> Option<(&Owner, Option<&str>)> {
        self.keep.as_ref().map(|keep| (&keep.owner, keep.scope.as_deref()))
    }

    /// The scope of the name that its loan has or had, empty for a name without one; `None` for a
    /// loan without a name.
    #[must_use]
    pub fn scope(&self) -> Option<&str> {
        let kept = self.keep.as_ref().and_then(|keep| keep.scope.as_deref());
        self.name.as_ref().map(|name| name.scope().unwrap_or_default()).or(kept)
    }

    /// The same that is kept for nobody. What was lent by a name is not forgotten to have been.
    pub(crate) fn given_up(self) -> Self {
        let named = self.keep.filter(|keep| keep.scope.is_some());
        Self { keep: named.map(|keep| Keep { seconds: 0, ..keep }), ..self }
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
    Lingering(Option<Part>),
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
    Lingering,
    /// Its content waits for its owner.
    Kept,
    /// It will be cleared in place.
    Zeroable,
    /// Its file is to be truncated and unlinked: the kernel takes the pages back.
    Gone,
}

/// One block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    id: BlockId,
    pool: PoolKey,
    state: State,
    /// Pages that may have no memory yet: of a file that is being filled for the first time, of a
    /// hole that a client fills, of whatever was found so at start.
    missing: Pages,
    /// Pages that its borrower's file was seen to have beyond what was lent.
    grown: Pages,
    /// What keeps it lingering, as of the last look.
    hold: Hold,
}

impl Block {
    /// A block whose file is about to be made for `job`.
    #[must_use]
    pub fn new_zeroing(id: BlockId, pool: PoolKey, job: JobId) -> Self {
        let missing = pool.pages_per_block;
        Self {
            id,
            pool,
            state: State::Zeroing { job, done: Pages::ZERO },
            missing,
            grown: Pages::ZERO,
            hold: Hold::default(),
        }
    }

    /// A block whose file is about to be made as a hole for a client: its own faults fill it.
    #[must_use]
    pub fn new_lent_hole(id: BlockId, pool: PoolKey, part: Part) -> Self {
        let missing = part.pages;
        Self {
            id,
            pool,
            state: State::Lent(part),
            missing,
            grown: Pages::ZERO,
            hold: Hold::default(),
        }
    }

    fn adopted(id: BlockId, pool: PoolKey, state: State) -> Self {
        let (missing, grown) = (Pages::ZERO, Pages::ZERO);
        Self { id, pool, state, missing, grown, hold: Hold::default() }
    }

    /// A file found in `ready/` at start: a finish put it there, and `reach` shows that nobody
    /// could write since. Anything less certain makes it `lingering`.
    #[must_use]
    pub fn adopt_ready(id: BlockId, pool: PoolKey, reach: &Reach) -> Self {
        let state = match reach {
            Reach::Nobody(_) | Reach::Sole => State::Ready(ZeroClaim(pool.pages_per_block)),
            Reach::Shared | Reach::Mapped | Reach::Pinned | Reach::Poisoned | Reach::Unknown => {
                State::Lingering(None)
            }
        };
        Self::adopted(id, pool, state)
    }

    /// A file found at start whose loan is still alive.
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
        Self::adopted(id, pool, State::Lingering(part))
    }

    /// The same block, of whose pages only `allocated` have memory.
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

    /// The pool whose shape it has.
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
            State::Lingering(_) => StateName::Lingering,
            State::Kept { .. } => StateName::Kept,
        }
    }

    /// The file's length in pages.
    #[must_use]
    pub fn pages(&self) -> Pages {
        match &self.state {
            State::Lent(part) | State::Lingering(Some(part)) | State::Kept { part, .. } => {
                part.pages
            }
            _ => self.pool.pages_per_block,
        }
    }

    /// Pages that may have no memory yet. Whoever fills them takes them from the kernel's pool.
    #[must_use]
    pub fn missing(&self) -> Pages {
        self.missing
    }

    /// Pages that have memory for sure: what the kernel gets back with the block.
    #[must_use]
    pub fn memory(&self) -> Pages {
        self.pages().saturating_sub(self.missing)
    }

    /// Pages that its borrower's file was seen to have beyond what was lent: fallocate(2) gives
    /// them out of the kernel's pool to whoever has a file of it.
    #[must_use]
    pub fn grown(&self) -> Pages {
        self.grown
    }

    /// Whose quota it counts against, and for how many pages.
    #[must_use]
    pub fn held(&self) -> Option<(Uid, Pages)> {
        match &self.state {
            State::Lent(part) | State::Lingering(Some(part)) | State::Kept { part, .. } => {
                Some((part.account, part.pages + self.grown))
            }
            _ => None,
        }
    }

    fn illegal<T>(&self, event: &'static str) -> Result<T, IllegalMove> {
        Err(IllegalMove { block: self.id, from: self.state_name(), event })
    }

    /// zeroable → zeroing. Returns the page at which the worker starts.
    ///
    /// # Errors
    /// [`IllegalMove`] from any other state.
    pub fn take(&mut self, job: JobId) -> Result<Pages, IllegalMove> {
        let State::Zeroable { done } = self.state else { return self.illegal("taken to zero") };
        self.state = State::Zeroing { job, done };
        Ok(done)
    }

    /// zeroing → ready, if `pages_done` is all of it and the worker let go; zeroing → zeroable,
    /// if it stopped early and let go; else zeroing → lingering.
    ///
    /// `pages_done` counts from the block's start. More than the block has is a worker's lie and
    /// makes the block lingering.
    ///
    /// # Errors
    /// [`IllegalMove`] unless `job` holds the block.
    pub fn finish(
        &mut self,
        job: JobId,
        pages_done: Pages,
        reach: Reach,
        trust_unknown_reach: bool,
    ) -> Result<StateName, IllegalMove> {
        let State::Zeroing { job: holder, done } = self.state else {
            return self.illegal("finished");
        };
        if holder != job {
            return self.illegal("finished by another job");
        }
        let let_go = match reach {
            Reach::Nobody(_) | Reach::Sole => true,
            Reach::Shared | Reach::Mapped | Reach::Pinned | Reach::Poisoned => false,
            Reach::Unknown => trust_unknown_reach,
        };
        let all = self.pool.pages_per_block;
        self.state = if !let_go || pages_done > all || pages_done < done {
            State::Lingering(None)
        } else {
            // What is done has memory; what is not may have it already, from before.
            self.missing = self.missing.min(all.saturating_sub(pages_done));
            if pages_done == all {
                State::Ready(ZeroClaim(all))
            } else {
                State::Zeroable { done: pages_done }
            }
        };
        Ok(self.state_name())
    }

    /// zeroing → lingering: the worker is gone without a word.
    ///
    /// # Errors
    /// [`IllegalMove`] unless `job` holds the block.
    pub fn lose(&mut self, job: JobId) -> Result<(), IllegalMove> {
        match self.state {
            State::Zeroing { job: holder, .. } if holder == job => {
                self.state = State::Lingering(None);
                Ok(())
            }
            _ => self.illegal("lost by its job"),
        }
    }

    /// ready → lent. Returns the claim, for the loan to spend.
    ///
    /// # Errors
    /// [`IllegalMove`] from any other state.
    pub fn lend(&mut self, part: Part) -> Result<ZeroClaim, IllegalMove> {
        let State::Ready(_) = self.state else { return self.illegal("lent") };
        self.missing = part.pages.saturating_sub(self.pool.pages_per_block);
        match std::mem::replace(&mut self.state, State::Lent(part)) {
            State::Ready(claim) => Ok(claim),
            _ => self.illegal("lent"),
        }
    }

    /// kept → lent, to the owner it was kept for, content and all.
    ///
    /// # Errors
    /// [`IllegalMove`] from any other state, and for any other owner or uid.
    pub fn lend_again(&mut self, part: Part) -> Result<(), IllegalMove> {
        match &self.state {
            State::Kept { part: old, .. }
                if old.uid == part.uid
                    && old.keeper().is_some()
                    && old.keeper() == part.keeper() =>
            {
                self.state = State::Lent(part);
                Ok(())
            }
            _ => self.illegal("lent again to its owner"),
        }
    }

    /// lent → lent: from now on the loan lasts by its name, and its owner has it: what it leaves
    /// is kept for so long.
    ///
    /// # Errors
    /// [`IllegalMove`] unless it is lent under `lease`, by no name.
    pub fn hold_by_name(
        &mut self,
        lease: LeaseId,
        name: LoanName,
        keep_seconds: u64,
    ) -> Result<(), IllegalMove> {
        match &mut self.state {
            State::Lent(part) if part.lease == lease && part.name.is_none() => {
                part.name = Some(name);
                if let Some(keep) = &mut part.keep {
                    keep.seconds = keep_seconds;
                }
                Ok(())
            }
            _ => self.illegal("given that name"),
        }
    }

    /// Notes that the owner of a lent block has it: what it leaves is kept for so long. Returns
    /// whether that is new; no-op in any other state, for a block without an owner, and for one
    /// that lasts by a name.
    pub(crate) fn keep_for(&mut self, seconds: u64) -> bool {
        match &mut self.state {
            State::Lent(Part { keep: Some(keep), name: None, .. }) if keep.scope.is_none() => {
                std::mem::replace(&mut keep.seconds, seconds) != seconds
            }
            _ => false,
        }
    }

    /// lent → lingering: the lease ended.
    ///
    /// # Errors
    /// [`IllegalMove`] unless it is lent under `lease`.
    pub fn give_back(&mut self, lease: LeaseId) -> Result<(), IllegalMove> {
        match &self.state {
            State::Lent(part) if part.lease == lease => {
                self.state = State::Lingering(Some(part.clone()));
                Ok(())
            }
            _ => self.illegal("returned by that lease"),
        }
    }

    /// Notes that nothing of what is lent is kept for its owner. No-op in any other state.
    pub(crate) fn keep_nothing(&mut self) {
        if let State::Lent(part) = &mut self.state {
            part.keep = None;
        }
    }

    /// Notes that the file of a block in a borrower's hands, or of one that it returned and may
    /// still have, has memory for `allocated` pages. No-op in any other state.
    pub fn note_growth(&mut self, allocated: Pages) {
        if matches!(self.state, State::Lent(_) | State::Lingering(Some(_))) {
            self.grown = allocated.saturating_sub(self.pages());
        }
    }

    /// Notes that only `allocated` pages of a lingering block have memory: its borrower may have
    /// filled holes, made some, or cut the file. No-op in any other state.
    pub fn note_memory(&mut self, allocated: Pages) {
        if matches!(self.state, State::Lingering(_)) {
            self.missing = self.pages().saturating_sub(allocated);
        }
    }

    /// Notes that the first `filled` pages of a block just lent as a hole have memory now. No-op in
    /// any other state.
    pub fn note_filled(&mut self, filled: Pages) {
        if matches!(self.state, State::Lent(_)) {
            self.missing = self.pages().saturating_sub(filled);
        }
    }

    /// What keeps a lingering block from settling, as of the last look.
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.hold
    }

    /// lingering → kept, zeroable or gone, once nobody can reach it.
    ///
    /// `recycle` is its pool's. A block that lost its pool's shape, one with a hole, whose filling
    /// would take pages that nobody counted, one with memory errors, and one whose reach the kernel
    /// cannot tell are always given back to the kernel.
    ///
    /// # Errors
    /// [`IllegalMove`] from any other state.
    pub fn settle(
        &mut self,
        reach: Reach,
        recycle: Recycle,
        now: u64,
    ) -> Result<Settled, IllegalMove> {
        let State::Lingering(part) = &self.state else { return self.illegal("settled") };
        let hold = match reach {
            Reach::Shared => Some(Hold::Open),
            Reach::Mapped => Some(Hold::Mapped),
            Reach::Pinned => Some(Hold::Pinned),
            Reach::Poisoned | Reach::Unknown => return Ok(Settled::Gone),
            Reach::Nobody(_) | Reach::Sole => None,
        };
        if let Some(hold) = hold {
            self.hold = hold;
            return Ok(Settled::Lingering);
        }
        // A block that stays gets its length back, one that goes is counted no more.
        self.grown = Pages::ZERO;
        // Nobody has looked yet when it lingers the next time.
        self.hold = Hold::default();
        let is_named = part.as_ref().is_some_and(|part| part.scope().is_some());
        if let Some(part) = part
            && let Some(keep) = &part.keep
            && keep.seconds > 0
            && (!is_named || self.is_kept_by_name(&reach))
        {
            let until = now.saturating_add(keep.seconds);
            // By its owner it comes back, and by what name is another loan's business.
            self.state = State::Kept { part: Part { name: None, ..part.clone() }, until };
            return Ok(Settled::Kept);
        }
        let whole = self.pages() == self.pool.pages_per_block && self.missing == Pages::ZERO;
        match InPlace::of(&reach, recycle, is_named) {
            Some(key) if whole => {
                self.clear_where_it_lies(&key);
                Ok(Settled::Zeroable)
            }
            _ => Ok(Settled::Gone),
        }
    }

    /// Whether what was lent by a name may be kept. Whoever is left with a name of its file would
    /// have its content again; and who gets it by a name may not fill a hole.
    fn is_kept_by_name(&self, reach: &Reach) -> bool {
        matches!(reach, Reach::Nobody(_)) && self.missing == Pages::ZERO
    }

    fn clear_where_it_lies(&mut self, _key: &InPlace) {
        self.state = State::Zeroable { done: Pages::ZERO };
    }

    /// kept → lingering: the owner did not come back in time, or gave it up.
    ///
    /// # Errors
    /// [`IllegalMove`] from any other state.
    pub fn give_up(&mut self) -> Result<(), IllegalMove> {
        let State::Kept { part, .. } = &self.state else { return self.illegal("given up") };
        self.state = State::Lingering(Some(part.clone().given_up()));
        Ok(())
    }

    /// Whether it may be given back to the kernel now: nobody's content, nobody's work.
    #[must_use]
    pub fn is_unlent(&self) -> bool {
        UNLENT.contains(&self.state_name())
    }
}
