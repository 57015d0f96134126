// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What workers, the operator and other programs do.

use units::{JobId, Node, PageSize, Pages};
use wire::ZeroBy;

use super::kernel::{Actor, Content, Shape};
use super::world::{Fate, Worker, World, shape};
use crate::block::{Block, Reach, StateName};
use crate::book::{Effect, Requester};
use crate::config::PoolConfig;

/// What a worker says of its block.
#[derive(Debug, Clone, Copy)]
pub(super) enum Claim {
    /// Fewer pages than it did.
    Less(u64),
    /// More than the block has, by this number and one.
    Beyond(u64),
}

impl World {
    /// A worker asks for a block. Returns which worker has it now, if it got one.
    pub(super) fn take(
        &mut self,
        who: Requester,
        node: Option<Node>,
        size: Option<PageSize>,
        fate: Fate,
    ) -> Option<usize> {
        let fits = |at: &Shape| at.fits(node, size);
        let keys: Vec<_> = self.book.pool_keys().filter(|k| fits(&shape(*k))).collect();
        let zeroable: u64 = keys.iter().map(|k| self.book.zeroable(*k).0).sum();
        let before: Vec<_> =
            self.kernel.total.keys().map(|at| (*at, self.available(*at))).collect();
        let taken = self.book.take_zeroing(who, node, size);
        assert!(who != Requester::User || taken.is_some() == (zeroable > 0), "{zeroable} zeroable");
        let (order, effects) = taken?;
        assert!(self.jobs_seen.insert(order.job), "{} was used before", order.job);
        let at = shape(order.pool);
        assert!(fits(&at), "{order:?}");
        let reported = self.reported(order.pool);
        let config = self.book.pool_config(reported).expect("its pool").clone();
        let is_new = effects.iter().any(|e| matches!(e, Effect::Create { .. }));
        let owned: u64 = self
            .blocks()
            .filter(|b| self.reported(b.pool()) == reported)
            .map(|b| b.pages().0)
            .sum();
        assert!(!is_new || config.max.is_none_or(|max| owned <= max.0), "{owned} of {config:?}");
        let coming = |state| -> u64 {
            let blocks = self.book.in_state(state).filter(|b| self.reported(b.pool()) == reported);
            blocks.map(|b| b.pages().0).sum()
        };
        let others =
            coming(StateName::Ready) + coming(StateName::Zeroing) - order.pool.pages_per_block.0;
        let enough = others >= config.ready_high.0;
        assert!(who == Requester::User || !enough, "{others} pages are coming of {config:?}");
        if !self.execute(&effects, fate) {
            return None;
        }
        let file =
            self.kernel.find(order.block().expect("a block")).expect("a taken block has a file");
        let nth = self.workers.len();
        self.kernel.file_mut(file).holders.insert(Actor::Worker(nth));
        self.workers.push(Worker {
            job: Some(order.job),
            file,
            first: order.first.0,
            done: order.first.0,
            pages: order.pool.pages_per_block.0,
            by: order.by(),
        });
        // Invariant 5: what this job will take from the kernel leaves enough behind.
        let before = before.into_iter().find(|(shape, _)| *shape == at).map_or(0, |(_, n)| n);
        let after = self.available(at);
        if after < before && !self.stale.contains(&at) {
            let leave = i64::try_from(config.leave_free.0).expect("a simulation is small");
            assert!(after >= leave, "{after} pages are left of {leave} to be left: {order:?}");
        }
        self.record(match (order.by(), order.first) {
            (ZeroBy::Clear, _) => "taken to clear",
            (ZeroBy::Allocate, Pages(0)) => "taken to allocate",
            (ZeroBy::Allocate, _) => "taken to go on allocating",
            (ZeroBy::Kernel, _) => panic!("a block is never zeroed where the kernel keeps it"),
        });
        Some(nth)
    }

    /// A worker zeroes some pages, as the real one would; it stops where the kernel has none.
    pub(super) fn work(&mut self, nth: usize, pages: u64) {
        let Worker { job: Some(_), file, done, pages: all, by, .. } = self.workers[nth] else {
            return;
        };
        let at = self.kernel.file(file).shape;
        for page in done..all.min(done + pages) {
            // What clients' mappings reserved is not for workers.
            let unreserved = self.kernel.free[&at] > self.kernel.reserved(at);
            if !unreserved && !self.kernel.has_memory(file, page) {
                return;
            }
            let there = match by {
                ZeroBy::Allocate => self.kernel.allocate(file, page),
                ZeroBy::Clear => self.kernel.write(file, page, Content::Zero),
                ZeroBy::Kernel => unreachable!("no such job was taken"),
            };
            if !there {
                return;
            }
            self.workers[nth].done += 1;
        }
    }

