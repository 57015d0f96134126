// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each ratio beside the one that memory and kernel made possible in the same run, and how much of
//! that was reached.
//!
//! No bound is here: what the project wants of itself is in its repository (`tests/perf.toml`), and
//! a machine that is not ours need not have it.

use ::clear::Chunk;
use serde::Serialize;

use super::evidence::{
    Cancelling, Cell, Churning, Clearing, Evidence, Found, Populating, Slowdown,
};
use crate::figure::{Stats, short};

/// One ratio, and how far it could have gone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Reach {
    pub(super) name: &'static str,
    pub(super) measured: Option<f64>,
    /// What the best method would have had here, by figures of the same run; `None` where none say.
    pub(super) possible: Option<f64>,
    /// How much of the possible was reached, 1 for all of it.
    pub(super) fraction: Option<f64>,
    /// The figures behind it, or why it was not measured.
    pub(super) figures: String,
}

/// The end of the sentence about a part that was left out.
pub(super) const NOT_RUN: &str = "was not run";

impl Reach {
    /// Whether its part was left out.
    pub(super) fn is_of_a_part_not_run(&self) -> bool {
        self.figures.ends_with(NOT_RUN)
    }
}

/// What can be had at most or at least, and the figures behind it.
struct Limit {
    possible: Option<f64>,
    figures: String,
}

/// Whether a larger figure is a better one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Larger,
    Smaller,
}

