// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole of it: the machine, the parts, the ratios; as tables or JSON.

use std::io::{self, Write};

use cli::machine::Machine;
use serde::Serialize;

use super::Bench;
use super::answers;
use super::evidence::{Evidence, Ratios};
use super::reach::{self, Reach};
use crate::figure::Part;
use cli::output::Record;
use cli::output::table::{self, Align};

/// What that means for the figures.
pub(super) const DISTURBED: &str = "Figures by the wall clock are too low and latencies too high; the CPU clock, which the \
     ratios of rates use, counts only the measured work, but the memory bandwidth that others took is missing there, too";
/// Others that use more of a CPU than this, on average, disturb. An idle machine's use a hundredth.
const OTHERS: f64 = 0.1;
/// Where the kernel does not say what others use: a load average above this before it began.
const LOAD: f64 = 0.5;

/// Everything that the benchmark found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct BenchReport {
    pub(super) version: &'static str,
    pub(super) machine: Machine,
    /// Before the first measurement, averaged over a minute.
    pub(super) load_average: f64,
    /// How many CPUs other programs, and a virtual machine's host, used meanwhile, on average.
    pub(super) cpus_used_by_others: Option<f64>,
    pub(super) threads: usize,
    pub(super) rounds: u32,
    pub(super) bytes: u64,
    pub(super) choice: String,
    /// What readers came for, in a sentence each.
    pub(super) answers: Vec<String>,
    pub(super) parts: Vec<Part>,
    /// How many measurements could not be made here.
    pub(super) skipped: usize,
    /// Each ratio beside what memory and kernel made possible in this run.
    pub(super) reached: Vec<Reach>,
    pub(super) ratios: Ratios,
}

impl BenchReport {
    pub(super) fn new(machine: Machine, load_average: f64, bench: &Bench) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            machine,
            load_average,
            cpus_used_by_others: None,
            threads: bench.plan.threads,
            rounds: bench.plan.rounds,
            bytes: bench.size.0,
            choice: bench.choice.to_string(),
            answers: Vec::new(),
            parts: Vec::new(),
            skipped: 0,
            reached: Vec::new(),
            ratios: Ratios::default(),
        }
    }

    pub(super) fn conclude(&mut self, evidence: &Evidence, cpus_used_by_others: Option<f64>) {
        self.cpus_used_by_others = cpus_used_by_others;
        self.ratios = evidence.ratios();
        self.reached = reach::all(evidence);
        if !cfg!(feature = "developer") {
            // No part of this build measures it.
            self.reached.retain(|reach| reach.name != "neighbour_slowdown_percent");
        }
        self.answers = answers::of(&self.parts, evidence);
        self.skipped = self.parts.iter().map(|part| part.skipped.len()).sum();
    }

    /// The machine, in one line.
    pub(super) fn heading(&self) -> String {
        let Machine { cpu, cpus, kernel, governor, is_virtual, page_bytes, .. } = &self.machine;
        let pages: Vec<_> =
            page_bytes.iter().map(|&bytes| units::Bytes(bytes).to_string()).collect();
        format!(
            "{cpu}{}, {cpus} cpus, Linux {kernel}, huge pages {}, governor {}, load average {:.2} at the start{}{}",
            if *is_virtual { " (virtual)" } else { "" },
            if pages.is_empty() { "none".into() } else { pages.join(" and ") },
            governor.as_deref().unwrap_or("none"),
            self.load_average,
            match self.cpus_used_by_others {
                Some(cpus) => format!(", others used {cpus:.2} cpus meanwhile"),
                None => String::new(),
            },
            if cfg!(debug_assertions) { ", a debug build: its figures mean nothing" } else { "" },
        )
    }

    /// What others did to the figures, if it matters.
    pub(super) fn disturbance(&self) -> Option<String> {
        match self.cpus_used_by_others {
            Some(cpus) => (cpus > OTHERS).then(|| format!("others used {cpus:.2} CPUs meanwhile")),
            None => (self.load_average > LOAD).then(|| {
                format!(
                    "the load average was {:.1} at the start: others were at work",
                    self.load_average
                )
            }),
        }
    }
}

impl Record for BenchReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.heading())?;
        if let Some(disturbance) = self.disturbance() {
            writeln!(out, "Disturbed: {disturbance}. {DISTURBED}.")?;
        }
        writeln!(out, "prezero clears with: {}", self.choice)?;
        for part in &self.parts {
            part.human(out)?;
        }
        writeln!(out)?;
        for answer in &self.answers {
            writeln!(out, "{answer}")?;
        }
        let columns = [
            ("RATIO", Align::Left),
            ("MEASURED", Align::Right),
            ("POSSIBLE HERE", Align::Right),
            ("REACHED", Align::Right),
        ];
        let rows: Vec<_> = self.reached.iter().map(Reach::cells).collect();
        table::write(out, &columns, &rows)?;
        for reach in &self.reached {
            writeln!(out, "  {}", reach.sentence())?;
        }
        if self.skipped > 0 {
            writeln!(out, "{} measurements were skipped", self.skipped)?;
        }
        Ok(())
    }
}
