// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans of any size.
//!
//! A loan in one file (by path or descriptor) takes the first of these that exists: its owner's
//! kept content, a ready block of exactly its size, or the smallest larger one, trimmed. Then come
//! the largest smaller one, grown by an unbacked part, and an unbacked part alone. A loan in
//! several blocks fills itself with the largest ready ones that fit, then one trimmed, then an
//! unbacked part. While the kernel has free pages for the loan, a block is trimmed by at most the
//! size of the loan. The client's own faults fill unbacked parts, as without prezero. Unlent blocks
//! are given back where the kernel would otherwise lack the pages.
//!
//! Where the kernel itself keeps the zeroed pages there are no ready blocks: every part of a loan
//! is a new file, and the caller fills it with the pages in the plan. The plan is
//! [`supply`](super::supply)'s; the rest is the same.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use units::{
    BlockId, Bytes, Domain, LeaseId, LoanName, Node, PageSize, Pages, ParseError, PoolKey, Uid,
};
use wire::LendRequest;

use super::{Book, Effect};
use crate::block::{Block, Keep, Part, State, StateName, UNLENT};

/// What a client asks for, and who it is.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The request. Without a page size it gets the size of its kept content, else the largest that
    /// divides `bytes` and has enough ready, else the largest that divides and is available.
    /// Without a node it gets any, one if it can.
    pub request: LendRequest,
    /// The borrower.
    pub uid: Uid,
    /// The user charged for it: the borrower, or the user to whom the borrower is subordinate.
    pub account: Uid,
    /// The most it may hold.
    pub quota: Option<Bytes>,
    /// Whether to refuse with [`Refusal::OwnerDraining`] while this owner's content is still
    /// mapped by its former self, instead of lending other memory.
    pub await_owner: bool,
    /// By what name the loan is to last, if not by a descriptor: it is one file then.
    pub named: Option<Named>,
}

/// A loan by name, and what bounds it besides its borrower's quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: LoanName,
    /// The most that loans of this name's scope may hold together; of those without a scope, too.
    pub quota: Option<Bytes>,
    /// The most loans by name that there may be.
    pub most: usize,
}

/// One block of a loan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoanPart {
    /// The block.
    pub block: BlockId,
    /// Its node.
    pub node: Node,
    /// Its length.
    pub pages: Pages,
    /// Ready pages, counted from its start.
    pub ready: Pages,
}

/// A loan granted: its blocks are lent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loan {
    /// The lease.
    pub lease: LeaseId,
    /// The pages' size.
    pub page_size: PageSize,
    /// Whether the content is what this owner left.
    pub kept: bool,
    /// Its blocks in order.
    pub parts: Vec<LoanPart>,
}

/// Why a loan was refused; nothing changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The size is no whole number of pages.
    Size(ParseError),
    /// No pool has that node and page size.
    NoSuchPool,
    /// The quota.
    Quota {
        /// What the account holds.
        held: Bytes,
        /// What it may hold.
        quota: Bytes,
    },
    /// Ready and free pages do not suffice on any node that was asked for.
    NotEnough {
        /// The pages' size.
        page_size: PageSize,
        /// Ready bytes there.
        ready: Bytes,
        /// Free bytes there.
        free: Bytes,
        /// Free bytes that `leave_free` keeps from being zeroed.
        left_free: Bytes,
        /// Bytes that are lent, kept or draining.
        in_use: Bytes,
    },
    /// This owner's content has been returned, but a process still maps it: ask again soon.
    OwnerDraining,
    /// There is a loan by that name already.
    NameTaken,
    /// A loan by that name is being made: ask again when that is done.
    NameBusy,
    /// There are as many loans by name as there may be.
    TooManyNames,
    /// The quota of the name's scope.
    ScopeQuota {
        /// What the scope holds.
        held: Bytes,
        /// What it may hold.
        quota: Bytes,
    },
}

/// How one loan would be served.
#[derive(Debug, Default)]
pub(super) struct LoanPlan {
    /// Ready blocks and the length each is lent at.
    pub(super) blocks: Vec<(BlockId, Pages)>,
    /// What comes from the kernel's pool, behind the blocks.
    pub(super) taken: Vec<Taken>,
}

