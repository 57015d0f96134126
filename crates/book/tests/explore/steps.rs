// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can happen in a state, and the daemon's calls of the book, effect by effect.

use book::block::{Settled, State as Life, StateName};
use book::config::PoolConfig;
use book::{Asked, Book, Effect, Found, Loan, Named, Refusal, Requester};
use units::{Counts, LeaseId, LoanName, Pages};
use wire::LendRequest;

use super::scene::Scene;
use super::world::{ByName, File, Held, PAGE, Whose, Worker, World, index, pool_key, uid};

/// One thing that happens. Files are told by their place in the world's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A user's program asks for this number of pages, perhaps in the name of an owner.
    Lend {
        user: u8,
        pages: u8,
        owner: bool,
    },
    /// The last descriptor of its lease is closed.
    Close {
        user: u8,
    },
    /// It has less of a file than before.
    LetGo {
        file: u8,
        user: u8,
        to: Held,
    },
    /// It frees the pages of a file that it has open.
    Punch {
        file: u8,
    },
    /// A program leaves something of its own with its file.
    Mark {
        file: u8,
    },
    /// The agent asks for a loan by a name for a user.
    Ask {
        name: u8,
        user: u8,
        owner: bool,
    },
    /// A pending loan gets its name. A whole loan is filled to the last page before.
    HeldBy {
        name: u8,
        whole: bool,
    },
    /// The agent returns a name, perhaps so that nothing is kept.
    Return {
        name: u8,
        discard: bool,
    },
    /// The operator ends the loan of a file, or takes away what is draining of it.
    Revoke {
        file: u8,
    },
    /// The operator wants an unused page back.
    Release,
    /// The operator takes the pool out of the configuration, or puts it back.
    Reload,
    /// The daemon looks at the users of a draining file.
    Settle {
        file: u8,
    },
    /// The time of all kept content is over.
    Expire,
    Take {
        worker: u8,
    },
    Clear {
        worker: u8,
    },
    /// A worker reports what it has cleared. Whether it lets go of its block before.
    Finish {
        worker: u8,
        lets_go: bool,
    },
    /// A worker is heard of no more: it died, or not.
    Lose {
        worker: u8,
        dies: bool,
    },
    /// A worker without a job lets go of what it still has.
    Leave {
        worker: u8,
    },
    /// The nth effect of a call fails. Whether its file could be removed then.
    Failing {
        nth: u8,
        removable: bool,
    },
}

/// A running daemon and its world.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) world: World,
    pub(crate) book: Book,
}

/// What remains to be done when the effects of a call are.
#[derive(Debug)]
pub(crate) enum Then {
    Nothing,
    HandOver { user: usize, loan: Loan, owner: bool },
    Begun { name: usize, user: usize, lease: LeaseId, owner: Whose, kept: bool },
    Held { name: usize, user: usize, lease: LeaseId, owner: Whose, kept: bool },
    Taken { worker: usize, order: book::JobOrder },
}

pub(crate) fn loan_name(name: usize) -> LoanName {
    ["a/x", "b/x"][name].parse().expect("a name")
}

fn owner_name() -> units::Owner {
    "o".parse().expect("an owner's name")
}

impl State {
    fn ask(scene: &Scene, user: usize, pages: u64, owner: bool) -> Asked {
        let mut request = LendRequest::new(Pages(pages).bytes(PAGE));
        request.single = scene.single;
        if owner {
            request.owner = Some(owner_name());
            request.keep = Some(std::time::Duration::from_secs(60));
        }
        let quota = Some(Pages(scene.quota).bytes(PAGE));
        let (uid, account) = (uid(user), uid(user));
        Asked { request, uid, account, quota, await_owner: true, named: None }
    }

    /// The kernel's counts, less what jobs and loans that are being made have yet to take.
    fn look(&mut self, scene: &Scene) {
        let missing = |block: &book::block::Block| self.world.file(block.id()).missing();
        let zeroing: u64 = self.book.in_state(StateName::Zeroing).map(missing).sum();
        let pending = self.world.names.iter().filter_map(|name| match name {
            ByName::Pending { lease, .. } => self.book.lease_blocks(*lease).first().copied(),
            _ => None,
        });
        let pending: u64 = pending.map(|block| self.world.file(block).missing()).sum();
        let available = Pages(self.world.free.saturating_sub(zeroing + pending));
        let total = Pages(self.world.total);
        let seen = Counts { available, total, ..Counts::default() };
        self.book.observe(pool_key(scene.pages_per_block).domain(), &seen);
    }