    /// A worker reports. Where holders cannot be seen it is trusted to have let go.
    pub(super) fn finish(&mut self, nth: usize, report: Claim, lets_go: bool, fate: Fate) {
        let Worker { job: Some(job), file, first, done, pages, .. } = self.workers[nth] else {
            return;
        };
        if lets_go || !self.provable {
            self.kernel.lift_limit(file, Actor::Worker(nth));
        }
        self.workers[nth].job = None;
        let claim = match report {
            Claim::Less(n) => done.saturating_sub(n),
            Claim::Beyond(n) => pages + 1 + n,
        };
        let reach = self.kernel.reach(file, self.provable);
        let (seen, is_held) =
            (format!("{reach:?}"), matches!(reach, Reach::Shared | Reach::Pinned));
        let finished = self.book.finish_zeroing(job, Pages(claim), reach);
        let (_, state, effects) = finished.expect("a legal move").expect("a job that lives");
        let expected = match claim {
            _ if is_held => StateName::Draining,
            n if n < first || n > pages => StateName::Draining,
            n if n == pages => StateName::Ready,
            _ => StateName::Zeroable,
        };
        assert_eq!(state, expected, "{claim} of {pages} pages, from {first}, {seen}");
        self.execute(&effects, fate);
        self.finish_unlent(job);
    }

    /// A report for a job that does not live changes nothing.
    pub(super) fn finish_unlent(&mut self, job: JobId) {
        if self.workers.iter().any(|w| w.job == Some(job)) {
            return;
        }
        let (view, counters) = (self.view(), self.book.counters());
        assert_eq!(self.book.finish_zeroing(job, Pages(1), Reach::Sole), Ok(None));
        assert!(self.book.lose_job(job).is_empty());
        self.assert_unchanged(&view, counters, "a report for no job");
    }

    /// A worker's job descriptor closes without a report; the process may live on with the file.
    pub(super) fn lose_job(&mut self, nth: usize, dies: bool, fate: Fate) {
        if dies {
            self.leave(Actor::Worker(nth));
        }
        if let Some(job) = self.workers[nth].job.take() {
            let effects = self.book.lose_job(job);
            self.execute(&effects, fate);
            self.record("lost worker");
        }
    }

    /// A worker that was written off writes into what it still has.
    pub(super) fn scribble(&mut self, nth: usize, page: u64) {
        let Worker { job: None, file, .. } = self.workers[nth] else { return };
        let me = Actor::Worker(nth);
        if !self.has(me, file) || self.kernel.file(file).place.is_none() {
            return;
        }
        let at = self.kernel.file(file).shape;
        if self.kernel.has_memory(file, page) || self.available(at) > 0 {
            let free = self.kernel.free[&at];
            if self.kernel.write(file, page, Content::Of(me)) {
                self.record("late write");
            }
            if self.kernel.free[&at] < free {
                self.stale.insert(at);
            }
        }
    }

    /// A worker takes up to this number of blocks, one after the other, and clears up to this
    /// number of pages of each.
    pub(super) fn fill(&mut self, blocks: usize, pages: u64) {
        for _ in 0..blocks {
            let Some(nth) = self.take(Requester::User, None, None, Fate::Fine) else { break };
            self.work(nth, pages);
            self.finish(nth, Claim::Less(0), true, Fate::Fine);
        }
    }

