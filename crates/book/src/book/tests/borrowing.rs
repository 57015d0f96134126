// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients do, and what a loan must be.

use std::collections::BTreeMap;

use units::{BlockId, LeaseId, Node, Owner, PageSize, Pages, PoolKey, Uid};
use wire::Counters;

use super::checks::{View, count_zero};
use super::events::Less;
use super::kernel::{Actor, Content, Shape};
use super::world::{Client, Fate, World, shape, split};
use crate::block::{Block, Keep, Part, Reach, Settled, State, StateName};
use crate::book::{Asked, Loan, Refusal};

impl World {
    /// A client asks. If the daemon lives to answer, it gets its loan and maps it.
    pub(super) fn lend(&mut self, ask: &Asked, pin: bool, fate: Fate) {
        let held = self.look_at_growth(ask.account);
        let (view, counters) = (self.view(), self.book.counters());
        let own_waits = self.own_content_waits(ask);
        let ready = self.best_ready(ask);
        let room = self.best_room(ask);
        let (loan, effects) = match self.book.lend(ask) {
            Ok(granted) => granted,
            Err(refusal) => return self.check_refusal(ask, &refusal, &view, counters, room),
        };
        assert!(self.leases_seen.insert(loan.lease), "{} was used before", loan.lease);
        assert!(!own_waits || loan.kept, "its own content waits, and it gets other memory");
        let asked = ask.request.bytes.0 / loan.page_size.bytes();
        assert_eq!(loan.parts.iter().map(|p| p.pages.0).sum::<u64>(), asked, "{loan:?}");
        assert!(!ask.request.single || loan.parts.len() == 1, "{loan:?}");
        assert!(ask.request.page_size.is_none_or(|s| s == loan.page_size), "{loan:?}");
        assert!(
            ask.request.node.is_none_or(|n| loan.parts.iter().all(|p| p.node == n)),
            "{loan:?}"
        );
        if !loan.kept {
            let held = held + ask.request.bytes.0;
            let is_within = ask.quota.is_none_or(|quota| held <= quota.0);
            assert!(is_within, "{held} is above {:?}", ask.quota);
            let hit: u64 = loan.parts.iter().map(|p| p.ready.0).sum();
            // A pool of several sizes throws zeroed pages away for a loan only on credit.
            let saves = self.book.pool_keys().any(PoolKey::is_mixed);
            assert!(
                !ready || saves || hit == asked,
                "ready memory would do, and it gets an unbacked part: {loan:?}"
            );
        }
        self.record_shape(&loan);
        if loan.kept {
            self.had.insert(loan.lease);
        }
        let (first, second) = split(fate, effects.len());
        if !self.execute(&effects, first) {
            // Its answer never came. A daemon that lives takes the loan back.
            let effects = self.book.end_lease(loan.lease);
            self.execute(&effects, Fate::Fine);
            return;
        }
        self.hand_over(ask, &loan, pin);
        self.had.insert(loan.lease);
        let effects = self.book.sent(loan.lease);
        assert!(effects.is_empty() || !loan.kept, "its content was kept before");
        self.execute(&effects, second);
    }

    /// The daemon asks the kernel what a user's files have. Returns what the user holds, in bytes.
    fn look_at_growth(&mut self, account: Uid) -> u64 {
        let growable: Vec<_> = self.book.growable(account).map(Block::id).collect();
        for id in &growable {
            let no = self.kernel.find(*id).expect("a block of the book has a file");
            self.book.record_growth(*id, Pages(self.kernel.file(no).allocated()));
        }
        let (mut held, mut grown) = (0, false);
        for block in self.blocks() {
            if let State::Lent(part) | State::Draining(Some(part)) | State::Kept { part, .. } =
                block.state()
                && part.account == account
            {
                let no = self.kernel.find(block.id()).expect("a block of the book has a file");
                let is_growable = growable.contains(&block.id());
                let has = if is_growable { self.kernel.file(no).allocated() } else { 0 };
                grown |= has > part.pages.0;
                held += has.max(part.pages.0) * block.pool().page_size.bytes();
            }
        }
        if grown {
            self.record("asks with more than was lent");
        }
        held
    }

