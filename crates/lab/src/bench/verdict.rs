// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each ratio is wanted to be, whether it is, and why not: by the figures of the same run alone.

use ::clear::Chunk;
use serde::Serialize;

use super::evidence::{Cancelling, Cell, Clearing, Evidence, Found, Populating, Slowdown};
use super::figure::{Stats, short};

/// A bound that was promised.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Wanted {
    fn bound(self) -> f64 {
        let (Self::AtLeast(bound) | Self::AtMost(bound)) = self;
        bound
    }

    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }

    fn text(self) -> String {
        let sign = if matches!(self, Self::AtLeast(_)) { ">=" } else { "<=" };
        format!("{sign} {}", self.bound())
    }
}

/// One ratio, judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Verdict {
    pub(super) name: &'static str,
    pub(super) measured: Option<f64>,
    pub(super) wanted: Wanted,
    /// `None`: not measured.
    pub(super) met: Option<bool>,
    /// Why it was not met, or not measured.
    pub(super) why: Option<String>,
}

impl Verdict {
    /// `why` is asked where the bound is missed.
    fn new<T>(
        (name, measured, wanted): (&'static str, Option<f64>, Wanted),
        found: &Found<T>,
        why: impl FnOnce(&T, f64) -> String,
    ) -> Self {
        let met = measured.map(|value| wanted.is_met_by(value));
        let why = match (found, met) {
            (_, Some(true)) => None,
            (Ok(found), Some(false)) => Some(why(found, wanted.bound())),
            (Ok(_), None) => Some("the clock was too coarse for it".to_owned()),
            (Err(missing), _) => Some(missing.clone()),
        };
        Self { name, measured, wanted, met, why }
    }

    /// Name, figure, bound, and whether it is met, for a table.
    pub(super) fn cells(&self) -> Vec<String> {
        vec![
            self.name.to_owned(),
            self.measured.map_or("-".into(), |value| format!("{value:.3}")),
            self.wanted.text(),
            match self.met {
                Some(true) => "yes".to_owned(),
                Some(false) => "no".to_owned(),
                None => "not measured".to_owned(),
            },
        ]
    }

    /// The same for text, where what is missing says why on the spot.
    pub(super) fn line(&self) -> Vec<String> {
        let mut cells = self.cells();
        if let (None, Some(why), Some(met)) = (self.met, &self.why, cells.last_mut()) {
            *met += &format!(": {why}");
        }
        cells
    }

    /// A sentence where the bound is missed.
    pub(super) fn sentence(&self) -> Option<String> {
        let (measured, why) = (self.measured?, self.why.as_ref()?);
        Some(format!("{} is {}, not {}: {why}", self.name, short(measured), self.wanted.bound()))
    }
}

/// All of them. What disturbed the run is said where something is missed.
pub(super) fn judge(evidence: &Evidence, disturbance: Option<&str>) -> Vec<Verdict> {
    use Wanted::{AtLeast, AtMost};
    let ratios = evidence.ratios();
    let limit = evidence.limit();
    let (choice, choice_all) =
        (ratios.clear_choice_over_best, ratios.clear_choice_over_best_all_threads);
    let mut verdicts = vec![
        Verdict::new(
            ("clear_choice_over_best", choice, AtLeast(0.95)),
            &evidence.clear,
            |clearing, _| beaten(clearing),
        ),
        Verdict::new(
            ("clear_choice_over_best_all_threads", choice_all, AtLeast(0.9)),
            &evidence.clear_all_threads,
            |clearing, _| beaten(clearing),
        ),
        Verdict::new(
            ("inplace_over_populate_1g", ratios.inplace_over_populate_1g, AtLeast(2.3)),
            &evidence.populate_1g,
            |found, bound| too_slow(found, "1 GiB", bound, limit),
        ),
        Verdict::new(
            ("inplace_over_populate_2m", ratios.inplace_over_populate_2m, AtLeast(4.0)),
            &evidence.populate_2m,
            |found, bound| too_slow(found, "2 MiB", bound, limit),
        ),
        Verdict::new(
            ("cancel_p99_ms", ratios.cancel_p99_ms, AtMost(1.0)),
            &evidence.cancel,
            |found, bound| too_late(found, bound, limit),
        ),
        Verdict::new(
            ("neighbour_slowdown_percent", ratios.neighbour_slowdown_percent, AtMost(3.0)),
            &evidence.neighbour,
            disturbed,
        ),
    ];
    if let Some(disturbance) = disturbance {
        let missed = verdicts.iter_mut().filter(|verdict| verdict.met == Some(false));
        for why in missed.filter_map(|verdict| verdict.why.as_mut()) {
            *why += &format!("; {disturbance}");
        }
    }
    verdicts
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

fn beaten(Clearing { choice, best }: &Clearing) -> String {
    let overlap = choice.rate.high >= best.rate.low;
    format!(
        "{} cleared {}, {} cleared {}{}",
        cell(choice),
        rate(&choice.rate),
        cell(best),
        rate(&best.rate),
        if overlap { ": their quartiles overlap, more --rounds would tell them apart" } else { "" }
    )
}

/// What a faster method could reach is what any reached in the same run.
fn too_slow(found: &Populating, page: &str, bound: f64, limit: Option<&Cell>) -> String {
    let Populating { kernel, in_place } = found;
    let zeroed = format!("this kernel zeroed {page} pages at {}", rate(kernel));
    let needed = bound * kernel.median;
    let Some(limit) = limit else {
        let (ours, needed) = (rate(in_place), short(needed));
        return format!(
            "{zeroed}, prezero cleared them in place at {ours}, and {bound} would take {needed} GB/s; whether any method \
             does that here is what part clear measures"
        );
    };
    // What was reached on these very pages is possible as well.
    let most = limit.rate.median.max(in_place.median);
    let highest = short(most / kernel.median);
    if most < needed {
        return format!(
            "{zeroed} and memory took {} GB/s at most ({}), so no method gets above {highest}",
            short(most),
            cell(limit)
        );
    }
    format!(
        "{zeroed}, so {bound} takes {} of the {} GB/s that memory took at most ({}), where {highest} would be the end; \
         in place on these pages it was {}",
        short(needed),
        short(most),
        cell(limit),
        rate(in_place)
    )
}

fn too_late(found: &Cancelling, bound: f64, limit: Option<&Cell>) -> String {
    let Cancelling { chunk, samples, median, worst, .. } = found;
    let times = format!(
        "half of {samples} signals took {} ms or less, the worst {} ms",
        short(*median),
        short(*worst)
    );
    let Some(limit) = limit.filter(|_| *chunk != Chunk::WHOLE) else { return times };
    #[expect(clippy::cast_precision_loss, reason = "a chunk's bytes; three digits are shown")]
    let chunk_ms = chunk.bytes() as f64 / (limit.rate.median * 1e6);
    let blame = if chunk_ms < bound {
        "the rest is the wait for a CPU"
    } else {
        "the chunk is too large for this memory"
    };
    format!("{times}; a chunk of {chunk} takes {} ms: {blame}", short(chunk_ms))
}

fn disturbed(Slowdown { wall, per_cpu_second, zeroed }: &Slowdown, bound: f64) -> String {
    let (low, high) = (short(wall.low), short(wall.high));
    if wall.samples > 1 && wall.low <= bound {
        let pairs = wall.samples;
        return format!("within the noise: the quartiles of {pairs} pairs are {low} and {high} %");
    }
    format!(
        "zeroing got {}; in a second of CPU time the neighbour did {} % less, which is bandwidth and caches, and the \
         rest is CPU time that it did not get",
        rate(zeroed),
        short(per_cpu_second.median)
    )
}

#[cfg(test)]
mod tests {
    use ::clear::Method;
    use ::clear::calibrate::{Basis, Choice, Setting};

    use super::*;

    fn stats(median: f64) -> Stats {
        Stats::of(&[median * 0.99, median, median * 1.01])
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
        }
    }

    fn nothing() -> Evidence {
        let setting =
            Setting { method: Method::Portable, near: Method::Portable, chunk: Chunk::DEFAULT };
        Evidence::none(&Choice { setting, basis: Basis::NotMeasured })
    }

    fn verdict(evidence: &Evidence, name: &str) -> Verdict {
        let all = judge(evidence, None);
        all.into_iter().find(|verdict| verdict.name == name).expect("one of the six")
    }

    #[track_caller]
    fn assert_says(evidence: &Evidence, name: &str, parts: &[&str]) {
        let verdict = verdict(evidence, name);
        assert_eq!(verdict.met, Some(false), "{verdict:?}");
        let sentence = verdict.sentence().expect("a reason");
        for part in parts {
            assert!(sentence.contains(part), "{part:?} is not in {sentence:?}");
        }
    }

    #[test]
    fn what_is_met_needs_no_reason() {
        let all = judge(&evidence(), None);
        assert_eq!(all.len(), 6);
        for verdict in all {
            assert_eq!((verdict.met, verdict.sentence()), (Some(true), None), "{verdict:?}");
        }
    }

    #[test]
    fn what_was_not_run_is_not_measured_and_names_the_part() {
        for (verdict, part) in judge(&nothing(), None).iter().zip([
            "clear",
            "clear",
            "populate",
            "populate",
            "cancel",
            "interference",
        ]) {
            assert_eq!((verdict.measured, verdict.met), (None, None));
            assert_eq!(verdict.cells()[3], "not measured");
            assert_eq!(verdict.why, Some(format!("part {part} was not run")));
            assert_eq!(verdict.line()[3], format!("not measured: part {part} was not run"));
        }
    }

    #[test]
    fn a_measurement_that_gave_no_number_is_not_measured() {
        let mut evidence = evidence();
        evidence.cancel.as_mut().unwrap().p99 = f64::NAN;
        let verdict = verdict(&evidence, "cancel_p99_ms");
        assert_eq!((verdict.measured, verdict.met), (None, None));
        assert!(verdict.why.is_some());
    }

    #[test]
    fn a_bound_that_no_method_reaches_names_the_kernels_rate_and_the_memorys() {
        let mut evidence = evidence();
        evidence.populate_2m = Ok(Populating { kernel: stats(28.0), in_place: stats(84.0) });
        assert_says(
            &evidence,
            "inplace_over_populate_2m",
            &[
                "is 3.00, not 4",
                "2 MiB pages at 28.0 GB/s",
                "98.0 GB/s at most (sse2",
                "above 3.50",
            ],
        );
    }

    #[test]
    fn a_bound_that_some_method_could_reach_says_how_much_is_missing() {
        let mut evidence = evidence();
        evidence.populate_2m = Ok(Populating { kernel: stats(24.0), in_place: stats(72.0) });
        let says = ["is 3.00, not 4", "4 takes 96.0 of the 98.0", "it was 72.0 GB/s"];
        assert_says(&evidence, "inplace_over_populate_2m", &says);
    }

    #[test]
    fn what_was_reached_in_place_is_never_above_what_is_called_possible() {
        let mut evidence = evidence();
        evidence.populate_1g = Ok(Populating { kernel: stats(50.0), in_place: stats(105.0) });
        assert_says(&evidence, "inplace_over_populate_1g", &["is 2.10", "above 2.10"]);
    }

    #[test]
    fn without_the_matrix_the_race_says_what_memory_takes() {
        let mut evidence = evidence();
        evidence.clear = nothing().clear;
        evidence.populate_1g = Ok(Populating { kernel: stats(46.0), in_place: stats(80.0) });
        let says = ["92.0 GB/s at most (clzero, 256KiB at a time)", "above 2.00"];
        assert_says(&evidence, "inplace_over_populate_1g", &says);
        // A race that was faster than the matrix, too: the machine could do it a moment before.
        evidence.clear = self::evidence().clear;
        evidence.race = Some(cell("clzero", 115.0));
        assert_says(&evidence, "inplace_over_populate_1g", &["2.3 takes 106 of the 115 GB/s"]);
    }

    #[test]
    fn without_the_matrix_and_the_race_nothing_is_said_about_what_memory_takes() {
        let mut evidence = evidence();
        (evidence.race, evidence.clear) = (None, nothing().clear);
        evidence.populate_1g = Ok(Populating { kernel: stats(40.0), in_place: stats(80.0) });
        assert_says(
            &evidence,
            "inplace_over_populate_1g",
            &["2.3 would take 92.0 GB/s", "part clear measures"],
        );
        let why = verdict(&evidence, "inplace_over_populate_1g").why.unwrap();
        assert!(!why.contains("at most"), "{why}");
    }

    #[test]
    fn a_choice_that_is_beaten_names_both_and_whether_they_can_be_told_apart() {
        let mut evidence = evidence();
        evidence.clear = Ok(Clearing { choice: cell("avx2", 77.0), best: cell("sse2", 98.0) });
        assert_says(
            &evidence,
            "clear_choice_over_best",
            &[
                "avx2, 256KiB at a time cleared 77.0",
                "sse2, 256KiB at a time cleared 98.0 GB/s ±1%",
            ],
        );
        let why = verdict(&evidence, "clear_choice_over_best").why.unwrap();
        assert!(!why.contains("overlap"), "{why}");
        evidence.clear.as_mut().unwrap().choice.rate.high = 98.5;
        assert_says(&evidence, "clear_choice_over_best", &["overlap"]);
    }

    #[test]
    fn a_late_end_blames_the_chunk_or_the_wait_for_a_cpu() {
        let mut evidence = evidence();
        evidence.cancel.as_mut().unwrap().p99 = 4.0;
        assert_says(&evidence, "cancel_p99_ms", &["256KiB takes 0.0027 ms", "the wait for a CPU"]);
        evidence.cancel.as_mut().unwrap().chunk = Chunk::from_bytes(128 << 20).unwrap();
        assert_says(&evidence, "cancel_p99_ms", &["too large"]);
    }

    #[test]
    fn what_disturbed_the_run_is_said_where_something_is_missed_and_nowhere_else() {
        let mut evidence = evidence();
        evidence.clear_all_threads = nothing().clear;
        evidence.cancel.as_mut().unwrap().p99 = 4.0;
        let (alone, disturbed) = (judge(&evidence, None), judge(&evidence, Some("others")));
        for (alone, disturbed) in alone.iter().zip(&disturbed) {
            let added = disturbed.why.as_ref().is_some_and(|why| why.ends_with("; others"));
            assert_eq!(added, disturbed.name == "cancel_p99_ms", "{disturbed:?}");
            assert!(added || alone == disturbed);
        }
    }

    #[test]
    fn a_disturbed_neighbour_is_noise_only_if_its_quartiles_reach_the_bound() {
        let mut evidence = evidence();
        let slowdown = evidence.neighbour.as_mut().unwrap();
        slowdown.wall = Stats::of(&[1.0, 2.0, 5.0, 8.0, 9.0]);
        assert_says(
            &evidence,
            "neighbour_slowdown_percent",
            &["within the noise", "5 pairs are 2.00 and 8.00 %"],
        );
        let slowdown = evidence.neighbour.as_mut().unwrap();
        (slowdown.wall, slowdown.per_cpu_second) = (stats(8.0), stats(2.0));
        assert_says(&evidence, "neighbour_slowdown_percent", &["1.70 GB/s", "did 2.00 % less"]);
    }
}
