// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures that the ratios are made of, and with them the possible ones.
//!
//! Each part sets its figures, or why they could not be measured: a missing ratio says so.

use ::clear::Chunk;
use ::clear::calibrate::{Basis, Choice};
use serde::Serialize;
use units::PageSize;

use super::reach::NOT_RUN;
use crate::figure::Stats;

/// The figures, or why they are missing.
pub(super) type Found<T> = Result<T, String>;

/// What the parts found.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    /// What prezero's choice reached when it was chosen, before all parts; `None` if nothing was
    /// measured.
    pub(super) race: Option<Cell>,
    /// Clearing mapped memory, 1 thread.
    pub(super) clear: Found<Clearing>,
    /// The same with all threads.
    pub(super) clear_all_threads: Found<Clearing>,
    /// Huge pages of 1 GiB, 1 thread.
    pub(super) populate_1g: Found<Populating>,
    /// The same with 2 MiB.
    pub(super) populate_2m: Found<Populating>,
    pub(super) cancel: Found<Cancelling>,
    /// Bandwidth-bound, beside zeroing as `SCHED_IDLE`.
    pub(super) neighbour: Found<Slowdown>,
    pub(super) churn: Found<Churning>,
    /// The proof that 1 GiB of 2 MiB pages is unused, in us.
    pub(super) pin_check: Found<f64>,
}

/// What a loan costs in all, in CPU seconds per GB, at the load where that is worst.
#[derive(Debug, Clone)]
pub(super) struct Churning {
    /// `MAP_POPULATE`.
    pub(super) kernel: f64,
    /// prezero, borrower, worker and daemon together.
    pub(super) prezero: f64,
    /// The ready share when loans come at twice the kernel's rate.
    pub(super) ready_at_twice: f64,
    /// From the last munmap to zeroable, in ms.
    pub(super) end_of_loan_p99: f64,
    /// Why pages were made anew, where they were.
    pub(super) fresh_reason: Option<String>,
}

/// One method with one chunk, in GB/s by the CPU clock.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) method: String,
    pub(super) chunk: Chunk,
    pub(super) rate: Stats,
}

/// prezero's choice and the best of the matrix, run side by side.
#[derive(Debug, Clone)]
pub(super) struct Clearing {
    pub(super) choice: Cell,
    pub(super) best: Cell,
}

/// Huge pages of one size, in GB/s by the CPU clock.
#[derive(Debug, Clone)]
pub(super) struct Populating {
    /// `MAP_POPULATE`.
    pub(super) kernel: Stats,
    /// prezero, on pages that are mapped already.
    pub(super) in_place: Stats,
}

/// From the signal to the return, in ms.
#[derive(Debug, Clone)]
pub(super) struct Cancelling {
    pub(super) chunk: Chunk,
    pub(super) samples: usize,
    pub(super) median: f64,
    pub(super) p99: f64,
    pub(super) worst: f64,
}

/// What a neighbour loses.
#[derive(Debug, Clone)]
pub(super) struct Slowdown {
    /// Percent, by the wall clock.
    pub(super) wall: Stats,
    /// Percent of what it does in a second of CPU time: what bandwidth and caches cost it.
    pub(super) per_cpu_second: Stats,
    /// GB/s.
    pub(super) zeroed: Stats,
}

impl Evidence {
    /// Before any part has run.
    pub(super) fn none(choice: &Choice) -> Self {
        fn missing<T>(part: &str) -> Found<T> {
            Err(format!("part {part} {NOT_RUN}"))
        }
        let race = match choice.basis {
            Basis::Measured { mb_per_s, .. } => Some(Cell {
                method: choice.setting.method.name().to_owned(),
                chunk: choice.setting.chunk,
                rate: Stats::from_samples(&[f64::from(mb_per_s) / 1e3]),
            }),
            _ => None,
        };
        Self {
            race,
            clear: missing("clear"),
            clear_all_threads: missing("clear"),
            populate_1g: missing("populate"),
            populate_2m: missing("populate"),
            cancel: missing("cancel"),
            neighbour: missing("interference"),
            churn: missing("churn"),
            pin_check: missing("churn"),
        }
    }

    /// Of 1 GiB pages, or of 2 MiB ones.
    pub(super) fn populate(&mut self, page: PageSize) -> &mut Found<Populating> {
        if page == PageSize::GIB_1 { &mut self.populate_1g } else { &mut self.populate_2m }
    }