    /// Asks the book. What the daemon and others do besides is done here, too; effects are not.
    pub(crate) fn call(&mut self, scene: &Scene, step: Step) -> (Vec<Effect>, Then) {
        self.look(scene);
        let none = (Vec::new(), Then::Nothing);
        match step {
            Step::Lend { user, pages, owner } => {
                let user = usize::from(user);
                let ask = Self::ask(scene, user, pages.into(), owner);
                let held = self.book.held_by(uid(user)).0;
                match self.book.lend(&ask) {
                    Ok((loan, effects)) => {
                        let quota = ask.quota.expect("everybody has one").0;
                        assert!(loan.kept || held + ask.request.bytes.0 <= quota, "over the quota");
                        self.is_new_lease(loan.lease);
                        let lent: Pages = loan.parts.iter().map(|part| part.pages).sum();
                        assert_eq!(lent.0, u64::from(pages), "not what was asked for");
                        (effects, Then::HandOver { user, loan, owner })
                    }
                    Err(refusal) => {
                        assert_ne!(refusal, Refusal::NameTaken);
                        none
                    }
                }
            }
            Step::Close { user } => {
                let lease = self.world.leases[usize::from(user)].take().expect("it is open");
                (self.book.end_lease(lease), Then::Nothing)
            }
            Step::Ask { name, user, owner } => {
                self.ask_by_name(scene, name.into(), user.into(), owner)
            }
            Step::HeldBy { name, whole } => self.hold(name.into(), whole),
            Step::Return { name, discard } => {
                let name = usize::from(name);
                self.world.names[name] = ByName::Nothing;
                let found = self.book.named(&loan_name(name)).expect("there is one to return");
                let effects = match discard {
                    true => self.book.end_unkept(found.lease),
                    false => self.book.end_lease(found.lease),
                };
                (effects, Then::Nothing)
            }
            Step::Revoke { file } => self.revoke(usize::from(file)),
            Step::Release => (self.book.release(None, None, Pages(1)).1, Then::Nothing),
            Step::Reload => {
                self.world.configured = !self.world.configured;
                let pools = pools(scene, &self.world);
                (self.book.reconfigure(pools).expect("good pools"), Then::Nothing)
            }
            Step::Settle { file } => (self.settle(scene, file.into()), Then::Nothing),
            Step::Expire => {
                let next = self.book.next_expiry().expect("something is kept");
                self.world.now = self.world.now.max(next);
                (self.book.expire(self.world.now), Then::Nothing)
            }
            Step::Take { worker } => match self.book.take_zeroing(Requester::User, None, None) {
                Some((order, effects)) => {
                    assert!(order.job.0 > self.world.last.2, "{} comes again", order.job);
                    self.world.last.2 = order.job.0;
                    (effects, Then::Taken { worker: worker.into(), order })
                }
                None => none,
            },
            Step::Finish { worker, lets_go } => {
                (self.finish(scene, worker.into(), lets_go), Then::Nothing)
            }
            Step::Lose { worker, dies } => {
                let worker = usize::from(worker);
                let Worker::Busy { job, block, .. } = self.world.workers[worker] else {
                    return none;
                };
                self.world.workers[worker] = Worker::Ghost { block };
                if dies {
                    self.leave(worker);
                }
                (self.book.lose_job(job), Then::Nothing)
            }
            Step::LetGo { .. }
            | Step::Punch { .. }
            | Step::Mark { .. }
            | Step::Clear { .. }
            | Step::Leave { .. }
            | Step::Failing { .. } => unreachable!("{step:?} is nothing that the book hears of"),
        }
    }

    fn is_new_lease(&mut self, lease: LeaseId) {
        assert!(lease.0 > self.world.last.1, "{lease} comes again");
        self.world.last.1 = lease.0;
    }

