// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every state that can be reached, the nearest to a start of the daemon first.
//!
//! A book cannot be copied, and this gives a zero claim its worth. A state is therefore kept as its
//! history: the world at the last start of the daemon, and the steps since. A new book takes these
//! steps again whenever the state is looked at. That is most of the work, so the best way to a
//! state is the one with the fewest steps since a start. A daemon that dies leaves nearly
//! everything where it was, and the next one is few steps from it.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use book::Book;

use super::canon::fingerprint;
use super::scene::Scene;
use super::steps::{State, Step};
use super::world::{Worker, World};

/// A start of the daemon.
#[derive(Debug)]
struct Start {
    world: World,
    reversed: bool,
    /// The steps that led here, for the report of a failure.
    before: Option<(Arc<Start>, Box<[Step]>, Death)>,
}

/// When a daemon died.
#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "read by eyes")]
struct Death {
    at: Moment,
    workers_die: bool,
    /// The effect of its successor's start before which that died, too; 0 if it did not.
    again_at: usize,
}

/// A state, by how it came to be.
#[derive(Debug, Clone)]
struct History {
    start: Arc<Start>,
    steps: Box<[Step]>,
}

/// A fingerprint is a hash already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only whole fingerprints")
    }
    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

type Seen = HashSet<u64, BuildHasherDefault<AsIs>>;

/// The place within a step, for the report of a failure.
#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "read by eyes")]
enum Moment {
    Before,
    At(Step),
    Effect(Step, usize),
    DyingBefore(Step, usize),
    DyingAfter(Step),
    Failing(Step, usize, bool),
    DyingIdle,
    WhenEverybodyLetsGo,
}

/// What an exploration came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    /// The most steps since a start.
    pub(crate) depth: usize,
}

/// One exploration, shared by its threads.
pub(crate) struct Search<'a> {
    scene: &'a Scene,
    /// The number of states after which to stop: for a look at a scene that is too large.
    most: usize,
    seen: Vec<Mutex<Seen>>,
    /// The worlds in which a daemon died.
    deaths: Vec<Mutex<Seen>>,
    states: AtomicUsize,
    transitions: AtomicUsize,
    is_over: AtomicBool,
}

impl History {
    fn and(&self, step: Step) -> Self {
        let steps = self.steps.iter().copied().chain([step]).collect();
        Self { start: Arc::clone(&self.start), steps }
    }

    /// The same state again, by a book of its own.
    fn relive(&self, scene: &Scene) -> State {
        let (mut state, effects) =
            State::start(scene, self.start.world.clone(), self.start.reversed);
        for effect in &effects {
            state.world.carry_out(&state.book, effect, true);
        }
        state.started();
        state.world.soil();
        let mut steps = self.steps.iter();
        while let Some(step) = steps.next() {
            let failing = match steps.as_slice().first() {
                Some(Step::Failing { nth, removable }) => {
                    steps.next();
                    Some((usize::from(*nth), *removable))
                }
                _ => None,
            };
            state.take(scene, *step, failing);
        }
        state
    }
}

impl State {
    /// One step to its end, with one failure in it or none.
    fn take(&mut self, scene: &Scene, step: Step, failing: Option<(usize, bool)>) {
        if is_the_worlds(step) {
            self.world.happen(step, &self.book);
        } else {
            let (effects, then) = self.call(scene, step);
            let mut failed = None;
            for (n, effect) in effects.iter().enumerate() {
                let block = effect.block();
                match failing {
                    Some((nth, removable)) if nth == n => {
                        failed = Some(block);
                        self.fail(effect, removable);
                    }
                    _ if failed == Some(block) => {}
                    _ => self.world.carry_out(&self.book, effect, false),
                }
            }
            for effect in self.finish_call(then, failed.is_none()) {
                self.world.carry_out(&self.book, &effect, false);
            }
        }
        self.world.soil();
    }

    /// An effect fails: its block is forgotten, and its file removed if that can be.
    fn fail(&mut self, effect: &book::Effect, removable: bool) {
        let block = effect.block();
        self.book.forget(block);
        let Some(at) = self.world.find(block) else { return };
        if removable {
            self.world.files[at].place = None;
            self.world.reap();
        } else {
            self.world.files[at].is_orphan = true;
        }
    }
}

