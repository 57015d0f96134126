// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The entries of loans, and loans that last by a name instead of a descriptor.
//!
//! A named loan is one file. [`Book::lend`] makes it as any other, under a lease without a holder,
//! and the caller gets it ready for its borrower. A failure or a crash until then ends it like a
//! loan with a dead client. Then [`Book::hold_by_name`] puts the name into the file's name by one
//! rename, and this alone makes it last. [`Book::end_lease`] ends it, by one rename as well.
//!
//! The same rename hands it over. Until then new memory has no owner, and the file's name says so:
//! if the loan ends earlier, its owner gets none of it.
//!
//! A name is never two loans: granting the loan takes the name. Until the file has the name, the
//! loan is *pending*. The list includes it, since an agent that lists its loans to return them must
//! find this one too; its path is withheld.

use std::ops::Bound;

use units::{
    BlockId, Bytes, Domain, LeaseId, LoanName, Node, PageSize, Pages, PoolKey, Uid, tenant_of,
};
use wire::NamedLoan;
use wire::agent::{ReadyBlocks, Supply};

use super::lend::{Asked, LoanPart, Refusal};
use super::{Book, Effect};
use crate::block::{Block, Keep, Part, State, StateName};
use crate::policy::piece;

/// The entry of a loan.
#[derive(Debug)]
pub(super) struct LeaseEntry {
    pub(super) uid: Uid,
    pub(super) account: Uid,
    pub(super) blocks: Vec<BlockId>,
    /// By what name it lasts, or is about to.
    pub(super) name: Option<LoanName>,
    /// For how long content is kept after the loan, once its borrower has it.
    pub(super) keep_seconds: u64,
}

/// A loan by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldByName {
    /// The name.
    pub name: LoanName,
    /// The lease.
    pub lease: LeaseId,
    /// Its one block.
    pub block: BlockId,
    /// The user that owns its file.
    pub uid: Uid,
    /// Where its pages lie.
    pub node: Node,
    /// Their size.
    pub page_size: PageSize,
    /// How many they are.
    pub pages: Pages,
    /// Who returns to it.
    pub keep: Option<Keep>,
    /// Whether it is granted and not held by its name yet.
    pub is_pending: bool,
}

impl HeldByName {
    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.pages.bytes(self.page_size)
    }

    /// The loan as it is listed, without its path.
    #[must_use]
    pub fn listed(&self) -> NamedLoan {
        NamedLoan {
            name: self.name.to_string(),
            path: String::new(),
            bytes: self.bytes(),
            page_size: self.page_size,
            node: self.node,
            uid: self.uid,
            pending: self.is_pending,
        }
    }

    /// Whether it matches the request.
    #[must_use]
    pub fn fits(&self, asked: &Asked) -> bool {
        let request = &asked.request;
        request.bytes == self.bytes()
            && request.page_size.is_none_or(|size| size == self.page_size)
            && request.node.is_none_or(|node| node == self.node)
            && asked.uid == self.uid
            && asked.keep() == self.keep
    }
}

impl Book {
    /// Enters a loan that was granted, with its name.
    pub(super) fn enter(&mut self, lease: LeaseId, asked: &Asked, parts: &[LoanPart]) {
        let name = asked.named.as_ref().map(|named| named.name.clone());
        if let Some(name) = &name {
            self.names.insert(name.clone(), lease);
        }
        let keep_seconds = asked.keep().map_or(0, |keep| keep.seconds);
        let blocks = parts.iter().map(|part| part.block).collect();
        let Asked { uid, account, .. } = *asked;
        self.leases.insert(lease, LeaseEntry { uid, account, blocks, name, keep_seconds });
    }

    /// Enters the block of a loan that is found at start.
    pub(super) fn enter_found(&mut self, block: BlockId, part: &Part) {
        let Part { uid, account, name, .. } = part.clone();
        if let Some(name) = &name {
            self.names.insert(name.clone(), part.lease);
        }
        let new = || LeaseEntry { uid, account, blocks: Vec::new(), name, keep_seconds: 0 };
        self.leases.entry(part.lease).or_insert_with(new).blocks.push(block);
    }