    fn hand_over(&mut self, ask: &Asked, loan: &Loan, pin: bool) {
        let nth = self.clients.len();
        let files: Vec<_> = loan
            .parts
            .iter()
            .map(|p| self.kernel.find(p.block).expect("a lent block has a file"))
            .collect();
        let owner = owner_of(ask);
        let client =
            Client { lease: loan.lease, uid: ask.uid, owner, ask: ask.clone(), files, open: true };
        self.clients.push(client);
        for (index, part) in loan.parts.iter().enumerate() {
            let no = self.clients[nth].files[index];
            let file = self.kernel.file(no);
            assert_eq!(file.len(), part.pages.0, "{part:?} in {file:?}");
            assert_eq!(shape_of(loan, part.node), file.shape);
            assert!(!file.is_reachable(), "{part:?} is lent while it is held: {file:?}");
            let State::Lent(Part { lease, index: at, uid, .. }) =
                self.book.block(part.block).expect("a lent block is in the book").state()
            else {
                panic!("{} is not lent", part.block);
            };
            assert_eq!((*lease, usize::try_from(*at), *uid), (loan.lease, Ok(index), ask.uid));
            if loan.kept {
                let own = |p: &Content| self.may_read(nth, *p);
                assert!(file.pages.iter().flatten().all(own), "client {nth}: {file:?}");
                if file.missing() > 0 {
                    // Nothing kept pages for the unbacked parts in this content: others may have
                    // them.
                    self.stale.insert(file.shape);
                }
            } else {
                assert!(file.pinners.is_empty(), "{part:?} is pinned: {file:?}");
                assert_eq!(count_zero(file), part.ready.0, "{part:?} in {file:?}");
                assert_eq!(
                    file.allocated(),
                    part.ready.0,
                    "an unbacked part with memory: {file:?}"
                );
            }
            let file = self.kernel.file_mut(no);
            file.holders.insert(Actor::Client(nth));
            if pin && self.pins {
                file.pinners.insert(Actor::Client(nth));
            }
            let (at, left) = (file.shape, self.available(self.kernel.file(no).shape));
            assert!(self.stale.contains(&at) || left >= 0, "{at:?}: over-promised {}", -left);
            if left < 0 {
                // `mmap` finds no pages to reserve for the unbacked part: the client gives up.
                self.record("no pages for an unbacked part");
                self.leave(Actor::Client(nth));
                return self.end_lease(nth, Fate::Fine);
            }
        }
    }

    fn check_refusal(
        &mut self,
        ask: &Asked,
        refusal: &Refusal,
        view: &View,
        counters: Counters,
        room: bool,
    ) {
        self.assert_unchanged(view, counters, "a refused loan");
        let counted = u64::from(*refusal != Refusal::OwnerDraining);
        assert_eq!(self.book.counters().refusals, counters.refusals + counted);
        match refusal {
            Refusal::Size(_) => {
                let sizes = self.book.pool_keys().map(|k| k.page_size);
                let mut fitting = sizes.filter(|s| ask.request.page_size.is_none_or(|w| w == *s));
                assert!(!fitting.all(|s| s.pages_in(ask.request.bytes).is_ok()), "{ask:?}");
            }
            Refusal::NoSuchPool => {}
            Refusal::Quota { held, quota } => {
                assert_eq!(*held, self.book.held_by(ask.account));
                assert!(held.0 + ask.request.bytes.0 > quota.0, "{refusal:?} of {ask:?}");
            }
            Refusal::NotEnough { .. } => assert!(!room, "there is room: {refusal:?} of {ask:?}"),
            Refusal::NameTaken
            | Refusal::NameBusy
            | Refusal::TooManyNames
            | Refusal::ScopeQuota { .. } => {
                unreachable!("{refusal:?} of a loan without a name")
            }
            Refusal::OwnerDraining => {
                let mine = |b: &crate::block::Block| {
                    matches!(
                        b.state(),
                        State::Draining(Some(part)) if is_owned(part, ask)
                    )
                };
                assert!(ask.await_owner && self.book.in_state(StateName::Draining).any(mine));
            }
        }
        self.record(match refusal {
            Refusal::Size(_) => "refused: size",
            Refusal::NoSuchPool => "refused: no such pool",
            Refusal::Quota { .. } => "refused: quota",
            Refusal::NotEnough { .. } => "refused: not enough",
            Refusal::OwnerDraining => "refused: owner is draining",
            Refusal::NameTaken
            | Refusal::NameBusy
            | Refusal::TooManyNames
            | Refusal::ScopeQuota { .. } => "refused: name",
        });
    }

