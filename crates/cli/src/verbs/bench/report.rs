// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole of it: the machine, the parts, the ratios; as tables or JSON.

use std::io::{self, Write};

use daemon::host::machine::Machine;
use serde::Serialize;

use super::Bench;
use super::figure::{Part, Row, Value};
use crate::output::Record;
use crate::output::table::{self, Align};

/// What the benchmark must show; `None` where it was not measured.
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

/// A measure that has a target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) measured: Option<f64>,
    /// At least, or at most.
    pub(super) bound: f64,
    pub(super) at_least: bool,
}

impl Target {
    /// `None` where it was not measured.
    pub(super) fn is_met(&self) -> Option<bool> {
        self.measured
            .map(|value| if self.at_least { value >= self.bound } else { value <= self.bound })
    }

    pub(super) fn cells(&self) -> Vec<String> {
        vec![
            self.name.to_owned(),
            self.measured.map_or("-".into(), |value| format!("{value:.3}")),
            format!("{} {}", if self.at_least { ">=" } else { "<=" }, self.bound),
            match self.is_met() {
                Some(true) => "yes".into(),
                Some(false) => "no".into(),
                None => "not measured".into(),
            },
        ]
    }
}

impl Ratios {
    pub(super) fn targets(&self) -> [Target; 6] {
        let target = |name, measured, bound, at_least| Target { name, measured, bound, at_least };
        [
            target("clear_choice_over_best", self.clear_choice_over_best, 0.95, true),
            target(
                "clear_choice_over_best_all_threads",
                self.clear_choice_over_best_all_threads,
                0.9,
                true,
            ),
            target("inplace_over_populate_1g", self.inplace_over_populate_1g, 2.3, true),
            target("inplace_over_populate_2m", self.inplace_over_populate_2m, 4.0, true),
            target("cancel_p99_ms", self.cancel_p99_ms, 1.0, false),
            target("neighbour_slowdown_percent", self.neighbour_slowdown_percent, 3.0, false),
        ]
    }
}

/// Everything that the benchmark found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) machine: Machine,
    /// Before the first measurement, averaged over a minute: above 0.5, others were at work.
    pub(super) load_average: f64,
    pub(super) threads: usize,
    pub(super) rounds: u32,
    pub(super) bytes: u64,
    pub(super) choice: String,
    pub(super) parts: Vec<Part>,
    /// How many measurements could not be made here.
    pub(super) skipped: usize,
    pub(super) ratios: Ratios,
}

impl Report {
    pub(super) fn new(machine: Machine, load_average: f64, bench: &Bench) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            machine,
            load_average,
            threads: bench.plan.threads,
            rounds: bench.plan.rounds,
            bytes: bench.size.0,
            choice: bench.choice.to_string(),
            parts: Vec::new(),
            skipped: 0,
            ratios: Ratios::default(),
        }
    }

    pub(super) fn conclude(&mut self, ratios: Ratios) {
        self.ratios = ratios;
        self.skipped = self.parts.iter().map(|part| part.skipped.len()).sum();
    }

    /// The machine, in one line.
    pub(super) fn heading(&self) -> String {
        let Machine { cpu, cpus, kernel, governor, is_virtual, page_bytes, .. } = &self.machine;
        let pages: Vec<_> =
            page_bytes.iter().map(|&bytes| model::units::Bytes(bytes).to_string()).collect();
        format!(
            "{cpu}{}, {cpus} cpus, Linux {kernel}, huge pages {}, governor {}, load average {:.2} at the start{}",
            if *is_virtual { " (virtual)" } else { "" },
            if pages.is_empty() { "none".into() } else { pages.join(" and ") },
            governor.as_deref().unwrap_or("none"),
            self.load_average,
            if self.is_loaded() {
                ": others were at work, wall clock figures are too low"
            } else {
                ""
            },
        )
    }

    /// Whether others used the machine.
    pub(super) fn is_loaded(&self) -> bool {
        self.load_average > 0.5
    }
}

/// A value with its spread: `85.2 ±3%`.
pub(super) fn text(value: &Value) -> String {
    let median = value.stats.median;
    let digits = match median.abs() {
        m if m >= 100.0 => 0,
        m if m >= 10.0 => 1,
        m if m >= 0.1 => 2,
        _ => 4,
    };
    let spread = value.stats.spread_percent();
    if value.stats.samples < 2 || !spread.is_finite() {
        format!("{median:.digits$}")
    } else {
        format!("{median:.digits$} ±{spread:.0}%")
    }
}

/// Headings and cells of a part's rows: a column per label, then one per value.
pub(super) fn columns(rows: &[Row]) -> (Vec<String>, Vec<Vec<String>>, usize) {
    let mut labels: Vec<&str> = Vec::new();
    let mut values: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        for (key, _) in &row.labels {
            if !labels.contains(key) {
                labels.push(key);
            }
        }
        for value in &row.values {
            if !values.contains(&(value.what, value.unit)) {
                values.push((value.what, value.unit));
            }
        }
    }
    let cells = rows.iter().map(|row| {
        let value = |what: &str| row.value(what).map_or("-".into(), text);
        let left = labels.iter().map(|key| row.label(key).to_owned());
        left.chain(values.iter().map(|(what, _)| value(what))).collect()
    });
    let left = labels.len();
    let headings = labels.iter().map(|key| (*key).to_owned());
    let headings = headings.chain(values.iter().map(|(what, unit)| format!("{what} {unit}")));
    (headings.collect(), cells.collect(), left)
}

impl Record for Report {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.heading())?;
        writeln!(out, "prezero clears with: {}", self.choice)?;
        for part in &self.parts {
            writeln!(out, "\n{}: {}\n{}", part.name, part.question, part.method)?;
            let (headings, rows, left) = columns(&part.rows);
            let columns: Vec<_> = (headings.iter().enumerate())
                .map(|(at, name)| {
                    (name.as_str(), if at < left { Align::Left } else { Align::Right })
                })
                .collect();
            table::write(out, &columns, &rows)?;
            for note in &part.notes {
                writeln!(out, "  {note}")?;
            }
            for skipped in &part.skipped {
                writeln!(out, "  skipped: {skipped}")?;
            }
        }
        writeln!(out)?;
        let columns = [
            ("RATIO", Align::Left),
            ("MEASURED", Align::Right),
            ("WANTED", Align::Right),
            ("MET", Align::Left),
        ];
        let rows: Vec<_> = self.ratios.targets().iter().map(Target::cells).collect();
        table::write(out, &columns, &rows)?;
        if self.skipped > 0 {
            writeln!(out, "{} measurements were skipped", self.skipped)?;
        }
        Ok(())
    }
}