    fn ask_by_name(
        &mut self,
        scene: &Scene,
        name: usize,
        user: usize,
        in_owners_name: bool,
    ) -> (Vec<Effect>, Then) {
        let owner = if in_owners_name { Whose::Scoped(name) } else { Whose::Nobodys };
        let mut ask = Self::ask(scene, user, scene.pages_per_block, in_owners_name);
        (ask.request.single, ask.quota) = (true, None);
        ask.named = Some(Named { name: loan_name(name), quota: None, most: usize::MAX });
        if let Some(found) = self.book.named(&loan_name(name)) {
            assert_eq!(self.book.lend(&ask).map(drop), Err(Refusal::NameTaken));
            if !found.is_pending && found.fits(&ask) {
                // The first caller has it, or never got the answer.
                self.world.names[name] = ByName::Reported { block: found.block, user };
                self.world.give_to(found.block, user, owner);
            }
            return (Vec::new(), Then::Nothing);
        }
        match self.book.lend(&ask) {
            Ok((loan, effects)) => {
                self.is_new_lease(loan.lease);
                assert_eq!(loan.parts.len(), 1, "a loan by name is one file");
                let (lease, kept) = (loan.lease, loan.kept);
                (effects, Then::Begun { name, user, lease, owner, kept })
            }
            Err(refusal) => {
                let draining = in_owners_name && refusal == Refusal::OwnerDraining;
                let lacks = matches!(refusal, Refusal::NotEnough { .. } | Refusal::NoSuchPool);
                assert!(draining || lacks, "{refusal:?}");
                (Vec::new(), Then::Nothing)
            }
        }
    }

    fn hold(&mut self, name: usize, whole: bool) -> (Vec<Effect>, Then) {
        let pending = std::mem::take(&mut self.world.names[name]);
        let ByName::Pending { lease, user, owner, kept } = pending else {
            unreachable!("it is pending")
        };
        if whole {
            let block = self.book.lease_blocks(lease).first().copied();
            if !block.is_some_and(|block| self.world.fill(block)) {
                return (self.book.end_lease(lease), Then::Nothing);
            }
            self.book.record_whole(lease);
        }
        (self.book.hold_by_name(lease), Then::Held { name, user, lease, owner, kept })
    }

    fn revoke(&mut self, file: usize) -> (Vec<Effect>, Then) {
        let block = self.world.files[file].block;
        let lease = self.book.block(block).and_then(|block| match block.state() {
            Life::Lent(part) | Life::Draining(Some(part)) => Some(part.lease),
            _ => None,
        });
        let lease = lease.expect("it is lent or was");
        for open in self.world.leases.iter_mut().filter(|open| **open == Some(lease)) {
            *open = None;
        }
        for name in &mut self.world.names {
            let is_its = match *name {
                ByName::Pending { lease: of, .. } => of == lease,
                ByName::Reported { block: of, .. } => of == block,
                ByName::Nothing => false,
            };
            if is_its {
                *name = ByName::Nothing;
            }
        }
        let (_, effects) = self.book.revoke(lease).expect("there is a loan");
        (effects, Then::Nothing)
    }

    /// A return becomes free, is kept for its owner, or goes.
    fn settle(&mut self, scene: &Scene, file: usize) -> Vec<Effect> {
        let block = self.world.files[file].block;
        let file = self.world.file(block);
        let pages = self.book.block(block).expect("it is draining").pages();
        let allocated = if file.pages().len() == index(pages) { file.memory() } else { 0 };
        let held = file.most_held();
        let reach = self.world.reach(block, scene.shows_pins);
        self.book.record_memory(block, Pages(allocated));
        let (settled, effects) =
            self.book.settle(block, reach, self.world.now).expect("it is draining");
        let is_held = held > Held::Pinned || (held == Held::Pinned && scene.shows_pins);
        assert_eq!(settled == Settled::Draining, is_held, "{block} is held by {held:?}");
        effects
    }

