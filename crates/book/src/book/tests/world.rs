// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world around a book: clients, workers, the operator, other programs, and crashes.
//!
//! It stands where the daemon stands: it carries effects out in the simulated [`Kernel`], reports
//! that kernel's answers to the book, and loses the book at any point between two effects. Clients
//! and workers do the worst that the real ones can.

use std::collections::{BTreeMap, BTreeSet};

use units::{BlockId, JobId, LeaseId, LoanName, Owner, Pages, PoolKey, Uid};
use wire::ZeroBy;

use super::kernel::{Actor, Kernel, Shape};
use crate::block::{Reach, State, StateName};
use crate::book::{Asked, Book, Effect, Found};
use crate::config::PoolConfig;
use crate::journal;

/// What a world starts with.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    /// Whether this kernel can prove that a file is free.
    pub(super) provable: bool,
    /// Whether clients pin pages: then no pool is told to recycle in place without seeing it.
    pub(super) pins: bool,
    /// Whether this kernel shows pinned pages.
    pub(super) shows_pins: bool,
    pub(super) pools: Vec<PoolConfig>,
    pub(super) pages: Vec<(Shape, u64)>,
}

/// What befalls the daemon while it carries out the effects of one call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    Fine,
    /// It dies after this number of effects, before its caller gets an answer.
    Crash {
        after: usize,
        how: Crash,
    },
    /// The nth effect fails.
    Fails(usize),
}

/// A fate over two steps: the number of effects in the first.
pub(super) fn split(fate: Fate, first: usize) -> (Fate, Fate) {
    match fate {
        Fate::Crash { after, how } if after > first => {
            (Fate::Fine, Fate::Crash { after: after - first - 1, how })
        }
        Fate::Fails(nth) if nth >= first => (Fate::Fine, Fate::Fails(nth - first)),
        fate => (fate, Fate::Fine),
    }
}

/// A death of the daemon.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crash {
    /// Whether its workers die with it, or live on with their blocks.
    pub(super) workers_die: bool,
    /// It dies once more after this number of effects of its next start.
    pub(super) again: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) lease: LeaseId,
    pub(super) uid: Uid,
    /// Within its scope, if its loan has one.
    pub(super) owner: Option<(Owner, Option<String>)>,
    /// What it asked for: by a name, where the loan ends when an agent returns that.
    pub(super) ask: Asked,
    pub(super) files: Vec<usize>,
    /// Whether its lease descriptor is open.
    pub(super) open: bool,
}

#[derive(Debug)]
pub(super) struct Worker {
    /// `None` once it was finished or lost: what the worker does then is not its business.
    pub(super) job: Option<JobId>,
    pub(super) file: usize,
    pub(super) first: u64,
    pub(super) done: u64,
    pub(super) pages: u64,
    pub(super) by: ZeroBy,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) book: Book,
    pub(super) kernel: Kernel,
    pub(super) provable: bool,
    pub(super) pins: bool,
    /// Every pool of the world, and whether the running daemon was told of it.
    pub(super) pools: Vec<(PoolConfig, bool)>,
    pub(super) clients: Vec<Client>,
    pub(super) workers: Vec<Worker>,
    pub(super) now: u64,
    micros: u64,
    /// Shapes that lost pages to other programs since the book's last look.
    pub(super) stale: BTreeSet<Shape>,
    /// Files that the book was told to forget; the next start finds them.
    pub(super) orphans: BTreeSet<usize>,
    pub(super) blocks_seen: BTreeSet<BlockId>,
    pub(super) leases_seen: BTreeSet<LeaseId>,
    pub(super) jobs_seen: BTreeSet<JobId>,
    /// Loans by name that outlived a daemon before its answer, and whether they never had a user:
    /// otherwise a return was tried, and failed.
    pub(super) unclaimed: BTreeMap<LoanName, bool>,
    /// Loans that reached a borrower, or with content that a borrower had: new memory is in flight
    /// until it has its name, or was sent.
    pub(super) had: BTreeSet<LeaseId>,
    /// What happened, by name: a run of sequences that never gets somewhere proves nothing.
    pub(super) seen: BTreeMap<String, u32>,
}

