// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arbitrary sequences of events. After each one, everything in [`super::checks`] holds.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use units::{BlockId, JobId, Pages};

use super::events::{Event, sequence};
use super::kernel::Actor;
use super::world::{Fate, Setup, World};
use crate::block::{Block, StateName};

impl World {
    /// The nth of the present ones, with any number of them.
    fn pick(nth: usize, of: Vec<usize>) -> Option<usize> {
        nth.checked_rem(of.len()).map(|nth| of[nth])
    }

    /// A client that has a lease, a mapping or a pin.
    fn client(&self, nth: usize) -> Option<usize> {
        let has = |n: usize| {
            let client = &self.clients[n];
            client.open || client.files.iter().any(|no| self.has(Actor::Client(n), *no))
        };
        Self::pick(nth, (0..self.clients.len()).filter(|n| has(*n)).collect())
    }

    /// A worker that has a job.
    fn worker(&self, nth: usize) -> Option<usize> {
        let busy = |n: &usize| self.workers[*n].job.is_some();
        Self::pick(nth, (0..self.workers.len()).filter(busy).collect())
    }

    /// A worker that has no job any more, but still has its block.
    fn ghost(&self, nth: usize) -> Option<usize> {
        let ghost = |n: &usize| {
            let worker = &self.workers[*n];
            worker.job.is_none() && self.has(Actor::Worker(*n), worker.file)
        };
        Self::pick(nth, (0..self.workers.len()).filter(ghost).collect())
    }

    fn draining(&self) -> Vec<BlockId> {
        self.book.in_state(StateName::Draining).map(Block::id).collect()
    }

    fn settle_all(&mut self) {
        for id in self.draining() {
            self.settle(id, None, Fate::Fine);
        }
    }

    fn step(&mut self, event: Event) {
        // An event without its actor is skipped.
        self.happens(event);
        self.check();
    }

    fn happens(&mut self, event: Event) -> Option<()> {
        match event {
            Event::Lend { mut ask, like, pin, fate } => {
                if let Some((pool, blocks)) = like {
                    let key = self.pools[pool % self.pools.len()].0.key();
                    let pages = Pages(key.pages_per_block.0 * blocks);
                    ask.request.bytes = pages.bytes(key.page_size);
                    ask.request.page_size = Some(key.page_size);
                }
                self.lend(&ask, pin, fate);
            }
            Event::LendByName { ask, whole, fate } => self.lend_by_name(&ask, whole, fate),
            Event::Reconcile { fate } => self.reconcile(fate),
            Event::ComesBack { client, fate } => {
                let nth = client.checked_rem(self.clients.len())?;
                let ask = self.clients[nth].ask.clone();
                if ask.named.is_some() {
                    self.lend_by_name(&ask, false, fate);
                } else {
                    self.lend(&ask, false, fate);
                }
            }
            Event::ClientWrites { client, pages } => {
                self.client_writes(self.client(client)?, pages)
            }
            Event::ClientEnds { client } => {
                let nth = self.client(client)?;
                self.client_writes(nth, u64::MAX);
                self.leave(Actor::Client(nth));
                self.end_lease(nth, Fate::Fine);
                self.settle_all();
            }
            Event::ClientMeddles { client, pages, cut } => {
                self.meddle(self.client(client)?, pages, cut);
            }
            Event::ClientUnmaps { client } => self.unmap(self.client(client)?),
            Event::EndLease { client, fate } => self.end_lease(self.client(client)?, fate),
            Event::Revoke { client, fate } => self.revoke(self.client(client)?, fate),
            Event::ClientLeaves { client, fate } => {
                let nth = self.client(client)?;
                self.leave(Actor::Client(nth));
                self.end_lease(nth, fate);
            }
            Event::Settle { block, seen, fate } => {
                let draining = self.draining();
                let nth = block.checked_rem(draining.len())?;
                self.settle(draining[nth], seen, fate);
            }
            Event::SettleAll => self.settle_all(),
            Event::Wait { seconds, fate } => self.wait(seconds, fate),
            Event::Fill { blocks, pages } => {
                self.observe();
                self.fill(blocks, pages);
            }
            Event::Take { who, node, size, fate } => {
                self.take(who, node, size, fate);
            }
            Event::Work { worker, pages } => self.work(self.worker(worker)?, pages),
            Event::Finish { worker, report, lets_go, fate } => {
                self.finish(self.worker(worker)?, report, lets_go, fate);
            }
            Event::FinishNobodys(job) => self.finish_unlent(JobId(job)),
            Event::LoseJob { worker, dies, fate } => {
                self.lose_job(self.worker(worker)?, dies, fate);
            }
            Event::Scribble { ghost, page } => self.scribble(self.ghost(ghost)?, page),
            Event::GhostLeaves { ghost } => self.leave(Actor::Worker(self.ghost(ghost)?)),
            Event::Release { node, size, pages, fate } => self.release(node, size, pages, fate),
            Event::Relieve { fate } => self.relieve(fate),
            Event::Observe => self.observe(),
            Event::WantedWorkers { max } => assert!(self.book.wanted_workers(max) <= max),
            Event::Outside { shape, pages, takes } => self.outside(shape, pages, takes),
            Event::Configure { pool, change } => {
                let key = self.pools[pool % self.pools.len()].0.key();
                self.configure(change.of(key, self.pins));
            }
            Event::Reload { pool, change, forget_pool, fate } => {
                let key = self.pools[pool % self.pools.len()].0.key();
                let forgotten = forget_pool.map(|nth| nth % self.pools.len());
                self.reload(change.of(key, self.pins), forgotten, fate);
            }
            Event::Restart { forget_pool, how } => {
                if let Some(pool) = forget_pool {
                    let nth = pool % self.pools.len();
                    self.pools[nth].1 = false;
                }
                self.restart(how);
            }
        }
        Some(())
    }
}

