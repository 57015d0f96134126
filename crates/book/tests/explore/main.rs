// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every state of the book within bounds, its crashes and failures included.
//!
//! The real [`book::Book`] is driven by its public methods, in a [`world`] of files, programs,
//! workers and an agent. Its effects are carried out one by one, and before each of them, and
//! before the answer, the daemon dies and another one takes over the files that it finds. In every
//! state [`checks`] hold, and everything comes back once every process lets go. Two states that
//! differ only in names are one ([`canon`]).
//!
//! `cargo test --release -p prezero-book --test explore -- --nocapture` looks at all of it; an
//! unoptimised build, as `make test` makes it, at what takes seconds. `PREZERO_EXPLORE_ONLY` are
//! the names of scenes, parted by `/`, `PREZERO_EXPLORE_MOST` is after how many states of a scene
//! to stop, `PREZERO_EXPLORE_THREADS` how many threads look (all CPUs unless told otherwise).

mod answers;
mod canon;
mod checks;
mod choices;
mod scene;
mod search;
mod steps;
mod world;

use scene::{PLAIN, Scene};
use search::Search;
use wire::Recycle;

/// Three blocks, two users, and one thing after the other that makes it difficult; then as much of
/// it at once as there is.
const SCENES: &[Scene] = &[
    Scene { name: "plain", ..PLAIN },
    Scene { name: "fresh", recycle: Recycle::Fresh, ..PLAIN },
    Scene { name: "in place", recycle: Recycle::InPlace, pins: false, shows_pins: false, ..PLAIN },
    Scene { name: "mapped", maps: true, ..PLAIN },
    Scene { name: "punched", punches: true, ..PLAIN },
    Scene { name: "marked", marks: true, ..PLAIN },
    Scene { name: "marked and kept", marks: true, keeps: true, ..PLAIN },
    Scene { name: "revoked and reloaded", operator: true, ..PLAIN },
    Scene { name: "kept", keeps: true, ..PLAIN },
    Scene { name: "named", names: 1, ..PLAIN },
    Scene { name: "kept by name", names: 1, owned: true, most: MANY, ..PLAIN },
    Scene { name: "failing", pages: 2, files: 3, fails: true, ..PLAIN },
    Scene { name: "two workers", workers: 2, ..PLAIN },
    Scene {
        name: "blocks of two",
        pages_per_block: 2,
        pages: 4,
        sizes: &[1, 2, 3],
        single: true,
        most: MANY,
        ..PLAIN
    },
    Scene { name: "kept and named", keeps: true, names: 1, ..PLAIN },
    Scene {
        name: "two blocks kept by two names",
        pages: 2,
        files: 3,
        keeps: true,
        names: 2,
        owned: true,
        punches: true,
        most: MANY,
        ..PLAIN
    },
    Scene { name: "two blocks, all of it", pages: 2, files: 3, fails: true, ..ALL },
    ALL,
];

/// Of scenes that are too large to be looked at to their end: the nearest of their states.
const MANY: usize = 2_000_000;

/// Everything at once, but for effects that fail.
const ALL: Scene = Scene {
    name: "all of it",
    workers: 2,
    keeps: true,
    names: 2,
    owned: true,
    maps: true,
    punches: true,
    operator: true,
    most: MANY,
    ..PLAIN
};

/// What an unoptimised build looks at in seconds: the same with two blocks.
const SMALL: &[Scene] = &[
    Scene { name: "small", pages: 1, files: 2, ..PLAIN },
    Scene { name: "small, kept", pages: 1, files: 2, keeps: true, ..PLAIN },
    Scene { name: "small, marked", pages: 1, files: 2, keeps: true, marks: true, ..PLAIN },
    Scene { name: "small, named", pages: 1, files: 2, names: 1, ..PLAIN },
    Scene {
        name: "small, kept by names",
        pages: 1,
        files: 2,
        names: 2,
        owned: true,
        punches: true,
        ..PLAIN
    },
    Scene { name: "small, failing", pages: 1, files: 2, fails: true, ..PLAIN },
    Scene { name: "small, of an operator", pages: 1, files: 2, operator: true, ..PLAIN },
];

fn number_from(variable: &str) -> Option<usize> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

// Promise P170 (crashes): In every state of the book that two users, two workers, an agent, three
// blocks, failed effects and a crash before any effect can cause, P2, P4, P6, P23, P28, P36, P103
// and P146 hold. Once all programs let go, every page comes back.
// Promise P221.
// Promise P252.
#[test]
fn every_state_within_bounds_is_safe_and_comes_back() {
    let scenes = if cfg!(debug_assertions) { SMALL } else { SCENES };
    let threads = number_from("PREZERO_EXPLORE_THREADS")
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let most = number_from("PREZERO_EXPLORE_MOST");
    let only = std::env::var("PREZERO_EXPLORE_ONLY").ok();
    let is_meant = |scene: &&Scene| {
        only.as_ref().is_none_or(|only| only.split('/').any(|name| name == scene.name))
    };
    let scenes = scenes.iter().filter(is_meant);
    let found: Vec<_> =
        scenes.map(|scene| Search::new(scene, most.unwrap_or(scene.most)).run(threads)).collect();
    let states: usize = found.iter().map(|found| found.states).sum();
    let transitions: usize = found.iter().map(|found| found.transitions).sum();
    let deepest = found.iter().map(|found| found.depth).max().unwrap_or_default();
    eprintln!("{states} states, {transitions} transitions, {deepest} steps from a start at most");
    assert!(states > 1000, "a world in which nothing can happen");
}