fn is_the_worlds(step: Step) -> bool {
    matches!(
        step,
        Step::LetGo { .. }
            | Step::Punch { .. }
            | Step::Mark { .. }
            | Step::Clear { .. }
            | Step::Leave { .. }
    )
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((before, steps, death)) = &self.start.before {
            Self { start: Arc::clone(before), steps: steps.clone() }.fmt(f)?;
            writeln!(f, "  -- the daemon dies: {death:?}")?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "  {step:?}"))
    }
}

/// The most that this process has had resident so far, in KiB.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

impl<'a> Search<'a> {
    pub(crate) fn new(scene: &'a Scene, most: usize) -> Self {
        Self {
            scene,
            most,
            seen: (0..256).map(|_| Mutex::default()).collect(),
            deaths: (0..256).map(|_| Mutex::default()).collect(),
            states: AtomicUsize::new(0),
            transitions: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// Looks at every state that can be reached.
    pub(crate) fn run(&self, threads: usize) -> Found {
        let begin = Instant::now();
        let world = World {
            free: self.scene.pages,
            total: self.scene.pages,
            now: 1,
            configured: true,
            ..World::default()
        };
        let start = Arc::new(Start { world, reversed: false, before: None });
        // By their number of steps.
        let mut waiting = vec![vec![History { start, steps: Box::default() }]];
        while let Some(nearest) = waiting.iter().position(|histories| !histories.is_empty())
            && !self.is_over.load(Ordering::Relaxed)
        {
            let layer = std::mem::take(&mut waiting[nearest]);
            for history in self.expand_all(&layer, threads) {
                let steps = history.steps.len();
                waiting.resize_with(waiting.len().max(steps + 1), Vec::new);
                waiting[steps].push(history);
            }
        }
        let depth = waiting.len() - 1;
        let states = self.states.load(Ordering::Relaxed);
        let transitions = self.transitions.load(Ordering::Relaxed);
        let cut = if self.is_over.load(Ordering::Relaxed) { ", stopped there" } else { "" };
        eprintln!(
            "{}: {states} states, {transitions} transitions, {depth} steps from a start, {:.1} s, \
             {} MiB{cut}",
            self.scene.name,
            begin.elapsed().as_secs_f64(),
            most_memory() >> 10
        );
        Found { states, transitions, depth }
    }

    /// Finds what can come after each of these.
    fn expand_all(&self, histories: &[History], threads: usize) -> Vec<History> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut found = Vec::new();
            while let Some(history) = histories.get(next.fetch_add(1, Ordering::Relaxed))
                && !self.is_over.load(Ordering::Relaxed)
            {
                self.expand(history, &mut found);
            }
            found
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.flat_map(|found| found.expect("failures are caught")).collect()
        })
    }

    fn insert(seen: &[Mutex<Seen>], fingerprint: u64) -> bool {
        let shard = usize::try_from((fingerprint >> 32) & 0xff).expect("one of 256");
        seen[shard].lock().unwrap_or_else(PoisonError::into_inner).insert(fingerprint)
    }

    /// Whether no daemon has died in that world before.
    fn is_new_death(&self, dead: &World) -> bool {
        self.transitions.fetch_add(1, Ordering::Relaxed);
        let nobody = Book::new([], true).expect("no pools");
        Self::insert(&self.deaths, fingerprint(dead, &nobody, self.scene))
    }

    /// Whether the state is new; it holds every invariant.
    fn is_new(&self, state: &State) -> bool {
        self.transitions.fetch_add(1, Ordering::Relaxed);
        let is_new = Self::insert(&self.seen, fingerprint(&state.world, &state.book, self.scene));
        if is_new {
            state.check(self.scene);
            let states = 1 + self.states.fetch_add(1, Ordering::Relaxed);
            if states.is_multiple_of(1_000_000) {
                eprintln!("{}: {states} states so far", self.scene.name);
            }
            if states >= self.most {
                self.is_over.store(true, Ordering::Relaxed);
            }
        }
        is_new
    }

    /// Finds what can come after a state. A failure says how it came to be.
    fn expand(&self, history: &History, found: &mut Vec<History>) {
        let mut last = Moment::Before;
        let looked = catch_unwind(AssertUnwindSafe(|| self.successors(history, found, &mut last)));
        if let Err(panic) = looked {
            self.is_over.store(true, Ordering::Relaxed);
            eprintln!("{}, by these steps:\n{history}  {last:?}", self.scene.name);
            std::panic::resume_unwind(panic);
        }
    }

    fn successors(&self, history: &History, found: &mut Vec<History>, last: &mut Moment) {
        let scene = self.scene;
        let mut state = history.relive(scene);
        for step in state.happenings(scene) {
            *last = Moment::At(step);
            let before = state.world.clone();
            state.take(scene, step, None);
            if self.is_new(&state) {
                found.push(history.and(step));
            }
            state.world = before;
        }
        let mut same = None;
        for step in state.calls(scene) {
            *last = Moment::At(step);
            same = self.call(history, step, same, found, last);
        }
        *last = Moment::DyingIdle;
        self.crash(history, *last, &state.world, found);
        *last = Moment::WhenEverybodyLetsGo;
        state.assert_comes_back(scene);
    }

    /// Makes a call in a state, as `same` or relived. Returns that state where the call changed
    /// nothing in it, so that the next one needs none of its own.
    fn call(
        &self,
        history: &History,
        step: Step,
        same: Option<State>,
        found: &mut Vec<History>,
        last: &mut Moment,
    ) -> Option<State> {
        let scene = self.scene;
        let mut state = same.unwrap_or_else(|| history.relive(scene));
        let before = fingerprint(&state.world, &state.book, scene);
        let (effects, then) = state.call(scene, step);
        for (n, effect) in effects.iter().enumerate() {
            *last = Moment::DyingBefore(step, n);
            self.crash(history, *last, &state.world, found);
            *last = Moment::Effect(step, n);
            state.world.carry_out(&state.book, effect, false);
        }
        if !effects.is_empty() {
            *last = Moment::DyingBefore(step, effects.len());
            self.crash(history, *last, &state.world, found);
        }
        *last = Moment::At(step);
        for effect in state.finish_call(then, true) {
            self.crash(history, Moment::DyingAfter(step), &state.world, found);
            state.world.carry_out(&state.book, &effect, false);
        }
        state.world.soil();
        let is_changed =
            !effects.is_empty() || before != fingerprint(&state.world, &state.book, scene);
        if self.is_new(&state) {
            found.push(history.and(step));
        }
        let failing = if scene.fails { effects.len() } else { 0 };
        for nth in 0..failing {
            for removable in [true, false] {
                *last = Moment::Failing(step, nth, removable);
                let mut state = history.relive(scene);
                state.take(scene, step, Some((nth, removable)));
                if self.is_new(&state) {
                    let nth = u8::try_from(nth).expect("few effects");
                    found.push(history.and(step).and(Step::Failing { nth, removable }));
                }
            }
        }
        (!is_changed).then_some(state)
    }

    /// The daemon dies in that world, and perhaps again and again while it starts.
    fn crash(&self, history: &History, at: Moment, world: &World, found: &mut Vec<History>) {
        let busy = world.workers.iter().any(|w| matches!(w, Worker::Busy { .. }));
        for workers_die in [true, false].into_iter().take(1 + usize::from(busy)) {
            let mut dead = world.clone();
            dead.crash(workers_die);
            dead.soil();
            self.start(history, dead, at, workers_die, found);
        }
    }

    fn start(
        &self,
        history: &History,
        dead: World,
        at: Moment,
        workers_die: bool,
        found: &mut Vec<History>,
    ) {
        let mut todo = vec![(dead, 0)];
        while let Some((dead, again_at)) = todo.pop() {
            if !self.is_new_death(&dead) {
                continue;
            }
            // In which order files are found matters where the daemon had forgotten some.
            let orders = 1 + usize::from(self.scene.fails && dead.files.len() > 1);
            for reversed in [false, true].into_iter().take(orders) {
                let (mut state, effects) = State::start(self.scene, dead.clone(), reversed);
                for (n, effect) in effects.iter().enumerate() {
                    if n > 0 {
                        let mut again = state.world.clone();
                        again.crash(true);
                        todo.push((again, n));
                    }
                    state.world.carry_out(&state.book, effect, true);
                }
                state.started();
                state.world.soil();
                if self.is_new(&state) {
                    let death = Death { at, workers_die, again_at };
                    let before = Some((Arc::clone(&history.start), history.steps.clone(), death));
                    let start = Start { world: dead.clone(), reversed, before };
                    found.push(History { start: Arc::new(start), steps: Box::default() });
                }
            }
        }
    }
}