/// The moves of one block that are no loss of the daemon, as directories.
const EDGES: [(StateName, StateName); 11] = {
    use StateName::{Draining, Kept, Lent, Ready, Zeroable, Zeroing};
    [
        (Zeroable, Zeroing),
        (Zeroing, Ready),
        (Zeroing, Zeroable),
        (Zeroing, Draining),
        (Ready, Lent),
        // It gets the name by which it lasts.
        (Lent, Lent),
        (Lent, Draining),
        (Draining, Kept),
        (Draining, Zeroable),
        (Kept, Lent),
        (Kept, Draining),
    ]
};

pub(super) fn shape(key: PoolKey) -> Shape {
    key.domain()
}

impl World {
    pub(super) fn new(setup: Setup) -> Self {
        let mut kernel = Kernel::new(setup.pages);
        kernel.shows_pins = setup.shows_pins;
        let book = Book::new(setup.pools.iter().cloned(), setup.provable).expect("checked pools");
        Self {
            book,
            kernel,
            provable: setup.provable,
            pins: setup.pins,
            pools: setup.pools.into_iter().map(|p| (p, true)).collect(),
            clients: Vec::new(),
            workers: Vec::new(),
            now: 100,
            micros: 0,
            stale: BTreeSet::new(),
            orphans: BTreeSet::new(),
            blocks_seen: BTreeSet::new(),
            leases_seen: BTreeSet::new(),
            jobs_seen: BTreeSet::new(),
            unclaimed: BTreeMap::new(),
            had: BTreeSet::new(),
            seen: BTreeMap::new(),
        }
    }

    pub(super) fn record(&mut self, what: impl Into<String>) {
        *self.seen.entry(what.into()).or_default() += 1;
    }

    /// What the kernel has free, not reserved by a mapping and not yet to be taken by a job.
    /// Below zero where others took pages between a look at the kernel and a job's start.
    pub(super) fn available(&self, shape: Shape) -> i64 {
        let jobs = self.workers.iter().filter(|w| w.job.is_some());
        let promised: u64 = jobs
            .map(|w| self.kernel.file(w.file))
            .filter(|f| f.shape == shape)
            .map(super::kernel::File::missing)
            .sum();
        let signed = |n: u64| i64::try_from(n).expect("a simulation is small");
        signed(self.kernel.free[&shape]) - signed(self.kernel.reserved(shape)) - signed(promised)
    }

    pub(super) fn observe(&mut self) {
        let shapes: Vec<_> = self.book.domains().collect();
        for shape in shapes {
            let available = u64::try_from(self.available(shape));
            let pages = Pages(available.unwrap_or_default());
            self.book.has_free(shape.node, shape.page_size, pages);
            if available.is_ok() {
                self.stale.remove(&shape);
            }
        }
    }

    /// Carries effects out until `fate` stops. Returns whether all of it happened and the caller
    /// may be answered.
    pub(super) fn execute(&mut self, effects: &[Effect], fate: Fate) -> bool {
        let mut failed = BTreeSet::new();
        for (n, effect) in effects.iter().enumerate() {
            let block = effect.block();
            match fate {
                Fate::Crash { after, how } if after == n => {
                    self.record("crash between effects");
                    self.restart(how);
                    return false;
                }
                Fate::Fails(at) if at == n && matches!(effect, Effect::Mark(_)) => {
                    self.record("a mark fails");
                    self.book.mark_failed(block);
                }
                Fate::Fails(at) if at == n => {
                    self.record("failed effect");
                    failed.insert(block);
                    self.book.forget(block);
                    self.orphans.extend(self.kernel.find(block));
                    // The pages that were to come free did not.
                    self.stale.extend(self.kernel.total.keys());
                }
                _ if failed.contains(&block) => {}
                _ => self.carry_out(effect, true),
            }
        }
        if let Fate::Crash { how, .. } = fate {
            self.record("crash before the answer");
            self.restart(how);
            return false;
        }
        failed.is_empty()
    }

