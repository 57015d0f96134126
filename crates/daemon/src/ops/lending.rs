// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans: asking for them, granting them, and handing them over.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use book::block::StateName;
use book::journal::MAX_OWNED_CHARACTERS;
use book::{Asked, Loan, Named, Refusal};
use tokio_util::sync::CancellationToken;
use units::{BlockId, Bytes, Domain, JobId, LeaseId, LoanName, Owner, PageSize, Pages, Uid};
use wire::{Error as Refused, Hold, LendRequest};

use super::effects::Made;
use super::{Granted, Handover, Lease, LoanStep, Shell, failed};
use crate::base::error::{Error, Result};
use crate::base::user_queues::ClosedInQueue;
use crate::storage::kernel::Fill;

/// A debug build checks the first and last bytes of 32 blocks of each loan.
const MAX_VERIFIED_BLOCKS: usize = 32;

/// Attempts at a loan when a process turns out to reach a block of it.
const MAX_TRIES: usize = 4;

impl Shell {
    /// A request with what the daemon knows of its caller, as the book takes it. `by_groups` is
    /// what
    /// a borrower may hold by its groups; agents are bound by the quotas of the names' scopes.
    ///
    /// # Errors
    /// A value that the daemon does not take.
    pub(crate) fn ask(
        &mut self,
        mut request: LendRequest,
        caller: Uid,
        account: Uid,
        by_groups: Option<Bytes>,
    ) -> Result<Asked, Refused> {
        self.check_keep(request.owner.as_ref(), request.keep)?;
        if request.hold == Hold::Memory && !self.provable {
            return Err(Refused::bad_value(
                "held_by_memory",
                "this kernel does not tell who maps a block",
            ));
        }
        if let Hold::Name { name, uid, gid, .. } = &request.hold {
            check_owner(&request, name)?;
            check_ids(*uid, *gid)?;
            let agent = &self.config.agent;
            let (quota, most) = (agent.quota_for(name), agent.names);
            let named = Some(Named { name: name.clone(), quota, most });
            let uid = uid.unwrap_or(caller);
            request.single = true;
            return Ok(Asked { request, uid, account, quota: None, await_owner: true, named });
        }
        self.peers.record_groups(account, by_groups);
        let quota = self.config.quota_for(account, by_groups);
        Ok(Asked { request, uid: caller, account, quota, await_owner: true, named: None })
    }

    /// Checks that the daemon keeps content for an owner for this long.
    fn check_keep(&self, owner: Option<&Owner>, keep: Option<Duration>) -> Result<(), Refused> {
        let seconds = keep.map(|keep| keep.as_secs());
        if owner.is_none() && seconds.is_some() {
            return Err(Refused::bad_value("keep_seconds", "needs an owner to keep content for"));
        }
        let longest = self.config.keep_seconds_max;
        if seconds.is_some_and(|seconds| seconds > longest) {
            let reason = format!("is more than {longest}, the daemon's keep_seconds_max");
            return Err(Refused::bad_value("keep_seconds", reason));
        }
        Ok(())
    }

    /// Finds the loan of the requested name, or grants a new one. A refusal changes nothing.
    pub(crate) fn lend(
        &mut self,
        asked: &Asked,
        borrower: (u32, u32),
    ) -> Result<Result<LoanStep, Refusal>, wire::Error> {
        let is_named = asked.named.is_some();
        if let Some(found) = self.book.find(asked) {
            return Ok(found.map(LoanStep::Found));
        }
        if is_named || self.provider.shares_ready() {
            self.observed.expire();
        }
        self.observe();
        if is_named || asked.quota.is_some() {
            self.measure(asked.account);
        }
        let lent = self.tried(|shell| shell.try_lend(asked, borrower));
        let lent = lent.map_err(|error| failed(&error))?;
        let lent = lent.inspect_err(|refusal| self.record_refusal(asked, refusal));
        Ok(lent.map(LoanStep::Granted))
    }

    /// Tries until no other process reaches a block, [`MAX_TRIES`] times at most.
    fn tried<T>(&mut self, mut attempt: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        for _ in 1..MAX_TRIES {
            match attempt(self) {
                // Its blocks drain now. The next blocks may be unreachable.
                Err(Error::Reached(block)) => tracing::warn!(%block, "a ready block was reached"),
                result => return result,
            }
        }
        attempt(self)
    }