/// Pages from the kernel's pool: the end of a block that is grown, or a new file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) pool: PoolKey,
    pub(super) pages: Pages,
    /// Pages that the kernel has zeroed; the rest is an unbacked part.
    pub(super) zeroed: Pages,
}

impl Asked {
    /// The owner that returns to this content, and how long it is kept. The owner of a loan by name
    /// belongs to the name's scope; a loan without a scope has no owner.
    pub(super) fn keep(&self) -> Option<Keep> {
        let scope = match &self.named {
            Some(named) => Some(named.name.scope()?.to_owned()),
            None => None,
        };
        let seconds = self.request.keep.map_or(0, |keep| keep.as_secs());
        self.request.owner.clone().map(|owner| Keep { owner, scope, seconds })
    }

    /// Whether `part` was lent to the user, owner and scope that ask now.
    fn owned(&self, part: &Part) -> bool {
        let keep = self.keep();
        let mine = keep.as_ref().map(|keep| (&keep.owner, keep.scope.as_deref()));
        part.uid == self.uid && mine.is_some() && mine == part.kept_for()
    }
}

impl LoanPlan {
    fn unbacked(&self) -> Pages {
        self.taken.iter().map(|t| t.pages.saturating_sub(t.zeroed)).sum()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.unbacked() == Pages::ZERO
    }
}

impl Book {
    /// Grants or refuses a loan.
    ///
    /// # Errors
    /// The [`Refusal`]; nothing has changed then, except that it is counted.
    pub fn lend(&mut self, asked: &Asked) -> Result<(Loan, Vec<Effect>), Refusal> {
        let result = self.try_lend(asked);
        if let Err(refusal) = &result
            && *refusal != Refusal::OwnerDraining
        {
            self.counters.refusals += 1;
        }
        result
    }

    fn try_lend(&mut self, asked: &Asked) -> Result<(Loan, Vec<Effect>), Refusal> {
        let request = &asked.request;
        self.check_name(asked)?;
        let sizes = self.page_sizes(request)?;
        if request.owner.is_some() {
            if asked.await_owner && self.owner_draining(asked, &sizes) {
                return Err(Refusal::OwnerDraining);
            }
            if let Some((page_size, found)) =
                sizes.iter().find_map(|size| Some((*size, self.kept_for(asked, *size)?)))
            {
                return Ok(self.lend_kept(asked, page_size, &found));
            }
        }
        self.check_scope(asked)?;
        if let Some(quota) = asked.quota {
            let held = self.held_by(asked.account);
            if held.0.saturating_add(request.bytes.0) > quota.0 {
                return Err(Refusal::Quota { held, quota });
            }
        }
        match self.best_plan(request, &sizes) {
            Some((page_size, plan)) => Ok(self.carry_out(asked, page_size, plan)),
            None => Err(self.not_enough(request, &sizes)),
        }
    }

    /// The page sizes that a request can be served in, the largest first.
    fn page_sizes(&self, request: &LendRequest) -> Result<Vec<PageSize>, Refusal> {
        let fits = |key: &&PoolKey| key.domain().fits(request.node, request.page_size);
        let mut sizes: Vec<_> = self.pools.keys().filter(fits).map(|k| k.page_size).collect();
        sizes.sort_unstable_by_key(|s| Reverse(*s));
        sizes.dedup();
        let smallest = *sizes.last().ok_or(Refusal::NoSuchPool)?;
        // Sizes are powers of two: what the smallest does not divide, no other does.
        smallest.pages_in(request.bytes).map_err(Refusal::Size)?;
        sizes.retain(|s| s.pages_in(request.bytes).is_ok());
        Ok(sizes)
    }

    /// The largest page size with enough ready pages, else the largest with enough pages of any
    /// kind.
    fn best_plan(&self, request: &LendRequest, sizes: &[PageSize]) -> Option<(PageSize, LoanPlan)> {
        let mut with_unbacked = None;
        for size in sizes {
            match self.plan_for(request, *size) {
                Some(plan) if plan.is_ready() => return Some((*size, plan)),
                Some(plan) => with_unbacked = with_unbacked.or(Some((*size, plan))),
                None => {}
            }
        }
        with_unbacked
    }