    pub(super) fn release(
        &mut self,
        node: Option<Node>,
        size: Option<PageSize>,
        pages: u64,
        fate: Fate,
    ) {
        let fits = |at: &Shape| at.fits(node, size);
        let shapes: Vec<_> = self.kernel.total.keys().copied().filter(fits).collect();
        let free = |world: &Self| -> u64 {
            let bytes = world.kernel.free.iter().map(|(at, pages)| pages * at.page_size.bytes());
            bytes.sum()
        };
        let before = free(self);
        let given_before = self.book.counters().released_bytes;
        let (bytes, effects) = self.book.release(node, size, Pages(pages));
        assert_eq!(self.book.counters().released_bytes, given_before + bytes);
        if matches!(fate, Fate::Fine) {
            self.execute(&effects, fate);
            let freed = free(self) - before;
            // A worker that reports less than it did leaves uncounted memory.
            assert!(freed >= bytes.0, "{bytes} were said and {freed} came back");
            let left: u64 = shapes.iter().map(|at| self.unlent_memory(*at)).sum();
            let smallest = shapes.iter().map(|at| at.page_size.bytes()).min().unwrap_or_default();
            assert!(bytes.0 >= pages * smallest || left == 0, "{bytes} of {pages}, {left} left");
        } else {
            self.execute(&effects, fate);
        }
    }

    /// The daemon looks at the kernel's pool and gives back what others need.
    pub(super) fn relieve(&mut self, fate: Fate) {
        self.observe();
        let shapes: Vec<_> = self.book.domains().collect();
        let before: Vec<_> = shapes.iter().map(|at| self.available(*at)).collect();
        let effects = self.book.relieve();
        if !effects.is_empty() {
            self.record("relieved");
        }
        if !self.execute(&effects, fate) {
            return;
        }
        assert_eq!(self.book.relieve(), [], "relieved twice of one shortage");
        for (at, before) in shapes.into_iter().zip(before) {
            let here = self.book.pools.values().filter(|p| shape(p.config.key()) == at);
            let leave = here.map(|p| p.config.leave_free.0).max().unwrap_or_default();
            let missing = i64::try_from(leave).expect("a simulation is small") - before.max(0);
            let (given, left) = (self.available(at) - before, self.unlent_memory(at));
            assert!(given >= missing || left == 0, "{at:?}: {given} of {missing}, {left} unlent");
        }
    }

    /// Programs outside take pages, or give back what they took.
    pub(super) fn outside(&mut self, pick: usize, pages: u64, takes: bool) {
        let shapes: Vec<_> = self.kernel.total.keys().copied().collect();
        let at = shapes[pick % shapes.len()];
        let there = u64::try_from(self.available(at)).unwrap_or_default();
        let free = self.kernel.free.get_mut(&at).expect("a shape of the world");
        let outside = self.kernel.outside.entry(at).or_default();
        if takes {
            let n = pages.min(there);
            *free -= n;
            *outside += n;
            self.stale.insert(at);
        } else {
            let n = pages.min(*outside);
            *free += n;
            *outside -= n;
        }
    }

    pub(super) fn configure(&mut self, config: PoolConfig) {
        let (view, counters) = (self.view(), self.book.counters());
        let good = config.check().is_ok();
        assert_eq!(self.book.configure(config.clone()).is_ok(), good, "{config:?}");
        if !good {
            return self.assert_unchanged(&view, counters, "a refused configuration");
        }
        assert_eq!(self.book.pool_config(config.key()), Some(&config));
        if let Some(pool) = self.pools.iter_mut().find(|(p, _)| p.key() == config.key()) {
            *pool = (config, true);
        }
    }
    /// The operator's file is read again: one pool is as `config` says, `forgotten` is not in it.
    pub(super) fn reload(&mut self, config: PoolConfig, forgotten: Option<usize>, fate: Fate) {
        let (view, counters) = (self.view(), self.book.counters());
        let mut pools = self.pools.clone();
        if let Some(pool) = pools.iter_mut().find(|(p, _)| p.key() == config.key()) {
            *pool = (config, true);
        }
        if let Some(nth) = forgotten {
            pools[nth].1 = false;
        }
        let reported: Vec<_> =
            pools.iter().filter(|(_, reported)| *reported).map(|(p, _)| p.clone()).collect();
        let good = reported.iter().all(|config| config.check().is_ok());
        match self.book.reconfigure(reported.clone()) {
            Err(error) => {
                assert!(!good, "{error}");
                self.assert_unchanged(&view, counters, "a refused file");
            }
            Ok(effects) => {
                assert!(good, "{reported:?}");
                self.pools = pools;
                if !effects.is_empty() {
                    self.record("dissolved");
                }
                if self.execute(&effects, fate) {
                    let unlent =
                        |b: &&Block| b.is_unlent() && !self.book.pools[&b.pool()].configured;
                    assert_eq!(self.book.blocks.iter().filter(unlent).count(), 0);
                }
            }
        }
    }
}