    fn record_shape(&mut self, loan: &Loan) {
        let several = loan.parts.len() > 1;
        let unbacked = loan.parts.iter().any(|p| p.ready == Pages::ZERO);
        let grown = loan.parts.iter().any(|p| p.ready > Pages::ZERO && p.ready < p.pages);
        let trimmed = loan.parts.iter().any(|p| {
            let block = self.book.block(p.block).expect("a lent block is in the book");
            p.ready == p.pages && p.pages < block.pool().pages_per_block
        });
        let nodes = loan.parts.iter().any(|p| p.node != loan.parts[0].node);
        for (is, what) in [
            (loan.kept, "lent kept"),
            (loan.kept && several, "lent kept in several blocks"),
            (!loan.kept && unbacked && !several, "lent an unbacked part"),
            (!loan.kept && unbacked && several, "lent blocks and an unbacked part"),
            (!loan.kept && grown, "lent grown"),
            (!loan.kept && trimmed, "lent trimmed"),
            (!loan.kept && several && !unbacked && !trimmed, "lent several whole blocks"),
            (!loan.kept && !several && !unbacked && !grown && !trimmed, "lent exact"),
            (nodes, "lent from two nodes"),
        ] {
            if is {
                self.record(what);
            }
        }
    }

    /// Whether a loan of exactly this owner's is kept, whole and where it is asked for.
    pub(super) fn own_content_waits(&self, ask: &Asked) -> bool {
        /// A part's place in its loan, its bytes, and its node.
        type Left = (u32, u64, Node);
        let mut loans: BTreeMap<(LeaseId, PageSize), Vec<Left>> = BTreeMap::new();
        for block in self.book.in_state(StateName::Kept) {
            let State::Kept { part, .. } = block.state() else { continue };
            let size = block.pool().page_size;
            if is_owned(part, ask) {
                let parts = loans.entry((part.lease, size)).or_default();
                parts.push((part.index, part.pages.bytes(size).0, block.pool().node));
            }
        }
        loans.into_iter().any(|((_, size), mut parts)| {
            parts.sort_unstable();
            let in_order = parts.iter().zip(0..).all(|((index, ..), n)| *index == n);
            // Of a loan over two nodes what lies on one of them is no loan.
            in_order
                && parts.iter().all(|(.., at)| ask.request.node.is_none_or(|n| n == *at))
                && ask.request.page_size.is_none_or(|s| s == size)
                && (!ask.request.single || parts.len() == 1)
                && parts.iter().map(|(_, bytes, _)| bytes).sum::<u64>() == ask.request.bytes.0
        })
    }

    fn asked_shapes(&self, ask: &Asked) -> Vec<Shape> {
        let fits = |at: &Shape| {
            at.fits(ask.request.node, ask.request.page_size)
                && at.page_size.pages_in(ask.request.bytes).is_ok()
        };
        self.book.domains().filter(fits).collect()
    }

    /// Whether a pool there is configured. Of others only kept content is lent.
    fn is_notified(&self, at: Shape) -> bool {
        self.pools.iter().any(|(config, reported)| *reported && shape(config.key()) == at)
    }