    /// The loan of that name.
    #[must_use]
    pub fn named(&self, name: &LoanName) -> Option<HeldByName> {
        let id = *self.names.get(name)?;
        let lease = self.leases.get(&id)?;
        let block = self.blocks.get(*lease.blocks.first()?)?;
        let State::Lent(Part { uid, pages, keep, name: held_by, .. }) = block.state() else {
            return None;
        };
        Some(HeldByName {
            name: name.clone(),
            lease: id,
            block: block.id(),
            uid: *uid,
            node: block.pool().node,
            page_size: block.pool().page_size,
            pages: *pages,
            keep: keep.clone(),
            is_pending: held_by.is_none(),
        })
    }

    /// The loan of the name that is asked for, if there is one by that name.
    ///
    /// # Errors
    /// [`Refusal::NameBusy`] while it is pending, and [`Refusal::NameTaken`] where it is another
    /// one than is asked for.
    #[must_use]
    pub fn find(&self, asked: &Asked) -> Option<Result<HeldByName, Refusal>> {
        Some(match self.named(&asked.named.as_ref()?.name)? {
            found if found.is_pending => Err(Refusal::NameBusy),
            found if found.fits(asked) => Ok(found),
            _ => Err(Refusal::NameTaken),
        })
    }

    /// The loans with names that begin with `prefix` and come after `after`, in the order of their
    /// names, pending ones included.
    pub fn named_loans<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&LoanName>,
    ) -> impl Iterator<Item = HeldByName> + 'a {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
        let names = self.names.range((from, Bound::Unbounded)).map(|(name, _)| name);
        let fitting = names.filter(move |name| name.begins_with(prefix));
        fitting.filter_map(|name| self.named(name))
    }

    /// The name that a lease has, or is about to.
    #[must_use]
    pub fn leases_name(&self, lease: LeaseId) -> Option<LoanName> {
        self.leases.get(&lease)?.name.clone()
    }

    /// What there is to lend in each domain, as agents are told.
    #[must_use]
    pub fn supply_by_domain(&self) -> Vec<Supply> {
        let of = |domain: Domain| {
            let pools = || self.pools.values().filter(|p| p.config.key().domain() == domain);
            let owned: Pages = pools().map(|p| self.owned(p.config.key())).sum();
            let leave = pools().map(|p| p.config.leave_free).max().unwrap_or_default();
            let all = owned + self.available(domain).saturating_sub(leave);
            let reported = || self.configured_pools().filter(|key| key.domain() == domain);
            let bound = |key| self.pool_config(key).and_then(|config| config.max);
            let bound: Option<Pages> = reported().map(bound).sum();
            // Where blocks are of all sizes, what loans in several are made of.
            let of_all = |key: PoolKey| key.is_mixed().then(|| piece(key.page_size));
            let block = |key: PoolKey| of_all(key).unwrap_or(key.pages_per_block);
            let block = reported().map(block).max().unwrap_or_default();
            let named = self.named_loans("", None);
            let here =
                |loan: &HeldByName| (loan.node, loan.page_size) == (domain.node, domain.page_size);
            let named: Pages = named.filter(here).map(|loan| loan.pages).sum();
            let bytes = |pages: Pages| pages.bytes(domain.page_size);
            let in_blocks = |(block, ready)| ReadyBlocks {
                block_bytes: bytes(block),
                ready_bytes: bytes(ready),
            };
            Supply {
                node: domain.node,
                page_size: domain.page_size,
                block_bytes: bytes(block),
                ready_bytes: bytes(self.lendable(domain)),
                ready_blocks: self.lendable_by_size(domain).into_iter().map(in_blocks).collect(),
                total_bytes: bytes(bound.map_or(all, |bound| all.min(bound))),
                named_bytes: bytes(named),
            }
        };
        self.domains().map(of).collect()
    }

    /// How many loans by name there are, pending ones included.
    #[must_use]
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// The loan is as its borrower is to find it: from now on it lasts by its name.
    pub fn hold_by_name(&mut self, lease: LeaseId) -> Vec<Effect> {
        let Some((name, block, seconds)) = self.leases.get(&lease).and_then(|lease| {
            Some((lease.name.clone()?, *lease.blocks.first()?, lease.keep_seconds))
        }) else {
            return Vec::new();
        };
        match self.blocks.change(block, |b| b.hold_by_name(lease, name, seconds)) {
            Some(Ok(())) => vec![Effect::Move(block)],
            Some(Err(_)) | None => Vec::new(),
        }
    }

    /// Notes that a pending loan has all of its pages.
    pub fn record_whole(&mut self, lease: LeaseId) {
        for block in self.lease_blocks(lease) {
            self.blocks.change(block, |b| b.record_filled(b.pages()));
        }
    }

    /// The bytes that the loans of a tenant hold, pending and draining ones and content kept for
    /// its owners included. Without a tenant: the loans without a scope. All scopes of a tenant
    /// count together: a namespace that is deleted and made anew shares the same quota.
    #[must_use]
    pub fn held_by_tenant(&self, tenant: Option<&str>) -> Bytes {
        let named = self.names.iter().filter(|(name, _)| name.tenant() == tenant);
        let leases = named.filter_map(|(_, lease)| self.leases.get(lease));
        let lent = leases.flat_map(|lease| &lease.blocks).filter_map(|id| self.blocks.get(*id));
        let is_of = |part: &Part| part.scope().map(tenant_of) == Some(tenant.unwrap_or_default());
        let left = [StateName::Draining, StateName::Kept].into_iter();
        let left = left.flat_map(|state| self.in_state(state)).filter(|b| match b.state() {
            State::Draining(Some(part)) | State::Kept { part, .. } => is_of(part),
            _ => false,
        });
        let bytes = |b: &Block| (b.pages() + b.grown()).bytes(b.pool().page_size).0;
        Bytes(lent.chain(left).map(bytes).sum())
    }

    /// Ends an earlier loan of a name, if a later one is found at start: its return failed, and so
    /// did removing its file.
    pub(super) fn give_way(&mut self, state: StateName, part: Option<&Part>) -> Vec<Effect> {
        let Some(Part { name: Some(name), lease, .. }) = part.filter(|_| state == StateName::Lent)
        else {
            return Vec::new();
        };
        match self.names.get(name) {
            Some(earlier) if earlier < lease => self.end_lease(*earlier),
            _ => Vec::new(),
        }
    }

    /// Whether a lent file that is found at start is a loan still: by its name, or by its lease.
    pub(super) fn is_loan(&self, part: &Part, lease_alive: bool) -> bool {
        match &part.name {
            None => lease_alive,
            Some(name) => !self.names.contains_key(name) && !self.leases.contains_key(&part.lease),
        }
    }

    /// Whether a loan may have the name that is asked for.
    pub(super) fn check_name(&self, asked: &Asked) -> Result<(), Refusal> {
        let Some(named) = &asked.named else { return Ok(()) };
        if self.names.contains_key(&named.name) {
            return Err(Refusal::NameTaken);
        }
        if self.names.len() >= named.most {
            return Err(Refusal::TooManyNames);
        }
        Ok(())
    }

    /// Whether the tenant of the name that is asked for may hold as much more.
    pub(super) fn check_scope(&self, asked: &Asked) -> Result<(), Refusal> {
        let Some(named) = &asked.named else { return Ok(()) };
        if let Some(quota) = named.quota {
            let held = self.held_by_tenant(named.name.tenant());
            if held.0.saturating_add(asked.request.bytes.0) > quota.0 {
                return Err(Refusal::ScopeQuota { held, quota });
            }
        }
        Ok(())
    }
}
