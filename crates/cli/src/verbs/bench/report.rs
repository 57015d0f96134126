// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole of it: the machine, the parts, the ratios; as tables or JSON.

use std::io::{self, Write};

use daemon::host::machine::Machine;
use serde::Serialize;

use super::Bench;
use super::evidence::{Evidence, Ratios};
use super::figure::{Part, Row, Value, short};
use super::verdict::{self, Verdict};
use crate::output::Record;
use crate::output::table::{self, Align};

/// A load average above this means that others are at work.
pub(super) const IDLE: f64 = 0.5;

/// Everything that the benchmark found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) machine: Machine,
    /// Before the first measurement, averaged over a minute: above [`IDLE`], others were at work.
    pub(super) load_average: f64,
    pub(super) threads: usize,
    pub(super) rounds: u32,
    pub(super) bytes: u64,
    pub(super) choice: String,
    pub(super) parts: Vec<Part>,
    /// How many measurements could not be made here.
    pub(super) skipped: usize,
    /// Each ratio against what is wanted, with the reason where it is missed.
    pub(super) verdicts: Vec<Verdict>,
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
            verdicts: Vec::new(),
            ratios: Ratios::default(),
        }
    }

    pub(super) fn conclude(&mut self, evidence: &Evidence) {
        self.ratios = evidence.ratios();
        self.verdicts = verdict::judge(evidence, self.load_average);
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
        self.load_average > IDLE
    }
}

/// A value with its spread: `85.2 ±3%`.
pub(super) fn text(value: &Value) -> String {
    let median = short(value.stats.median);
    let spread = value.stats.spread_percent();
    if value.stats.samples < 2 || !spread.is_finite() {
        median
    } else {
        format!("{median} ±{spread:.0}%")
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
        let rows: Vec<_> = self.verdicts.iter().map(Verdict::line).collect();
        table::write(out, &columns, &rows)?;
        for sentence in self.verdicts.iter().filter_map(Verdict::sentence) {
            writeln!(out, "  {sentence}")?;
        }
        if self.skipped > 0 {
            writeln!(out, "{} measurements were skipped", self.skipped)?;
        }
        Ok(())
    }
}