fn run(setup: Setup, events: Vec<Event>) -> World {
    let mut world = World::new(setup);
    world.observe();
    world.check();
    for event in events {
        world.step(event);
    }
    world
}

proptest! {
    // XorShift: every choice draws a seed for the roads not taken, and with the default ChaCha
    // that is half of the test's time.
    #![proptest_config(Config {
        cases: 2 * Config::default().cases,
        max_shrink_iters: 20_000,
        rng_algorithm: RngAlgorithm::XorShift,
        ..Config::default()
    })]

    // Promise P6 (zero claim): Only clearing makes a block ready; only a loan spends that; states
    // change by legal moves only, in every sequence of events, crashes included.
    // Promise P28.
    // Promise P123.
    // Promise P146 (names): One name is never two loans, and no loan has a name before it is ready
    // for its user: in every sequence of events, a crash between any two effects included.
    // Promise P221.
    #[test]
    fn every_sequence_of_events_keeps_the_invariants((setup, events) in sequence()) {
        run(setup, events);
    }
}

// Promise P146.
#[test]
fn the_sequences_reach_every_move_every_loan_and_every_refusal() {
    let rng = TestRng::deterministic_rng(RngAlgorithm::XorShift);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..2000 {
        let tree = sequence().new_tree(&mut runner).expect("a sequence");
        let (setup, events) = tree.current();
        for (what, times) in run(setup, events).seen {
            *seen.entry(what).or_default() += times;
        }
    }
    let missing: Vec<_> = [
        "zeroable to zeroing",
        "zeroing to ready",
        "zeroing to zeroable",
        "zeroing to draining",
        "ready to lent",
        "lent to draining",
        "draining to kept",
        "draining to zeroable",
        "kept to lent",
        "kept to draining",
        "zeroable adopted as draining",
        "zeroing adopted as draining",
        "ready adopted as ready",
        "ready adopted as draining",
        "lent adopted as lent",
        "lent adopted as draining",
        "draining adopted as draining",
        "kept adopted as kept",
        "cut or grown by its client",
        "punched by its client",
        "revoked",
        "crash between effects",
        "crash before the answer",
        "crash while starting",
        "failed effect",
        "a mark fails",
        "removed while held",
        "lost worker",
        "late write",
        "taken to allocate",
        "taken to go on allocating",
        "taken to clear",
        "relieved",
        "dissolved",
        "lent exact",
        "lent trimmed",
        "lent grown",
        "lent an unbacked part",
        "lent several whole blocks",
        "lent blocks and an unbacked part",
        "lent from two nodes",
        "lent kept",
        "lent kept in several blocks",
        "asks with more than was lent",
        "refused: size",
        "refused: no such pool",
        "refused: quota",
        "refused: not enough",
        "refused: owner is draining",
        "lent by name",
        "lent by name, whole",
        "lent by the same name again",
        "lent by a name whose caller never heard of it",
        "a name for a loan of another kind",
        "crash before a loan has its name",
        "returned by name",
        "returned: a loan of nobody's",
        "refused: name",
        "refused: too many names",
        "refused: quota of a scope",
        "lent kept by name",
        "refused: content on its way to a name",
    ]
    .into_iter()
    .filter(|what| !seen.contains_key(*what))
    .collect();
    assert!(missing.is_empty(), "no sequence came to {missing:?}; seen: {seen:?}");
}
