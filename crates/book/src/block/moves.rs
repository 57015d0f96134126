// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The moves of a block from state to state, and what it learns in one.

use units::{JobId, LeaseId, LoanName, Pages};

use super::reach::InPlacePermit;
use super::{Block, HeldBy, IllegalMove, Part, Reach, Settled, State, StateName, ZeroClaim};
use crate::config::Recycle;

impl Block {
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
    /// if it stopped early and let go; else zeroing → draining.
    ///
    /// `pages_done` counts from the block's start. More than the block has is a worker's lie and
    /// makes the block draining.
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
        let lift_limit = match reach {
            Reach::Nobody(_) | Reach::Sole => true,
            Reach::Shared
            | Reach::Mapped
            | Reach::Pinned
            | Reach::Poisoned
            | Reach::Altered
            | Reach::Marked => false,
            Reach::Unknown => trust_unknown_reach,
        };
        let all = self.pool.pages_per_block;
        self.state = if !lift_limit || pages_done > all || pages_done < done {
            State::Draining(None)
        } else {
            // Pages that are done have memory. Other pages may have memory from an earlier attempt.
            self.missing = self.missing.min(all.saturating_sub(pages_done));
            if pages_done == all {
                State::Ready(ZeroClaim(all))
            } else {
                State::Zeroable { done: pages_done }
            }
        };
        Ok(self.state_name())
    }

    /// zeroing → draining: the worker is gone without a word.
    ///
    /// # Errors
    /// [`IllegalMove`] unless `job` holds the block.
    pub fn lose(&mut self, job: JobId) -> Result<(), IllegalMove> {
        match self.state {
            State::Zeroing { job: holder, .. } if holder == job => {
                self.state = State::Draining(None);
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
                    && old.kept_for().is_some()
                    && old.kept_for() == part.kept_for() =>
            {
                self.state = State::Lent(part);
                Ok(())
            }
            _ => self.illegal("lent again to its owner"),
        }
    }

    /// lent → lent: from now on the name holds the loan, and its owner has it: content that the
    /// owner leaves is kept for the given time.
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
                self.keep_for(keep_seconds);
                Ok(())
            }
            _ => self.illegal("given that name"),
        }
    }

    /// Notes for how long is kept what the owner of a lent block leaves. Returns whether that is
    /// new; no-op in any other state, and for a block without an owner.
    pub(crate) fn keep_for(&mut self, seconds: u64) -> bool {
        match &mut self.state {
            State::Lent(Part { keep: Some(keep), .. }) => {
                std::mem::replace(&mut keep.seconds, seconds) != seconds
            }
            _ => false,
        }
    }

    /// lent → draining: the lease ended.
    ///
    /// # Errors
    /// [`IllegalMove`] unless it is lent under `lease`.
    pub fn put_back(&mut self, lease: LeaseId) -> Result<(), IllegalMove> {
        match &self.state {
            State::Lent(part) if part.lease == lease => {
                self.state = State::Draining(Some(part.clone()));
                Ok(())
            }
            _ => self.illegal("returned by that lease"),
        }
    }

    /// Records that the content of the loan is not kept for its owner. No-op in any other state.
    pub(crate) fn keep_nothing(&mut self) {
        if let State::Lent(part) = &mut self.state {
            part.keep = None;
        }
    }

    /// Notes that the file of a block in a borrower's hands, or of one that it returned and may
    /// still have, has memory for `allocated` pages. No-op in any other state.
    pub fn record_growth(&mut self, allocated: Pages) {
        if matches!(self.state, State::Lent(_) | State::Draining(Some(_))) {
            self.grown = allocated.saturating_sub(self.pages());
        }
    }

    /// Notes that only `allocated` pages of a draining block have memory: its borrower may have
    /// filled unbacked parts, made some, or cut the file. No-op in any other state.
    pub fn record_memory(&mut self, allocated: Pages) {
        if matches!(self.state, State::Draining(_)) {
            self.missing = self.pages().saturating_sub(allocated);
        }
    }

    /// Notes that the first `filled` pages of a block just lent as an unbacked part have memory
    /// now. No-op in any other state.
    pub fn record_filled(&mut self, filled: Pages) {
        if matches!(self.state, State::Lent(_)) {
            self.missing = self.pages().saturating_sub(filled);
        }
    }

    /// What keeps a draining block from settling, as of the last look.
    #[must_use]
    pub fn held_by(&self) -> HeldBy {
        self.hold
    }

    /// draining → kept, zeroable or gone, once no process can reach it.
    ///
    /// `recycle` is its pool's. Some blocks always go back to the kernel, with kept content, too.
    /// These are blocks that lost their pool's shape, blocks with an unbacked part, since filling
    /// it would take uncounted pages, and blocks with an unknown reach. Blocks with memory errors
    /// go back as well, and so do files that their borrower altered or marked.
    ///
    /// # Errors
    /// [`IllegalMove`] from any other state.
    pub fn settle(
        &mut self,
        reach: Reach,
        recycle: Recycle,
        now: u64,
    ) -> Result<Settled, IllegalMove> {
        let State::Draining(part) = &self.state else { return self.illegal("settled") };
        let hold = match reach {
            Reach::Shared => Some(HeldBy::Open),
            Reach::Mapped => Some(HeldBy::Mapped),
            Reach::Pinned => Some(HeldBy::Pinned),
            Reach::Poisoned | Reach::Altered | Reach::Marked | Reach::Unknown => {
                return Ok(Settled::Gone);
            }
            Reach::Nobody(_) | Reach::Sole => None,
        };
        if let Some(hold) = hold {
            self.hold = hold;
            return Ok(Settled::Draining);
        }
        // A block that stays gets its length back, one that goes is counted no more.
        self.grown = Pages::ZERO;
        // The next time it is draining, it starts without a look.
        self.hold = HeldBy::default();
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
        match InPlacePermit::from_reach(&reach, recycle, is_named) {
            Some(key) if whole => {
                self.clear_where_it_lies(&key);
                Ok(Settled::Zeroable)
            }
            _ => Ok(Settled::Gone),
        }
    }

    /// Whether the content of a named loan may be kept. A process that still has a name of the file
    /// would see the content again. And a borrower that gets it by a name may not fill an unbacked
    /// part.
    fn is_kept_by_name(&self, reach: &Reach) -> bool {
        matches!(reach, Reach::Nobody(_)) && self.missing == Pages::ZERO
    }

    fn clear_where_it_lies(&mut self, _key: &InPlacePermit) {
        self.state = State::Zeroable { done: Pages::ZERO };
    }

    /// kept → draining: the owner did not come back in time, or gave it up.
    ///
    /// # Errors
    /// [`IllegalMove`] from any other state.
    pub fn give_up(&mut self) -> Result<(), IllegalMove> {
        let State::Kept { part, .. } = &self.state else { return self.illegal("given up") };
        self.state = State::Draining(Some(part.clone().given_up()));
        Ok(())
    }
}
