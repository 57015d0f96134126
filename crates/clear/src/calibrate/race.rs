// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measurement: all candidates side by side, the slower half leaving after every few rounds.
//!
//! Rounds are interleaved, so that a disturbance meets every candidate. Each round begins with
//! another one, so that the neighbour that leaves dirty cache lines behind changes. Time goes to
//! the candidates that may win: from 35 candidates to the last 5 it takes less than half of the
//! budget, the rest makes their medians sharp.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::{Basis, Choice, Setting};
use crate::{Chunk, Clearer, Extent, Method, Outcome};

/// Between two looks at the caller: up to 0.5 ms at 31 GB/s, the slowest that a Zen 4 can be made
/// to clear.
const CHUNK_KIB: [usize; 5] = [64, 256, 1024, 4096, 16_384];

/// Rounds after which half of the candidates leave. The first round, with all of them, takes 90 ms
/// on a Zen 4.
const HALVING_ROUNDS: [usize; 3] = [1, 3, 6];

/// Candidates that stay to the end.
const FINALISTS: usize = 5;

/// Above this the winner might miss the best by more than 5 %, and the race refuses to conclude.
const MAX_UNCERTAINTY_PERMILLE: u32 = 50;

/// What a steadier choice and a smaller chunk, which bounds the wait for a stop, may cost: 2 %.
const SAME_RATE_PERMILLE: f64 = 980.0;

/// One candidate and its rates.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The candidate.
    pub setting: Setting,
    clearer: Clearer,
    /// Bytes per nanosecond, as measured, in order.
    rates: Vec<f64>,
}

/// A finished race: every candidate with its rates.
#[derive(Clone, Debug)]
pub struct Race {
    candidates: Vec<Candidate>,
}

impl Race {
    /// Measures all candidates on `extent`, which should be four times the last-level cache.
    /// Content and pages of the extent don't matter: one pass before the first timing touches them
    /// all.
    ///
    /// Takes `budget` of the calling thread's CPU time, and while the winner is uncertain as much
    /// again; on the clock at most four times the budget. Every candidate is measured once in any
    /// case.
    pub fn run(extent: &mut Extent<'_>, budget: Duration) -> Self {
        let mut race = Self { candidates: candidates() };
        let _ = Clearer::default().clear(extent.reborrow(), |_| ControlFlow::Continue(()));
        let (start, cpu_start) = (Instant::now(), cpu_time());
        let mut active: Vec<usize> = (0..race.candidates.len()).collect();
        for round in 1.. {
            let turn = round % active.len().max(1);
            active.rotate_left(turn);
            for &index in &active {
                let candidate = &mut race.candidates[index];
                candidate.rates.extend(rate_of(&candidate.clearer, extent.reborrow()));
            }
            if HALVING_ROUNDS.contains(&round) {
                race.keep_faster_half(&mut active);
            }
            let spent = cpu_time().saturating_sub(cpu_start);
            let certain = race.winner().is_some_and(Candidate::is_sharp);
            if (spent >= budget && certain) || spent >= budget * 2 || start.elapsed() >= budget * 4
            {
                break;
            }
        }
        race
    }