    /// From one node if that serves it from ready blocks, else with the smallest unbacked part.
    fn plan_for(&self, request: &LendRequest, page_size: PageSize) -> Option<LoanPlan> {
        let need = page_size.pages_in(request.bytes).ok()?;
        let nodes = self.node_order(request.node, page_size);
        let one_node = nodes
            .iter()
            .filter_map(|node| self.plan(&[*node], page_size, need, request))
            .min_by_key(LoanPlan::unbacked);
        if request.single || one_node.as_ref().is_some_and(LoanPlan::is_ready) {
            return one_node;
        }
        self.plan(&nodes, page_size, need, request).or(one_node)
    }

    /// Whether a request that was refused for lack of pages fits once all pages in flight have
    /// arrived. It counts all pages of the kernel, those to come where the pool may grow included,
    /// minus lent and kept ones. The loans in `ending` end soon.
    #[must_use]
    pub fn can_be_served(&self, request: &LendRequest, ending: &[LeaseId]) -> bool {
        let Ok(sizes) = self.page_sizes(request) else { return false };
        sizes.into_iter().any(|page_size| {
            let Ok(need) = page_size.pages_in(request.bytes) else { return false };
            let nodes = self.node_order(request.node, page_size);
            let mut most = nodes.into_iter().map(|node| {
                let domain = Domain { node, page_size };
                let reported = self.configured_pools().filter(|key| key.domain() == domain);
                let grown = reported.filter_map(|key| self.pool_config(key)?.resize.size_max);
                let total = grown.fold(*self.totals.get(&domain)?, Pages::max);
                let stays = self.blocks.total(domain, &[StateName::Lent, StateName::Kept]).pages;
                let ends = ending.iter().flat_map(|lease| self.lease_blocks(*lease));
                let ends = ends.filter_map(|id| self.block(id));
                let ends: Pages =
                    ends.filter(|b| b.pool().domain() == domain).map(Block::pages).sum();
                Some(total.saturating_sub(stays.saturating_sub(ends)))
            });
            // An unknown total counts as enough.
            if request.single {
                most.any(|pages| pages.is_none_or(|pages| pages >= need))
            } else {
                most.sum::<Option<Pages>>().is_none_or(|pages| pages >= need)
            }
        })
    }

    fn not_enough(&self, request: &LendRequest, sizes: &[PageSize]) -> Refusal {
        let offers = |size: &PageSize| !self.node_order(request.node, *size).is_empty();
        // Sizes of no configured pool have content to come back to, and nothing else.
        let Some(page_size) = sizes.iter().copied().find(offers) else {
            return Refusal::NoSuchPool;
        };
        let nodes = self.node_order(request.node, page_size);
        let ready: Pages =
            nodes.iter().map(|n| self.lendable(Domain { node: *n, page_size })).sum();
        let free = |n: &Node| self.available(Domain { node: *n, page_size });
        let free: Pages = nodes.iter().map(free).sum();
        let left_free = |n: &Node| {
            let domain = Domain { node: *n, page_size };
            let here = self.pools.iter().filter(|(key, _)| key.domain() == domain);
            let left = here.map(|(_, pool)| pool.config.leave_free).max().unwrap_or_default();
            left.min(self.available(domain))
        };
        let left_free: Pages = nodes.iter().map(left_free).sum();
        let used = [StateName::Lent, StateName::Kept, StateName::Draining];
        let in_use = |n: &Node| self.blocks.total(Domain { node: *n, page_size }, &used).pages;
        let in_use: Pages = nodes.iter().map(in_use).sum();
        let bytes = |pages: Pages| pages.bytes(page_size);
        Refusal::NotEnough {
            page_size,
            ready: bytes(ready),
            free: bytes(free),
            left_free: bytes(left_free),
            in_use: bytes(in_use),
        }
    }