    /// Whether ready memory alone serves a request.
    fn best_ready(&self, ask: &Asked) -> bool {
        let mut pages: BTreeMap<PageSize, u64> = BTreeMap::new();
        for at in self.asked_shapes(ask).into_iter().filter(|at| self.is_notified(*at)) {
            let size = at.page_size;
            let need = ask.request.bytes.0 / size.bytes();
            // A much larger block is left alone while the kernel has pages instead. In a loan in
            // several blocks this means: larger than the allowed rest and the block together.
            let most = if ask.request.single { 2 * need } else { need + 1 };
            let blocks = self
                .book
                .in_state(StateName::Ready)
                .filter(|b| shape(b.pool()) == at && b.pages().0 <= most)
                .filter(|b| !ask.request.single || b.pages().0 >= need);
            *pages.entry(size).or_default() += blocks.map(|b| b.pages().0).sum::<u64>();
        }
        pages.iter().any(|(size, ready)| size.bytes() * ready >= ask.request.bytes.0)
    }

    /// Whether free and unlent memory of one node serve a request as an unbacked part.
    fn best_room(&self, ask: &Asked) -> bool {
        self.asked_shapes(ask).into_iter().any(|at| {
            let believed = self.book.available.get(&at).map_or(0, |p| p.0);
            let unlent = self.blocks().filter(|b| b.is_unlent() && shape(b.pool()) == at);
            let unlent: u64 = unlent.map(|b| b.memory().0).sum();
            self.is_notified(at)
                && (believed + unlent) * at.page_size.bytes() >= ask.request.bytes.0
        })
    }

    /// A client, alive or only its pins, writes the first pages of what it has.
    pub(super) fn client_writes(&mut self, nth: usize, pages: u64) {
        let me = Actor::Client(nth);
        for no in self.clients[nth].files.clone() {
            if !self.has(me, no) {
                continue;
            }
            let file = self.kernel.file(no);
            let faults = file.place.is_some() && file.holders.contains(&me);
            for page in 0..pages.min(file.len()) {
                if faults || self.kernel.has_memory(no, page) {
                    self.kernel.write(no, page, Content::Of(me));
                }
            }
        }
    }

    /// A client changes its file's length, or frees one of its pages.
    pub(super) fn meddle(&mut self, nth: usize, pages: u64, cut: bool) {
        let me = Actor::Client(nth);
        for no in self.clients[nth].files.clone() {
            let file = self.kernel.files.get(&no);
            let Some(file) = file.filter(|f| f.place.is_some() && f.holders.contains(&me)) else {
                continue;
            };
            // Its mapping reserves what it makes: that many pages must be there.
            let (at, len) = (file.shape, file.len());
            let room = u64::try_from(self.available(at)).unwrap_or_default();
            if cut {
                self.kernel.resize(no, pages.min(len + room));
            } else {
                self.kernel.punch(no, pages);
            }
            self.stale.insert(at);
            self.record(if cut { "cut or grown by its client" } else { "punched by its client" });
        }
    }

    /// A client closes and unmaps everything. What it pinned stays reachable, unseen.
    pub(super) fn unmap(&mut self, nth: usize) {
        for no in self.clients[nth].files.clone() {
            self.kernel.unmap(no, Actor::Client(nth));
        }
    }

    /// The lease's last descriptor is closed; mappings and pins may stay.
    pub(super) fn end_lease(&mut self, nth: usize, fate: Fate) {
        let client = &mut self.clients[nth];
        if !std::mem::take(&mut client.open) {
            return;
        }
        let named = client.ask.named.clone();
        let lease = client.lease;
        let effects = self.book.end_lease(lease);
        self.execute(&effects, fate);
        if let Some(named) = named {
            self.record("returned by name");
            if self.book.named(&named.name).is_some_and(|loan| loan.lease == lease) {
                // A daemon that died before: nothing was answered, and it is asked again.
                self.unclaimed.remove(&named.name);
                self.clients[nth].open = true;
                return;
            }
        }
        let (view, counters) = (self.view(), self.book.counters());
        assert!(self.book.end_lease(lease).is_empty());
        self.assert_unchanged(&view, counters, "the second end of a lease");
    }