    /// Every candidate, early leavers included.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The winner, or `fallback` where the race was too noisy to name one.
    ///
    /// Of the candidates with practically the winner's rate, the ones with the fallback's method go
    /// first, so that two equal methods do not take turns. Next come the ones with the winner's
    /// method. Among equals the smallest chunk wins.
    #[must_use]
    pub fn conclude(&self, fallback: Setting) -> Choice {
        let Some(winner) = self.winner() else {
            return Choice { setting: fallback, basis: Basis::NotMeasured };
        };
        if !winner.is_sharp() {
            let uncertainty_permille = winner.uncertainty_permille();
            return Choice { setting: fallback, basis: Basis::TooNoisy { uncertainty_permille } };
        }
        let preferred = [fallback.method, winner.setting.method];
        let rank = |candidate: &Candidate| {
            preferred.iter().position(|wish| *wish == candidate.setting.method)
        };
        let chosen = (self.candidates.iter())
            .filter(|candidate| candidate.rates.len() == winner.rates.len() && candidate.is_sharp())
            .filter(|candidate| candidate.median() * 1000.0 >= winner.median() * SAME_RATE_PERMILLE)
            .filter_map(|candidate| Some((rank(candidate)?, candidate)))
            .min_by_key(|(rank, candidate)| (*rank, candidate.setting.chunk))
            .map_or(winner, |(_, candidate)| candidate);
        let uncertainty_permille = chosen.uncertainty_permille();
        let basis = Basis::Measured { mb_per_s: chosen.mb_per_s(), uncertainty_permille };
        Choice { setting: chosen.setting, basis }
    }

    /// The best median among the candidates that ran to the end.
    fn winner(&self) -> Option<&Candidate> {
        let rounds = self
            .candidates
            .iter()
            .map(|candidate| candidate.rates.len())
            .max()
            .filter(|rounds| *rounds > 0)?;
        let finalists = self.candidates.iter().filter(|candidate| candidate.rates.len() == rounds);
        finalists.max_by(|a, b| a.median().total_cmp(&b.median()))
    }

    fn keep_faster_half(&self, active: &mut Vec<usize>) {
        active
            .sort_by(|a, b| self.candidates[*b].median().total_cmp(&self.candidates[*a].median()));
        active.truncate((active.len() / 2).max(FINALISTS));
    }
}

impl Candidate {
    /// Median rate in 10^6 bytes per second.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is positive; `as` saturates"
    )]
    pub fn mb_per_s(&self) -> u32 {
        (self.median() * 1000.0) as u32
    }

    /// How often it was measured.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rates.len()
    }

    /// Half the 95 % confidence interval of the median in thousandths of it, by the rule for
    /// notches of box plots: 1.57 times the distance of the quartiles, over the root of the count.
    /// 1000 for fewer than 4 measurements.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive; `as` saturates"
    )]
    pub fn uncertainty_permille(&self) -> u32 {
        if self.rates.len() < 4 {
            return 1000;
        }
        #[expect(clippy::cast_precision_loss, reason = "a handful of rounds")]
        let root = (self.rates.len() as f64).sqrt();
        let spread = self.quantile(3, 4) - self.quantile(1, 4);
        (1570.0 * spread / self.median() / root).ceil() as u32
    }

    fn is_sharp(&self) -> bool {
        self.uncertainty_permille() <= MAX_UNCERTAINTY_PERMILLE
    }

    fn median(&self) -> f64 {
        self.quantile(1, 2)
    }

    /// The rate at the rank `numerator` / `denominator`; 0 without rates.
    fn quantile(&self, numerator: usize, denominator: usize) -> f64 {
        let mut sorted = self.rates.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = sorted.len().saturating_sub(1) * numerator / denominator;
        sorted.get(rank).copied().unwrap_or(0.0)
    }
}

/// Every method of this CPU that survives a poisoned page, at every chunk.
fn candidates() -> Vec<Candidate> {
    let chunks = CHUNK_KIB.map(|kib| Chunk::from_bytes(kib << 10).unwrap_or_default());
    let methods = Method::available().filter(|method| method.recovers());
    let settings = methods.flat_map(|method| chunks.map(|chunk| Setting { method, chunk }));
    let candidate = |setting: Setting| {
        Some(Candidate { setting, clearer: setting.clearer().ok()?, rates: Vec::new() })
    };
    settings.filter_map(candidate).collect()
}

/// Bytes per nanosecond of clearing all of the extent.
fn rate_of(clearer: &Clearer, extent: Extent<'_>) -> Option<f64> {
    let bytes = extent.len();
    let start = cpu_time();
    let outcome = clearer.clear_unverified(extent, |_| ControlFlow::Continue(()));
    let time = cpu_time().saturating_sub(start);
    matches!(outcome, Outcome::Complete(_)).then(|| rate(bytes, time))
}

