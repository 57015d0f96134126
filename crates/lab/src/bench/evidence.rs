// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures that the ratios are made of, and with them what was possible.
//!
//! Each part sets what is its, or why it could not be measured: a ratio that is missing says so.

use ::clear::Chunk;
use ::clear::calibrate::{Basis, Choice};
use serde::Serialize;
use units::PageSize;

use crate::figure::Stats;

/// What was measured, or why not.
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
            Err(format!("part {part} was not run"))
        }
        let race = match choice.basis {
            Basis::Measured { mb_per_s, .. } => Some(Cell {
                method: choice.setting.method.name().to_owned(),
                chunk: choice.setting.chunk,
                rate: Stats::of(&[f64::from(mb_per_s) / 1e3]),
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
        }
    }

    /// Of 1 GiB pages, or of 2 MiB ones.
    pub(super) fn populate(&mut self, page: PageSize) -> &mut Found<Populating> {
        if page == PageSize::GIB_1 { &mut self.populate_1g } else { &mut self.populate_2m }
    }

    /// The fastest that one thread has cleared memory in this run: what memory takes, as far as it
    /// shows. `None` where neither the race nor the matrix was measured.
    pub(super) fn limit(&self) -> Option<&Cell> {
        let matrix = self.clear.iter().flat_map(|clearing| [&clearing.choice, &clearing.best]);
        let cells = matrix.chain(&self.race).filter(|cell| cell.rate.median.is_finite());
        cells.max_by(|a, b| a.rate.median.total_cmp(&b.rate.median))
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
}