impl Reach {
    fn new<T>(
        (name, measured, better): (&'static str, Option<f64>, Better),
        found: &Found<T>,
        limit: impl FnOnce(&T) -> Limit,
    ) -> Self {
        let limit = match (found, measured) {
            (Ok(found), Some(_)) => limit(found),
            (Ok(_), None) => {
                Limit { possible: None, figures: "the clock was too coarse for it".to_owned() }
            }
            (Err(missing), _) => Limit { possible: None, figures: missing.clone() },
        };
        let Limit { possible, figures } = limit;
        let fraction = measured.zip(possible).map(|(measured, possible)| match better {
            Better::Larger => measured / possible,
            Better::Smaller => possible / measured,
        });
        Self { name, measured, possible, fraction, figures }
    }

    /// Name, figure, the possible figure, and the reached part of it, for a table.
    pub(super) fn cells(&self) -> Vec<String> {
        let number =
            |value: Option<f64>| value.map_or("-".into(), |v| format!("{:.*}", digits(v), v));
        vec![
            self.name.to_owned(),
            self.measured.map_or("not measured".into(), |value| number(Some(value))),
            number(self.possible),
            self.fraction.map_or("-".into(), |part| format!("{:.0}%", part * 100.0)),
        ]
    }

    /// A line with the figures behind the ratio.
    pub(super) fn sentence(&self) -> String {
        format!("{}: {}", self.name, self.figures)
    }
}

/// Three digits, and no more than four behind the point.
fn digits(value: f64) -> usize {
    if value.abs() < 0.1 { 4 } else { 3 }
}

/// All of them, in the order of the ratios.
pub(super) fn all(evidence: &Evidence) -> Vec<Reach> {
    use Better::{Larger, Smaller};
    let ratios = evidence.ratios();
    let memory = evidence.limit();
    let populating = |name, ratio, found, page| {
        Reach::new((name, ratio, Larger), found, |found| populating(found, page, memory))
    };
    vec![
        Reach::new(
            ("clear_choice_over_best", ratios.clear_choice_over_best, Larger),
            &evidence.clear,
            clearing,
        ),
        Reach::new(
            (
                "clear_choice_over_best_all_threads",
                ratios.clear_choice_over_best_all_threads,
                Larger,
            ),
            &evidence.clear_all_threads,
            clearing,
        ),
        populating(
            "inplace_over_populate_1g",
            ratios.inplace_over_populate_1g,
            &evidence.populate_1g,
            "1 GiB",
        ),
        populating(
            "inplace_over_populate_2m",
            ratios.inplace_over_populate_2m,
            &evidence.populate_2m,
            "2 MiB",
        ),
        Reach::new(("cancel_p99_ms", ratios.cancel_p99_ms, Smaller), &evidence.cancel, |found| {
            cancelling(found, memory)
        }),
        Reach::new(
            ("neighbour_slowdown_percent", ratios.neighbour_slowdown_percent, Smaller),
            &evidence.neighbour,
            neighbour,
        ),
        Reach::new(
            ("inplace_over_limit_1g", ratios.inplace_over_limit_1g, Larger),
            &evidence.populate_1g,
            |found| over_limit(found, memory),
        ),
        Reach::new(
            ("inplace_over_limit_2m", ratios.inplace_over_limit_2m, Larger),
            &evidence.populate_2m,
            |found| over_limit(found, memory),
        ),
        Reach::new(
            ("churn_cpu_over_populate", ratios.churn_cpu_over_populate, Smaller),
            &evidence.churn,
            churning,
        ),
        Reach::new(
            ("churn_ready_at_twice", ratios.churn_ready_at_twice, Larger),
            &evidence.churn,
            |_| {
                nothing_sooner(
                    "all is possible where memory is twice as fast as the kernel",
                    Some(1.0),
                )
            },
        ),
        Reach::new(
            ("end_of_loan_ms_p99", ratios.end_of_loan_ms_p99, Smaller),
            &evidence.churn,
            |_| {
                nothing_sooner(
                    "the kernel's event takes 0.3 ms, and each question of this one about as long",
                    None,
                )
            },
        ),
        Reach::new(
            ("pin_check_us_per_gib", ratios.pin_check_us_per_gib, Smaller),
            &evidence.pin_check,
            |us| {
                nothing_sooner(
                    &format!("{} ms for 256 GiB of 2 MiB pages", short(us * 0.256)),
                    None,
                )
            },
        ),
    ]
}

fn cell(cell: &Cell) -> String {
    let chunk = if cell.chunk == Chunk::WHOLE {
        "in one go".to_owned()
    } else {
        format!("{} at a time", cell.chunk)
    };
    format!("{}, {chunk}", cell.method)
}

fn rate(stats: &Stats) -> String {
    match stats.spread_percent() {
        spread if stats.samples > 1 && spread.is_finite() => {
            format!("{} GB/s ±{spread:.0}%", short(stats.median))
        }
        _ => format!("{} GB/s", short(stats.median)),
    }
}

/// The best of the matrix is the possible figure, so the ratio is the fraction.
fn clearing(Clearing { choice, best }: &Clearing) -> Limit {
    let overlap = choice.rate.high >= best.rate.low;
    let figures = format!(
        "{} cleared {}, {} cleared {}{}",
        cell(choice),
        rate(&choice.rate),
        cell(best),
        rate(&best.rate),
        if overlap { ", and their quartiles overlap" } else { "" }
    );
    Limit { possible: Some(1.0), figures }
}

/// What a faster method could reach is what any reached in the same run.
fn populating(found: &Populating, page: &str, memory: Option<&Cell>) -> Limit {
    let Populating { kernel, in_place } = found;
    let zeroed = format!(
        "this kernel zeroed {page} pages at {}, prezero cleared them in place at {}",
        rate(kernel),
        rate(in_place)
    );
    let Some(memory) = memory else {
        let figures = format!("{zeroed}; what memory takes is what part clear measures");
        return Limit { possible: None, figures };
    };
    // A rate that was reached on these very pages is possible as well.
    let most = memory.rate.median.max(in_place.median);
    Limit {
        possible: Some(most / kernel.median),
        figures: format!(
            "{zeroed}, and memory took {} GB/s at most ({})",
            short(most),
            cell(memory)
        ),
    }
}

/// No signal is noticed before the chunk at hand is cleared.
fn cancelling(found: &Cancelling, memory: Option<&Cell>) -> Limit {
    let Cancelling { chunk, samples, median, worst, .. } = found;
    let times = format!(
        "half of {samples} signals took {} ms or less, the worst {} ms",
        short(*median),
        short(*worst)
    );
    let Some(memory) = memory.filter(|_| *chunk != Chunk::WHOLE) else {
        return Limit { possible: None, figures: times };
    };
    #[expect(clippy::cast_precision_loss, reason = "a chunk's bytes; three digits are shown")]
    let chunk_ms = chunk.bytes() as f64 / (memory.rate.median * 1e6);
    Limit {
        possible: Some(chunk_ms),
        figures: format!(
            "{times}; a chunk of {chunk} takes {} ms, the rest is the wait for a CPU",
            short(chunk_ms)
        ),
    }
}

/// The limit is what it is over.
fn over_limit(found: &Populating, memory: Option<&Cell>) -> Limit {
    let possible = memory.map(|_| 1.0);
    Limit { possible, ..populating(found, "huge", memory) }
}

/// What a loan costs in all.
fn churning(found: &Churning) -> Limit {
    let why = found.fresh_reason.as_ref().map(|why| format!("; pages were made anew: {why}"));
    let figures = format!(
        "a GB that is lent, touched and given back took {} CPU seconds of borrower, worker and daemon \
         together, a GB by MAP_POPULATE {}{}",
        short(found.prezero),
        short(found.kernel),
        why.unwrap_or_default()
    );
    Limit { possible: None, figures }
}

fn nothing_sooner(figures: &str, possible: Option<f64>) -> Limit {
    Limit { possible, figures: figures.to_owned() }
}

/// That nothing is lost is possible, and no fraction of nothing can be reached.
fn neighbour(Slowdown { wall, per_cpu_second, zeroed }: &Slowdown) -> Limit {
    let figures = format!(
        "zeroing got {}; the quartiles of {} pairs are {} and {} %; in a second of CPU time the \
         neighbour did {} % less, which is bandwidth and caches, and the rest is CPU time that it \
         did not get",
        rate(zeroed),
        wall.samples,
        short(wall.low),
        short(wall.high),
        short(per_cpu_second.median)
    );
    Limit { possible: None, figures }
}

#[cfg(test)]
mod tests {
    use ::clear::Method;
    use ::clear::calibrate::{Basis, Choice, Setting};