    /// The operator takes a loan away, or what is draining of it.
    pub(super) fn revoke(&mut self, nth: usize, fate: Fate) {
        self.clients[nth].open = false;
        let lease = self.clients[nth].lease;
        let Some((_, effects)) = self.book.revoke(lease) else { return };
        self.record("revoked");
        let is_of_it = |block: &Block| match block.state() {
            State::Lent(part) | State::Draining(Some(part)) => part.lease == lease,
            _ => false,
        };
        assert!(!self.blocks().any(is_of_it), "{lease} was revoked, and a block of it is there");
        self.execute(&effects, fate);
        // If the daemon dies first, the loan exists again and its agent is gone: the operator may
        // find it once more.
        if let Some(named) = self.clients[nth].ask.named.clone()
            && self.book.named(&named.name).is_none()
        {
            self.unclaimed.remove(&named.name);
        }
    }

    /// `nobody` for a block that is out of reach, else the truth.
    fn and_nobody(&self, id: BlockId, nobody: Reach) -> Reach {
        match self.reach(id) {
            Reach::Sole | Reach::Nobody(_) => nobody,
            held => held,
        }
    }

    /// The daemon looks at a draining block. What it sees may be less than the truth.
    pub(super) fn settle(&mut self, id: BlockId, seen: Option<Less>, fate: Fate) {
        let reach = match seen {
            None => self.reach(id),
            Some(Less::Held) => Reach::Shared,
            Some(Less::Nothing) => Reach::Unknown,
            Some(Less::Altered) => self.and_nobody(id, Reach::Altered),
            Some(Less::Marked) => self.and_nobody(id, Reach::Marked),
        };
        let (is_held, is_unknown) = match &reach {
            Reach::Shared | Reach::Mapped | Reach::Pinned => (true, false),
            Reach::Poisoned | Reach::Altered | Reach::Marked | Reach::Unknown => (false, true),
            Reach::Sole | Reach::Nobody(_) => (false, false),
        };
        let file = self.kernel.file(self.kernel.find(id).expect("a block of the book has a file"));
        let pages = self.book.block(id).expect("it is draining").pages();
        let whole = file.len() == pages.0;
        let allocated = Pages(if whole { file.allocated() } else { 0 });
        self.book.record_memory(id, allocated);
        let (settled, effects) = self.book.settle(id, reach, self.now).expect("it is draining");
        assert_eq!(settled == Settled::Draining, is_held);
        assert!(!is_unknown || settled == Settled::Gone);
        self.execute(&effects, fate);
    }

    /// Time passes, and expired content is given up.
    pub(super) fn wait(&mut self, seconds: u64, fate: Fate) {
        self.now += seconds;
        let effects = self.book.expire(self.now);
        assert!(self.book.next_expiry().is_none_or(|next| next > self.now));
        self.execute(&effects, fate);
    }
}

fn shape_of(loan: &Loan, node: Node) -> Shape {
    Shape { node, page_size: loan.page_size }
}

/// The owner of the content: the owner of a loan by name belongs to the name's scope; without a
/// scope there is none.
pub(super) fn owner_of(ask: &Asked) -> Option<(Owner, Option<String>)> {
    let owner = ask.request.owner.clone()?;
    match &ask.named {
        None => Some((owner, None)),
        Some(named) => {
            let (scope, _) = named.name.as_str().split_once('/')?;
            Some((owner, Some(scope.to_owned())))
        }
    }
}

pub(super) fn is_owned(part: &Part, ask: &Asked) -> bool {
    let Some((owner, scope)) = owner_of(ask) else { return false };
    let is = |keep: &Keep| keep.owner == owner && keep.scope == scope;
    part.uid == ask.uid && part.keep.as_ref().is_some_and(is)
}