    /// Measures the pages of a user's files beyond the lent length, unless that happened moments
    /// ago. The holder of a file can grow it by fallocate(2), and the kernel has no call that
    /// forbids it.
    pub(super) fn measure(&mut self, account: Uid) {
        let begin = Instant::now();
        if !self.peers.is_measure_due(account) {
            return;
        }
        let blocks: Vec<_> =
            self.book.growable(account).map(|b| (b.id(), b.pool().page_size)).collect();
        for (block, page_size) in blocks {
            match self.store.allocated(block, page_size) {
                Ok(allocated) => self.book.record_growth(block, allocated),
                Err(error) => tracing::debug!(%error, %block, "cannot see what a file has"),
            }
        }
        self.peers.record_measured(account, begin);
    }

    fn try_lend(
        &mut self,
        asked: &Asked,
        borrower: (u32, u32),
    ) -> Result<Result<Granted, Refusal>> {
        let (granted, made) = self.apply(|book| book.lend(asked));
        let loan = match granted {
            Ok(loan) => loan,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.record_grant(&loan);
        self.judge_grant(asked, &loan);
        let lease = loan.lease;
        match self.hand_over(asked, loan, made, borrower) {
            Ok(granted) => Ok(Ok(granted)),
            Err(error) => {
                tracing::error!(%error, lease = lease.0, "a loan could not be handed over");
                self.end_lease(lease);
                Err(error)
            }
        }
    }

    /// The borrower has the loan's descriptors: from now on its content is its owner's.
    pub(crate) fn sent(&mut self, lease: LeaseId) {
        self.apply(|book| book.sent(lease));
    }

    /// The descriptors of a loan on their way to its borrower: see [`ClosedInQueue`].
    pub(crate) fn to_send(&self, lease: LeaseId, fds: Vec<OwnedFd>) -> ClosedInQueue {
        self.store.close_sent(self.book.lease_blocks(lease).first().copied(), fds)
    }

    fn hand_over(
        &mut self,
        asked: &Asked,
        loan: Loan,
        made: Vec<Made>,
        borrower: (u32, u32),
    ) -> Result<Granted> {
        let to_fill = made.iter().filter(|made| made.fill > Pages::ZERO);
        let to_fill = to_fill.map(|made| (made.block, made.fill)).collect();
        let blocks = self.open_parts(&loan, made, &to_fill, borrower)?;
        let by_memory = asked.request.hold == Hold::Memory;
        // The borrower has no descriptor yet, and so no lease on a file.
        if by_memory {
            loan.parts.iter().for_each(|part| self.store.open_to_watch(part.block));
        }
        let (lease, watch) = if asked.named.is_some() {
            (Lease::Name, None)
        } else {
            let (client, daemon) = self.leases.create(loan.lease, loan.page_size)?;
            (Lease::Descriptor(client), Some(daemon))
        };
        let fills = self.fills(&loan, &blocks, &to_fill);
        // The pages of unbacked parts stay reserved for the borrower until it maps them.
        for part in loan.parts.iter().filter(|part| part.ready < part.pages) {
            let domain = Domain { node: part.node, page_size: loan.page_size };
            let unbacked = part.pages.saturating_sub(part.ready);
            self.observed.unbacked.hand_out(part.block, domain, unbacked);
        }
        // Before any wait: the peer may go away during it.
        if by_memory {
            self.loans.memory_held.insert(loan.lease);
        }
        let stop = match lease {
            Lease::Name => self.loans.begin_making(loan.lease),
            Lease::Descriptor(_) => CancellationToken::new(),
        };
        Ok(Granted { handover: Handover { loan, lease, blocks }, watch, fills, stop })
    }

    /// Opens a loan's files and gives them to their borrower.
    fn open_parts(
        &self,
        loan: &Loan,
        made: Vec<Made>,
        to_fill: &BTreeMap<BlockId, Pages>,
        borrower: (u32, u32),
    ) -> Result<Vec<OwnedFd>> {
        let mut made: BTreeMap<_, _> =
            made.into_iter().map(|made| (made.block, made.file)).collect();
        let mut blocks = Vec::with_capacity(loan.parts.len());
        // Of a loan of hundreds of blocks, other blocks each time: other calls wait meanwhile.
        let verify_each = loan.parts.len().div_ceil(MAX_VERIFIED_BLOCKS);
        let verified_first = usize::try_from(loan.lease.0).unwrap_or_default() % verify_each.max(1);
        for (nth, part) in loan.parts.iter().enumerate() {
            let file = match made.remove(&part.block) {
                Some(file) => file,
                None => self.store.open_to_lend(part.block)?,
            };
            // To the borrower alone. `/proc/self/fd` must let it in: QEMU opens the file by that
            // path.
            file.give_access(borrower)?;
            let is_verified = cfg!(debug_assertions) && nth % verify_each == verified_first;
            if is_verified && !loan.kept && !to_fill.contains_key(&part.block) {
                verify_zero(&file, part.ready, loan.page_size)?;
            }
            blocks.push(file.into());
        }
        Ok(blocks)
    }

    /// The pages that a loan's new files take from the kernel's pool.
    fn fills(
        &mut self,
        loan: &Loan,
        files: &[OwnedFd],
        to_fill: &BTreeMap<BlockId, Pages>,
    ) -> Vec<Fill> {
        let mut fills = Vec::new();
        for (part, file) in loan.parts.iter().zip(files) {
            let Some(pages) = to_fill.get(&part.block).copied() else { continue };
            let domain = Domain { node: part.node, page_size: loan.page_size };
            match file.try_clone() {
                Ok(file) => {
                    fills.extend(self.provider.fill(part.block, file.into(), domain, pages));
                    self.loans.begin_filling(part.block, pages);
                }
                Err(error) => tracing::warn!(%error, "a loan stays an unbacked part"),
            }
        }
        fills
    }

    /// A loan's file has taken all the zeroed pages that it could.
    pub(crate) fn filled(&mut self, block: BlockId, filled: Pages) {
        let Some(planned) = self.loans.end_filling(block) else { return };
        self.book.record_filled(block, planned, filled);
        self.store.record_filled(block);
        self.observed.expire();
        self.changes.wake();
    }

    /// The making of page tables for a job's block, to wait for.
    pub(crate) fn tables_in_progress(&self, job: JobId) -> Option<crate::storage::tables::Making> {
        self.store.tables_in_progress(self.book.job(job)?.block()?)
    }

    /// Whether enough pages for a request are in transit between users, the kernel and workers.
    pub(crate) fn may_come(&self, request: &LendRequest) -> bool {
        let mut states = [StateName::Draining, StateName::Zeroing].into_iter();
        let ending = self.loans.memory_held.closed();
        let is_anything_on_its_way = !ending.is_empty()
            || self.store.user_queues().is_busy()
            // A page between the kernel's pool and a file that is being filled is in neither.
            || self.loans.filling().next().is_some()
            || states.any(|state| self.book.in_state(state).next().is_some());
        is_anything_on_its_way && self.book.can_be_served(request, &ending)
    }
}

/// Checks the user and the group that get a loan's file.
fn check_ids(uid: Option<Uid>, gid: Option<u32>) -> Result<(), Refused> {
    for (field, number) in [("uid", uid.map(|uid| uid.0)), ("gid", gid)] {
        // To chown(2) that is not to change it.
        if number == Some(u32::MAX) {
            return Err(Refused::bad_value(field, "4294967295 is the number of no user or group"));
        }
    }
    Ok(())
}

/// Checks that a loan by that name can have the requested owner.
fn check_owner(request: &LendRequest, name: &LoanName) -> Result<(), Refused> {
    let Some(owner) = &request.owner else { return Ok(()) };
    if name.scope().is_none() {
        let reason = "is one within the scope of its loan's name, which has none: name the loan as \
                      SCOPE/REST";
        return Err(Refused::bad_value("owner", reason));
    }
    if !request.whole {
        let reason = "keeps nothing of a file that has an unbacked part: ask for the loan whole";
        return Err(Refused::bad_value("owner", reason));
    }
    let length = owner.as_str().len() + name.as_str().len();
    if length > MAX_OWNED_CHARACTERS {
        let reason = format!(
            "and the loan's name have {length} characters, more than the {MAX_OWNED_CHARACTERS} for which a \
             block's file name has room"
        );
        return Err(Refused::bad_value("owner", reason));
    }
    Ok(())
}

/// Debug builds check the first and last 4 KiB of every ready page before they lend it.
fn verify_zero(file: &linux::BlockFile, ready: Pages, page_size: PageSize) -> Result<()> {
    for page in 0..ready.0 {
        let start = page * page_size.bytes();
        let end = start + page_size.bytes();
        for range in [start..start + 4096, end - 4096..end] {
            let dirty = file.first_nonzero(range)?;
            assert_eq!(dirty, None, "page {page} of a ready block has a byte that is not zero");
        }
    }
    Ok(())
}
