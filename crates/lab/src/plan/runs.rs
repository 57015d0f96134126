// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of the simulation, on as many threads as there are CPUs, with a bar. A stop ends them with
//! what they have until then.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::plan::{Ask, Fleet, Outcome, fleet};
use cli::exit::Failure;
use cli::output::progress;
use worker::Stop;
use worker::context::allowed_cpus;

use super::report::Cell;

/// The row of every task: of its one run, or of the least amount whose share of ready bytes is
/// enough.
pub(super) fn all(
    tasks: &[Vec<Fleet>],
    asks: &[Ask],
    want: f64,
    stop: &Stop,
) -> Result<Vec<Cell>, Failure> {
    let runs: u32 = tasks.iter().map(|runs| halvings(runs.len())).sum();
    let bar = progress::loans(asks.len() as u64 * u64::from(runs), "playing");
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let play = |fleet: &Fleet| {
        let goes_on = |loans: usize| {
            bar.inc(loans as u64);
            !stop.is_set()
        };
        fleet::run_watched(fleet, asks, goes_on).map_err(Failure::usage)
    };
    let work = || {
        while !stop.is_set()
            && let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(runs) = tasks.get(at)
        {
            let found = search(runs, want, play);
            let cell = found.map(|(fleet, outcome)| Cell::new(fleet, outcome));
            done.lock().expect("no thread panics with it").push((at, cell));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..allowed_cpus().clamp(1, tasks.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    bar.finish_and_clear();
    let mut done = done.into_inner().expect("every thread has ended");
    if done.is_empty() && stop.is_set() {
        return Err(Failure::stopped(stop));
    }
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, cell)| cell).collect()
}

/// How many runs a search of so many amounts makes.
fn halvings(amounts: usize) -> u32 {
    if amounts == 1 { 1 } else { amounts.checked_ilog2().map_or(0, |halvings| halvings + 2) }
}

/// The first run that is enough, by halving: more ready is never less served. Without one, the run
/// that serves most; after a stop, the one that was made last.
fn search<E>(
    runs: &[Fleet],
    want: f64,
    mut play: impl FnMut(&Fleet) -> Result<Outcome, E>,
) -> Result<(&Fleet, Outcome), E> {
    let (mut low, mut high) = (0, runs.len());
    let mut best: Option<(&Fleet, Outcome)> = None;
    while low < high {
        // The last of several first: where all of it is too little, no other is asked.
        let middle = if best.is_none() { runs.len() - 1 } else { usize::midpoint(low, high) };
        let outcome = play(&runs[middle])?;
        let is_complete = outcome.is_complete;
        let is_enough = outcome.hit_rate() >= want;
        if is_enough || best.is_none() || !is_complete {
            best = Some((&runs[middle], outcome));
        }
        if !is_complete || best.is_some() && !is_enough && middle == runs.len() - 1 {
            break;
        }
        if is_enough { high = middle } else { low = middle + 1 }
    }
    Ok(best.expect("a task has a run"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::plan::{NodeKind, Placement, ReadyPolicy};
    use units::{Bytes, PageSize, Pages};

    fn runs(amounts: &[u64]) -> Vec<Fleet> {
        let of = |gib: &u64| Fleet {
            kind: NodeKind {
                page_size: PageSize::MIB_2,
                memory: Bytes(64 << 30),
                pages_per_block: Pages::ZERO,
                ready_low: Bytes(gib << 30),
                ready_high: Bytes(gib << 30),
                workers: 1,
                rate: 1e9,
                rate_in_place: 1e9,
                in_place: true,
                single: false,
                policy: ReadyPolicy::Constant,
            },
            nodes: 1,
            placement: Placement::Packed,
            delay: 0.0,
            fault_rate: 1e9,
        };
        amounts.iter().map(of).collect()
    }

    /// The amount found for a fleet that needs this many GiB, and the amounts tried on the way.
    fn found(amounts: &[u64], enough: u64, stop_after: usize) -> (u64, Vec<u64>) {
        let mut tried = Vec::new();
        let all = runs(amounts);
        let found = search(&all, 0.95, |fleet| {
            let gib = fleet.kind.ready_high.0 >> 30;
            tried.push(gib);
            Ok::<_, ()>(Outcome {
                bytes: 100,
                ready_bytes: if gib >= enough { 96 } else { gib },
                is_complete: tried.len() < stop_after,
                ..Outcome::default()
            })
        });
        (found.unwrap().0.kind.ready_high.0 >> 30, tried)
    }

    #[test]
    fn search_finds_the_least_amount_in_few_runs() {
        let amounts = [4, 8, 16, 24, 32, 48, 64];
        for enough in amounts {
            let (gib, tried) = found(&amounts, enough, 9);
            assert_eq!(gib, enough, "{tried:?}");
            assert!(tried.len() <= 4, "{tried:?}");
        }
        assert_eq!(found(&amounts, 99, 9), (64, vec![64]), "none is enough: the most");
        assert_eq!(found(&[16], 4, 9), (16, vec![16]));
        assert_eq!(found(&amounts, 8, 2), (24, vec![64, 24]), "a stop");
    }
}