    /// The fastest that one thread has cleared memory in this run: the memory's limit in these
    /// figures. `None` where neither the race nor the matrix was measured.
    pub(super) fn limit(&self) -> Option<&Cell> {
        let matrix = self.clear.iter().flat_map(|clearing| [&clearing.choice, &clearing.best]);
        let cells = matrix.chain(&self.race).filter(|cell| cell.rate.median.is_finite());
        cells.max_by(|a, b| a.rate.median.total_cmp(&b.rate.median))
    }

    /// What clearing in place reached of what memory takes at most; no number where nothing says.
    fn over_limit(&self, found: &Populating) -> f64 {
        let most = self.limit().map(|cell| cell.rate.median.max(found.in_place.median));
        found.in_place.median / most.unwrap_or(f64::NAN)
    }

    pub(super) fn ratios(&self) -> Ratios {
        fn of<T>(found: &Found<T>, ratio: impl Fn(&T) -> f64) -> Option<f64> {
            found.as_ref().ok().map(ratio).filter(|ratio| ratio.is_finite())
        }
        Ratios {
            clear_choice_over_best: of(&self.clear, Clearing::ratio),
            clear_choice_over_best_all_threads: of(&self.clear_all_threads, Clearing::ratio),
            inplace_over_populate_1g: of(&self.populate_1g, Populating::ratio),
            inplace_over_populate_2m: of(&self.populate_2m, Populating::ratio),
            cancel_p99_ms: of(&self.cancel, |cancel| cancel.p99),
            neighbour_slowdown_percent: of(&self.neighbour, |slowdown| slowdown.wall.median),
            inplace_over_limit_1g: of(&self.populate_1g, |found| self.over_limit(found)),
            inplace_over_limit_2m: of(&self.populate_2m, |found| self.over_limit(found)),
            churn_cpu_over_populate: of(&self.churn, |churn| churn.prezero / churn.kernel),
            churn_ready_at_twice: of(&self.churn, |churn| churn.ready_at_twice),
            end_of_loan_ms_p99: of(&self.churn, |churn| churn.end_of_loan_p99),
            pin_check_us_per_gib: of(&self.pin_check, |us| *us),
        }
    }
}

impl Clearing {
    fn ratio(&self) -> f64 {
        self.choice.rate.median / self.best.rate.median
    }
}

impl Populating {
    fn ratio(&self) -> f64 {
        self.in_place.median / self.kernel.median
    }
}

/// What the benchmark shows; `None` where it was not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Ratios {
    /// prezero's method and chunk over the best cell of the matrix, 1 thread.
    pub(super) clear_choice_over_best: Option<f64>,
    /// The same with all threads, each over the best cell with as many.
    pub(super) clear_choice_over_best_all_threads: Option<f64>,
    /// Clearing in place over `MAP_POPULATE`, 1 GiB pages, 1 thread.
    pub(super) inplace_over_populate_1g: Option<f64>,
    /// The same with 2 MiB pages.
    pub(super) inplace_over_populate_2m: Option<f64>,
    /// From signal to return, in place with prezero's chunk, 99th percentile.
    pub(super) cancel_p99_ms: Option<f64>,
    /// Bandwidth-bound neighbour beside `SCHED_IDLE` zeroing on the same CPUs.
    pub(super) neighbour_slowdown_percent: Option<f64>,
    /// Clearing in place over what memory takes at most, 1 GiB pages, 1 thread.
    pub(super) inplace_over_limit_1g: Option<f64>,
    /// The same with 2 MiB pages.
    pub(super) inplace_over_limit_2m: Option<f64>,
    /// CPU time of loans, of all together, over that of `MAP_POPULATE`: at a quarter and at half of
    /// the kernel's rate, the worse.
    pub(super) churn_cpu_over_populate: Option<f64>,
    /// The ready share when loans come at twice the kernel's rate, 1 for all.
    pub(super) churn_ready_at_twice: Option<f64>,
    /// From the last munmap of a loan held by its memory to zeroable, 99th percentile.
    pub(super) end_of_loan_ms_p99: Option<f64>,
    /// The proof that 1 GiB of 2 MiB pages is unused.
    pub(super) pin_check_us_per_gib: Option<f64>,
}