    use super::*;

    fn stats(median: f64) -> Stats {
        Stats::from_samples(&[median * 0.99, median, median * 1.01])
    }

    fn cell(method: &str, rate: f64) -> Cell {
        Cell { method: method.into(), chunk: Chunk::DEFAULT, rate: stats(rate) }
    }

    fn evidence() -> Evidence {
        let clearing = || Clearing { choice: cell("avx512", 97.0), best: cell("sse2", 98.0) };
        Evidence {
            race: Some(cell("clzero", 92.0)),
            clear: Ok(clearing()),
            clear_all_threads: Ok(clearing()),
            populate_1g: Ok(Populating { kernel: stats(25.0), in_place: stats(90.0) }),
            populate_2m: Ok(Populating { kernel: stats(20.0), in_place: stats(90.0) }),
            cancel: Ok(Cancelling {
                chunk: Chunk::DEFAULT,
                samples: 100,
                median: 0.01,
                p99: 0.03,
                worst: 0.3,
            }),
            neighbour: Ok(Slowdown {
                wall: stats(-0.1),
                per_cpu_second: stats(0.0),
                zeroed: stats(1.7),
            }),
            churn: Ok(Churning {
                kernel: 0.05,
                prezero: 0.02,
                ready_at_twice: 0.9,
                end_of_loan_p99: 2.0,
                fresh_reason: None,
            }),
            pin_check: Ok(80.0),
        }
    }

    fn nothing() -> Evidence {
        let setting = Setting { method: Method::Portable, chunk: Chunk::DEFAULT };
        Evidence::none(&Choice { setting, basis: Basis::NotMeasured })
    }

    fn reach(evidence: &Evidence, name: &str) -> Reach {
        all(evidence).into_iter().find(|reach| reach.name == name).expect("one of the six")
    }

    #[track_caller]
    fn assert_says(reach: &Reach, parts: &[&str]) {
        for part in parts {
            assert!(reach.sentence().contains(part), "{part:?} is not in {:?}", reach.sentence());
        }
    }

    #[track_caller]
    fn assert_close(value: Option<f64>, expected: f64) {
        assert!(value.is_some_and(|value| (value - expected).abs() < 0.005), "{value:?}");
    }

    // Promise P69.
    #[test]
    fn unmeasured_part_is_named_when_it_was_not_run() {
        for (reach, part) in all(&nothing()).iter().zip([
            "clear",
            "clear",
            "populate",
            "populate",
            "cancel",
            "interference",
        ]) {
            assert_eq!((reach.measured, reach.possible, reach.fraction), (None, None, None));
            assert_eq!(reach.cells()[1..], ["not measured", "-", "-"]);
            assert_eq!(reach.figures, format!("part {part} was not run"));
            assert!(reach.is_of_a_part_not_run(), "the page leaves it out");
        }
    }

    #[test]
    fn a_measurement_that_gave_no_number_is_not_measured() {
        let mut evidence = evidence();
        evidence.cancel.as_mut().unwrap().p99 = f64::NAN;
        let reach = reach(&evidence, "cancel_p99_ms");
        assert_eq!((reach.measured, reach.fraction), (None, None));
        assert_says(&reach, &["too coarse"]);
    }