/// The CPU time of this thread. On a busy machine, where other threads take turns on the CPU, rates
/// by the wall clock differ by a factor of two from round to round, and rates by this clock by a
/// tenth.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs three digits")]
fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_nanos().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::Scratch;

    fn candidate(method: Method, chunk_kib: usize, rates: &[f64]) -> Candidate {
        let chunk = Chunk::from_bytes(chunk_kib << 10).unwrap();
        let setting = Setting { method, chunk };
        Candidate { setting, clearer: Clearer::default(), rates: rates.to_vec() }
    }

    const FALLBACK: Setting = Setting { method: Method::Stnp, chunk: Chunk::WHOLE };

    #[test]
    fn the_smallest_chunk_of_the_fastest_method_wins() {
        let steady = |rate: f64| [rate; 9];
        let race = Race {
            candidates: vec![
                candidate(Method::RepStosb, 64, &steady(31.0)),
                candidate(Method::Clzero, 64, &steady(78.0)),
                candidate(Method::Avx512Nt, 64, &steady(70.0)),
                candidate(Method::Avx512Nt, 256, &steady(81.0)),
                candidate(Method::Avx512Nt, 1024, &steady(82.0)),
                candidate(Method::Avx2Nt, 64, &[99.0]),
            ],
        };
        let choice = race.conclude(FALLBACK);
        assert_eq!(
            (choice.setting.method, choice.setting.chunk.bytes()),
            (Method::Avx512Nt, 256 << 10)
        );
        assert_eq!(choice.basis, Basis::Measured { mb_per_s: 81_000, uncertainty_permille: 0 });
    }

    #[test]
    fn of_two_methods_that_are_equally_fast_the_default_one_stays() {
        for (rate, expected) in [(81.0, Method::Stnp), (79.0, Method::Avx2Nt)] {
            let default =
                Candidate { setting: FALLBACK, ..candidate(Method::Stnp, 64, &[rate; 5]) };
            let race =
                Race { candidates: vec![candidate(Method::Avx2Nt, 64, &[82.0; 5]), default] };
            assert_eq!(race.conclude(FALLBACK).setting.method, expected, "{rate} against 82");
        }
    }

    #[test]
    fn noise_keeps_the_default_and_says_how_much() {
        let noisy = [40.0, 90.0, 45.0, 85.0, 50.0, 80.0, 55.0, 75.0];
        let race = Race { candidates: vec![candidate(Method::Portable, 64, &noisy)] };
        let choice = race.conclude(FALLBACK);
        assert_eq!(choice.setting, FALLBACK);
        assert!(
            matches!(choice.basis, Basis::TooNoisy { uncertainty_permille } if uncertainty_permille > 200),
            "{choice}"
        );
    }

    #[test]
    fn without_candidates_or_rounds_nothing_is_claimed() {
        for candidates in [vec![], vec![candidate(Method::Portable, 64, &[])]] {
            assert_eq!(
                Race { candidates }.conclude(FALLBACK),
                Choice { setting: FALLBACK, basis: Basis::NotMeasured }
            );
        }
    }

    #[test]
    fn a_real_race_runs_every_candidate_and_ends() {
        let mut scratch = Scratch::new(8 << 20).unwrap();
        let race = Race::run(&mut scratch.extent(), Duration::from_millis(20));
        assert!(
            race.candidates()
                .iter()
                .all(|candidate| candidate.rounds() >= 1 && candidate.mb_per_s() > 0)
        );
        let Choice { setting, basis } = race.conclude(FALLBACK);
        let of_a_candidate = race.candidates().iter().any(|candidate| candidate.setting == setting);
        // How sharp it is depends on how busy the machine is.
        assert_eq!(of_a_candidate, matches!(basis, Basis::Measured { .. }), "{setting} {basis:?}");
    }
}