    /// The nodes to try, those with the most ready pages first.
    fn node_order(&self, node: Option<Node>, page_size: PageSize) -> Vec<Node> {
        let fits = |key: &PoolKey| key.domain().fits(node, Some(page_size));
        let configured = self.pools.iter().filter(|(key, pool)| pool.configured && fits(key));
        // The pools are ordered by node first.
        let mut nodes: Vec<_> = configured.map(|(key, _)| key.node).collect();
        nodes.dedup();
        nodes.sort_by_key(|n| Reverse(self.lendable(Domain { node: *n, page_size })));
        nodes
    }

    /// The pages an unbacked part could get on a node: free ones, and those of unlent blocks.
    pub(super) fn room(&self, domain: Domain, spare: &[BlockId]) -> Pages {
        let spared = || spare.iter().filter_map(|id| self.blocks.get(*id));
        let spared = || spared().filter(|b| b.pool().domain() == domain);
        let unlent = self.blocks.total(domain, &UNLENT).memory;
        let spared_unlent = spared().filter(|b| b.is_unlent()).map(Block::memory).sum();
        let free = self.available(domain) + unlent.saturating_sub(spared_unlent);
        // An unbacked part takes no pages before it is mapped, so the free count misses it. Lent
        // pages can never exceed the total.
        let lent = self.blocks.total(domain, &[StateName::Lent]).pages;
        let not_lent = spared().filter(|b| b.state_name() != StateName::Lent);
        let taken = lent + not_lent.map(Block::pages).sum();
        self.totals.get(&domain).map_or(free, |total| total.saturating_sub(taken).min(free))
    }

    /// The pool to which a new file without ready pages belongs.
    pub(super) fn unbacked_pool(&self, domain: Domain) -> Option<PoolKey> {
        let configured = self.pools.iter().filter(|(_, pool)| pool.configured);
        configured.map(|(key, _)| *key).find(|key| key.domain() == domain)
    }

    fn carry_out(
        &mut self,
        asked: &Asked,
        page_size: PageSize,
        plan: LoanPlan,
    ) -> (Loan, Vec<Effect>) {
        let lease = LeaseId(self.next_lease);
        self.next_lease += 1;
        let mut effects = Vec::new();
        for Taken { pool, pages, zeroed } in &plan.taken {
            let spare: Vec<_> = plan.blocks.iter().map(|(id, _)| *id).collect();
            let missing = pages.saturating_sub(self.available(pool.domain()));
            let here = |key: PoolKey| key.domain() == pool.domain();
            effects.extend(self.remove_unlent(missing, &spare, here).1);
            self.spend(pool.domain(), *pages);
            self.promise(pool.domain(), *zeroed);
        }
        // It is still in flight: an end before the hand-over, of the daemon's, too, keeps no
        // content for its owner.
        let keep = asked.keep().map(|keep| Keep { seconds: 0, ..keep });
        let part = |index: usize, pages| Part {
            lease,
            index: u32::try_from(index).unwrap_or(u32::MAX),
            uid: asked.uid,
            account: asked.account,
            keep: keep.clone(),
            pages,
            name: None,
        };
        let mut parts = Vec::new();
        for (index, (id, pages)) in plan.blocks.iter().enumerate() {
            let Some(block) = self.blocks.get(*id) else { continue };
            let (shape, node) = (block.pages(), block.pool().node);
            let part = part(index, *pages);
            let Some(Ok(claim)) = self.blocks.change(*id, |b| b.lend(part)) else { continue };
            effects.push(Effect::Move(*id));
            if *pages != shape {
                effects.push(Effect::Resize { block: *id, pages: *pages });
                let domain = Domain { node, page_size };
                self.record_waste(domain, shape.saturating_sub(*pages));
            }
            parts.push(LoanPart {
                block: *id,
                node,
                pages: *pages,
                ready: claim.spend().min(*pages),
            });
        }
        let need = asked.request.bytes.whole_pages(page_size);
        for Taken { pool, pages, zeroed } in plan.taken {
            // A block that is grown covers it all.
            let covered: Pages = parts.iter().map(|p| p.pages).sum();
            let pages = pages.min(need.saturating_sub(covered));
            if pages == Pages::ZERO {
                continue;
            }
            let id = BlockId(self.next_block);
            self.next_block += 1;
            self.blocks.insert(Block::new_lent_unbacked(id, pool, part(parts.len(), pages)));
            effects.push(Effect::Create { block: id, pages, fill: zeroed });
            parts.push(LoanPart { block: id, node: pool.node, pages, ready: zeroed });
        }
        debug_assert_eq!(parts.iter().map(|p| p.pages).sum::<Pages>(), need, "{asked:?}");
        self.counters.loans += 1;
        for part in &parts {
            let domain = Domain { node: part.node, page_size };
            self.count_loan(domain, part.ready, part.pages.saturating_sub(part.ready));
        }
        let nodes: BTreeSet<_> = parts.iter().map(|part| part.node).collect();
        for node in nodes {
            // All of it, where it came from several: any of them might have had to serve it alone.
            let here = parts.iter().filter(|part| part.node == node);
            let taken = here.map(|part| part.ready).sum();
            self.record_demand(Domain { node, page_size }, &asked.request, taken);
        }
        self.enter(lease, asked, &parts);
        (Loan { lease, page_size, kept: false, parts }, effects)
    }