    fn carry_out(&mut self, effect: &Effect, running: bool) {
        match effect {
            Effect::Create { block, pages, fill } => {
                assert_eq!(*fill, Pages::ZERO, "blocks are made by workers");
                assert!(self.blocks_seen.insert(*block), "{block} was used before");
                let place = self.book.place(*block).expect("a new block is in the book");
                assert!(matches!(place.0, StateName::Zeroing | StateName::Lent), "{place:?}");
                let key = self.book.block(*block).expect("a new block is in the book").pool();
                let is_its = |of: PoolKey| of == key || of == PoolKey::mixed(key.domain());
                let reported =
                    self.pools.iter().any(|(config, reported)| *reported && is_its(config.key()));
                assert!(reported, "nobody configured {key}, and it gets a new block");
                self.kernel.create(shape(key), place, pages.0);
            }
            Effect::Move(block) | Effect::Mark(block) => {
                let to = self.book.place(*block).expect("a moved block is in the book");
                let no = self.kernel.find(*block).expect("a moved block has a file");
                let from = self.kernel.file_mut(no).place.replace(to.clone());
                let from = from.expect("it was found by its name").0;
                assert!(!running || EDGES.contains(&(from, to.0)), "{block}: {from} to {}", to.0);
                self.record(if running {
                    format!("{from} to {}", to.0)
                } else {
                    format!("{from} adopted as {}", to.0)
                });
            }
            Effect::Resize { block, pages } => {
                let no = self.kernel.find(*block).expect("a resized block has a file");
                self.kernel.resize(no, pages.0);
            }
            Effect::Remove(block) | Effect::Unlink(block) => {
                let no = self.kernel.find(*block).expect("a removed block has a file");
                let file = self.kernel.file(no);
                if file.is_reachable() || !file.pinners.is_empty() {
                    self.record("removed while held");
                }
                self.kernel.unlink(no);
            }
        }
    }

    /// The daemon dies and another one takes over.
    pub(super) fn restart(&mut self, crash: Crash) {
        for nth in 0..self.workers.len() {
            if self.workers[nth].job.take().is_some() && crash.workers_die {
                self.leave(Actor::Worker(nth));
            }
        }
        self.stale.clear();
        self.orphans.clear();
        let reported =
            self.pools.iter().filter(|(_, reported)| *reported).map(|(config, _)| config.clone());
        self.book = Book::new(reported, self.provable).expect("checked pools");
        // Time has passed: more microseconds than numbers were given.
        self.micros += 1000;
        self.book.number_from(self.micros);
        let files: Vec<_> = self.kernel.linked().map(|(no, _)| no).collect();
        let mut effects = Vec::new();
        for no in files {
            let found = self.found(no);
            effects.extend(self.book.adopt(&found));
        }
        for (n, effect) in effects.iter().enumerate() {
            if crash.again == Some(n) {
                self.record("crash while starting");
                return self.restart(Crash { again: None, ..crash });
            }
            self.carry_out(effect, false);
        }
        self.find_unclaimed();
        self.record("restart");
    }

    fn found(&self, no: usize) -> Found {
        let file = self.kernel.file(no);
        let (state, name) = file.place.clone().expect("only linked files are found");
        let entry = journal::parse(&name, file.shape.page_size).expect("only the book names files");
        let alive = |lease| self.clients.iter().any(|c| c.open && c.lease == lease);
        Found {
            state,
            allocated: Pages(file.allocated()),
            reach: self.kernel.reach(no, self.provable),
            lease_alive: entry.part.as_ref().is_some_and(|p| alive(p.lease)),
            entry,
        }
    }

    pub(super) fn reach(&self, block: BlockId) -> Reach {
        let no = self.kernel.find(block).expect("a block of the book has a file");
        self.kernel.reach(no, self.provable)
    }

    /// Whether the actor has any page left of a file.
    pub(super) fn has(&self, actor: Actor, no: usize) -> bool {
        let file = self.kernel.files.get(&no);
        file.is_some_and(|f| f.holders.contains(&actor) || f.pinners.contains(&actor))
    }

    /// The actor is gone: descriptors, mappings, pins.
    pub(super) fn leave(&mut self, actor: Actor) {
        let files: Vec<_> = self.kernel.files.keys().copied().collect();
        for no in files {
            self.kernel.lift_limit(no, actor);
        }
    }

    /// Pages of memory in the unlent blocks of one shape.
    pub(super) fn unlent_memory(&self, of: Shape) -> u64 {
        let unlent = |b: &&crate::block::Block| {
            shape(b.pool()) == of && matches!(b.state(), State::Ready(_) | State::Zeroable { .. })
        };
        let memory = |id| self.kernel.find(id).map_or(0, |no| self.kernel.file(no).allocated());
        let blocks = StateName::ALL.into_iter().flat_map(|s| self.book.in_state(s));
        blocks.filter(unlent).map(|b| memory(b.id())).sum()
    }
}