    // Promise P69 (years): `prezero bench` puts each ratio beside what memory and kernel made
    // possible in the same run and holds no bound; stopped or killed, it leaves nothing that the
    // next run does not find.
    #[test]
    fn ratio_is_a_fraction_of_the_rates_of_kernel_and_memory() {
        let mut evidence = evidence();
        evidence.populate_2m = Ok(Populating { kernel: stats(28.0), in_place: stats(84.0) });
        let reach = reach(&evidence, "inplace_over_populate_2m");
        assert_close(reach.measured, 3.0);
        assert_close(reach.possible, 3.5);
        assert_close(reach.fraction, 84.0 / 98.0);
        assert_eq!(reach.cells()[1..], ["3.000", "3.500", "86%"]);
        assert_says(&reach, &["2 MiB pages at 28.0 GB/s", "84.0 GB/s", "98.0 GB/s at most (sse2"]);
    }

    #[test]
    fn rate_in_place_is_never_above_the_possible_one() {
        let mut evidence = evidence();
        evidence.populate_1g = Ok(Populating { kernel: stats(50.0), in_place: stats(105.0) });
        let reach = reach(&evidence, "inplace_over_populate_1g");
        assert_close(reach.possible, 2.1);
        assert_close(reach.fraction, 1.0);
    }

    #[test]
    fn without_the_matrix_the_race_says_what_memory_takes() {
        let mut evidence = evidence();
        evidence.clear = nothing().clear;
        evidence.populate_1g = Ok(Populating { kernel: stats(46.0), in_place: stats(80.0) });
        let by_race = reach(&evidence, "inplace_over_populate_1g");
        assert_close(by_race.possible, 2.0);
        assert_says(&by_race, &["92.0 GB/s at most (clzero, 256KiB at a time)"]);
        // A race that was faster than the matrix, too: the machine could do it a moment before.
        evidence.clear = self::evidence().clear;
        evidence.race = Some(cell("clzero", 115.0));
        assert_close(reach(&evidence, "inplace_over_populate_1g").possible, 2.5);
    }

    #[test]
    fn memory_limit_is_unknown_without_matrix_and_race() {
        let mut evidence = evidence();
        (evidence.race, evidence.clear) = (None, nothing().clear);
        let reach = reach(&evidence, "inplace_over_populate_1g");
        assert_close(reach.measured, 3.6);
        assert_eq!((reach.possible, reach.fraction), (None, None));
        assert!(!reach.figures.contains("at most"), "{}", reach.figures);
        assert_says(&reach, &["part clear measures"]);
    }

    #[test]
    fn beaten_choice_names_both_and_whether_they_differ() {
        let mut evidence = evidence();
        evidence.clear = Ok(Clearing { choice: cell("avx2", 77.0), best: cell("sse2", 98.0) });
        let beaten = reach(&evidence, "clear_choice_over_best");
        assert_close(beaten.fraction, 77.0 / 98.0);
        assert_says(
            &beaten,
            &[
                "avx2, 256KiB at a time cleared 77.0",
                "sse2, 256KiB at a time cleared 98.0 GB/s ±1%",
            ],
        );
        assert!(!beaten.figures.contains("overlap"), "{}", beaten.figures);
        evidence.clear.as_mut().unwrap().choice.rate.high = 98.5;
        assert_says(&reach(&evidence, "clear_choice_over_best"), &["overlap"]);
    }

    #[test]
    fn signal_is_handled_after_its_chunk_is_cleared() {
        let reach = reach(&evidence(), "cancel_p99_ms");
        assert_close(reach.possible, 0.0027);
        assert_close(reach.fraction, 0.0027 / 0.03);
        assert_says(&reach, &["half of 100 signals", "256KiB takes 0.0027 ms"]);
    }

    #[test]
    fn loss_of_a_neighbour_names_its_noise_and_its_waiting_part() {
        let mut evidence = evidence();
        let slowdown = evidence.neighbour.as_mut().unwrap();
        slowdown.wall = Stats::from_samples(&[1.0, 2.0, 5.0, 8.0, 9.0]);
        slowdown.per_cpu_second = stats(2.0);
        let reach = reach(&evidence, "neighbour_slowdown_percent");
        assert_eq!((reach.measured, reach.possible), (Some(5.0), None));
        assert_says(&reach, &["5 pairs are 2.00 and 8.00 %", "1.70 GB/s", "did 2.00 % less"]);
    }
}