    /// Whether content of this owner is on its way to being kept.
    fn owner_draining(&self, asked: &Asked, sizes: &[PageSize]) -> bool {
        let mut draining =
            self.in_state(StateName::Draining).filter(|b| sizes.contains(&b.pool().page_size));
        // Two kinds of blocks still name their owner: one that never reached it, and one that it
        // had by a name and that is kept no longer.
        let comes = |part: &Part| part.keep.as_ref().is_some_and(|keep| keep.seconds > 0);
        draining.any(|b| {
            matches!(b.state(), State::Draining(Some(part)) if asked.owned(part) && comes(part))
        })
    }

    /// The blocks that wait for this owner, in order, if they are what it asks for.
    fn kept_for(&self, asked: &Asked, page_size: PageSize) -> Option<Vec<BlockId>> {
        let request = &asked.request;
        let need = page_size.pages_in(request.bytes).ok()?;
        let mut loans: BTreeMap<LeaseId, Vec<(&Part, &Block)>> = BTreeMap::new();
        let kept = self.in_state(StateName::Kept);
        for block in kept.filter(|b| b.pool().page_size == page_size) {
            if let State::Kept { part, .. } = block.state()
                && asked.owned(part)
            {
                loans.entry(part.lease).or_default().push((part, block));
            }
        }
        // The latest loan of that very size: an owner may have left several.
        loans.into_values().rev().find_map(|mut parts| {
            parts.sort_unstable_by_key(|(part, _)| part.index);
            let whole = parts.iter().zip(0..).all(|((part, _), n)| part.index == n)
                && parts.iter().map(|(part, _)| part.pages).sum::<Pages>() == need
                && parts.iter().all(|(_, b)| request.node.is_none_or(|n| n == b.pool().node))
                && (!request.single || parts.len() == 1);
            whole.then(|| parts.into_iter().map(|(_, block)| block.id()).collect())
        })
    }

    fn lend_kept(
        &mut self,
        asked: &Asked,
        page_size: PageSize,
        found: &[BlockId],
    ) -> (Loan, Vec<Effect>) {
        let lease = LeaseId(self.next_lease);
        self.next_lease += 1;
        let (mut parts, mut effects) = (Vec::new(), Vec::new());
        for (index, id) in found.iter().enumerate() {
            let Some(block) = self.blocks.get(*id) else { continue };
            let (pages, node) = (block.pages(), block.pool().node);
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let (uid, account, keep) = (asked.uid, asked.account, asked.keep());
            let part = Part { lease, index, uid, account, keep, pages, name: None };
            if matches!(self.blocks.change(*id, |b| b.lend_again(part)), Some(Ok(()))) {
                effects.push(Effect::Move(*id));
                parts.push(LoanPart { block: *id, node, pages, ready: pages });
            }
        }
        self.counters.loans += 1;
        self.counters.kept_loans += 1;
        self.enter(lease, asked, &parts);
        (Loan { lease, page_size, kept: true, parts }, effects)
    }
}