    fn finish(&mut self, scene: &Scene, worker: usize, lets_go: bool) -> Vec<Effect> {
        let Worker::Busy { job, block, cleared } = self.world.workers[worker] else {
            unreachable!("it is busy")
        };
        self.world.workers[worker] = Worker::Ghost { block };
        let reach = if lets_go {
            self.leave(worker);
            self.world.reach(block, scene.shows_pins)
        } else {
            book::block::Reach::Shared
        };
        let done = Pages(cleared.min(self.world.file(block).memory()));
        let ended = self.book.finish_zeroing(job, done, reach).expect("a legal move");
        ended.expect("a job that lives").2
    }

    fn leave(&mut self, worker: usize) {
        self.world.workers[worker] = Worker::Idle;
        self.world.lets_go(worker);
    }

    /// A daemon starts and takes over what it finds; no effect of that is carried out yet.
    pub(crate) fn start(scene: &Scene, mut world: World, reversed: bool) -> (Self, Vec<Effect>) {
        for file in &mut world.files {
            file.is_orphan = false;
        }
        let mut book = Book::new(pools(scene, &world), true).expect("good pools");
        if scene.shows_pins {
            book.see_pins_of([PAGE]);
        }
        let last = world.last;
        book.number_from(last.0.max(last.1).max(last.2) + 1000);
        let mut found = world.linked();
        if reversed {
            found.reverse();
        }
        let mut effects = Vec::new();
        for block in found {
            let file = world.file(block);
            let (state, entry) = file.place.as_ref().expect("it is linked");
            let looks = matches!(state, StateName::Ready | StateName::Kept);
            let open = |lease| world.leases.contains(&Some(lease));
            let found = Found {
                state: *state,
                entry: entry.as_ref().clone(),
                allocated: Pages(file.memory()),
                reach: match looks {
                    true => world.reach(block, scene.shows_pins),
                    false => book::block::Reach::Shared,
                },
                lease_alive: entry.part.as_ref().is_some_and(|part| open(part.lease)),
            };
            effects.extend(book.adopt(&found));
        }
        (Self { world, book }, effects)
    }

    /// A lease without blocks has no holder.
    pub(crate) fn started(&mut self) {
        let known: Vec<_> = self.book.leases().collect();
        for lease in &mut self.world.leases {
            *lease = lease.filter(|lease| known.contains(lease));
        }
    }
}

impl World {
    /// The daemon dies, and its workers with it or not.
    pub(crate) fn crash(&mut self, workers_die: bool) {
        for worker in 0..self.workers.len() {
            if let Worker::Busy { block, .. } = self.workers[worker] {
                self.workers[worker] = Worker::Ghost { block };
                if workers_die {
                    self.workers[worker] = Worker::Idle;
                    self.lets_go(worker);
                }
            }
        }
        for name in &mut self.names {
            if let ByName::Pending { .. } = name {
                *name = ByName::Nothing;
            }
        }
        // The file stays unknown until the next start.
        self.files.iter_mut().for_each(|file| file.is_orphan = file.place.is_some());
    }

    /// Something that the book does not hear of.
    pub(crate) fn happen(&mut self, step: Step, book: &Book) {
        match step {
            Step::LetGo { file, user, to } => {
                self.files[usize::from(file)].held[usize::from(user)] = to;
                self.reap();
            }
            Step::Punch { file } => self.punch(file.into()),
            Step::Mark { file } => self.mark(file.into()),
            Step::Clear { worker } => {
                let worker = usize::from(worker);
                let Worker::Busy { job, .. } = self.workers[worker] else { return };
                let order = book.job(job).expect("a job that lives").clone();
                self.clear(worker, &order);
            }
            Step::Leave { worker } => {
                self.workers[usize::from(worker)] = Worker::Idle;
                self.lets_go(worker.into());
            }
            _ => unreachable!("{step:?} is the book's"),
        }
    }

    /// Whether a file is known to the daemon.
    pub(crate) fn is_known(file: &File) -> bool {
        file.place.is_some() && !file.is_orphan
    }
}

fn pools(scene: &Scene, world: &World) -> Vec<PoolConfig> {
    let pool = PoolConfig {
        recycle: scene.recycle,
        ready_high: Pages(scene.pages.min(2)),
        ..PoolConfig::new(pool_key(scene.pages_per_block))
    };
    world.configured.then_some(pool).into_iter().collect()
}
