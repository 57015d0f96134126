// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came out of every run, and what follows from it.

use std::error::Error;
use std::io::{self, Write};

use ::plan::{Ask, Fleet, NodeKind, Outcome, seconds};
use cli::output::Record;
use serde::Serialize;
use units::Bytes;

use crate::figure::{Chart, Part, Row, Shape, quantile, short};
use crate::page::{self, escape, section};

/// One run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cell {
    ready_high_bytes: u64,
    ready_low_bytes: u64,
    workers: u32,
    placement: &'static str,
    loans: usize,
    refused: usize,
    /// The share of lent bytes that were ready.
    hit_rate: f64,
    /// What a loan's start takes longer than with all of it ready.
    added_p50_seconds: f64,
    added_p95_seconds: f64,
    added_p99_seconds: f64,
    /// CPU seconds of workers, and of borrowers that zeroed the rest themselves.
    zeroing_cpu_seconds: f64,
    fault_cpu_seconds: f64,
    /// Bytes that were ready and unlent, of all nodes, on average over the time.
    withheld_bytes: f64,
    /// The pool's table of prezero.toml.
    pool: String,
}

/// The share of loans without room above which there is no advice: what is kept ready is not what
/// such nodes lack.
const MAX_REFUSED: f64 = 0.01;

/// A kind of node as prezero.toml says it.
fn table(kind: &NodeKind) -> String {
    let mut text = format!("[[pool]]\npage_size = \"{}\"\n", kind.page_size);
    if kind.learns() {
        text += &format!("ready = \"{}\"\n", kind.ready_high);
    } else {
        text += &format!("pages_per_block = {}\n", kind.pages_per_block.0);
        if kind.ready_low != kind.ready_high {
            text += &format!("ready_low = \"{}\"\n", kind.ready_low);
        }
        text += &format!("ready_high = \"{}\"\n", kind.ready_high);
    }
    if kind.in_place {
        text += "recycle = \"in-place\"\n";
    }
    text
}

impl Cell {
    pub(super) fn new(fleet: &Fleet, outcome: Outcome) -> Self {
        let added = |part| {
            let at = quantile(&outcome.added, part);
            if at.is_finite() { at } else { 0.0 }
        };
        let unbacked = Bytes(outcome.bytes - outcome.ready_bytes);
        Self {
            ready_high_bytes: fleet.kind.ready_high.0,
            ready_low_bytes: fleet.kind.ready_low.0,
            workers: fleet.kind.workers,
            placement: fleet.placement.name(),
            loans: outcome.loans,
            refused: outcome.refused,
            hit_rate: outcome.hit_rate(),
            added_p50_seconds: added(0.5),
            added_p95_seconds: added(0.95),
            added_p99_seconds: added(0.99),
            zeroing_cpu_seconds: outcome.zeroing,
            fault_cpu_seconds: seconds(unbacked, fleet.fault_rate),
            withheld_bytes: outcome.withheld_bytes(),
            pool: table(&fleet.kind),
        }
    }

    /// Whether loans find room, but for a few.
    fn is_roomy(&self) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
        let (refused, loans) = (self.refused as f64, self.loans as f64);
        refused <= loans * MAX_REFUSED
    }

    fn settings(&self) -> String {
        let high = Bytes(self.ready_high_bytes);
        let workers = cli::output::count(u64::from(self.workers), "worker");
        // Of the placements the one that few schedulers have.
        let whose = if self.placement == "ready-first" {
            " (as Kubernetes does with prezero's driver)"
        } else {
            ""
        };
        format!(
            "keep {high} ready per node, with {workers} each and loans placed {}{whose}",
            self.placement
        )
    }

    fn comes_to(&self) -> String {
        let mut text = format!("{} % of lent bytes are ready then", short(self.hit_rate * 100.0));
        if self.refused > 0 {
            text += &format!(", {} of {} loans find no room", self.refused, self.loans);
        }
        if self.added_p95_seconds < 0.001 {
            text += ", and 19 of 20 starts wait for nothing";
        } else {
            let added = short(self.added_p95_seconds);
            text += &format!(", and 1 start in 20 waits {added} s or more");
        }
        if self.added_p99_seconds >= 0.001 {
            text += &format!(" (1 in 100: {} s)", short(self.added_p99_seconds));
        }
        text
    }
}

/// Everything that the plan found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PlanReport {
    loans: usize,
    /// From the first arrival to the last.
    seconds: f64,
    /// The sum of all loans.
    bytes: u64,
    median_bytes: u64,
    nodes: usize,
    node_bytes: u64,
    /// In percent.
    want: u8,
    runs: Vec<Cell>,
    advice: String,
}

impl PlanReport {
    pub(super) fn new(asks: &[Ask], nodes: usize, node: Bytes, want: u8, runs: Vec<Cell>) -> Self {
        let mut sizes: Vec<_> = asks.iter().map(|ask| ask.bytes.0).collect();
        sizes.sort_unstable();
        let room = Room::new(asks, node);
        let advice = advice(&runs, want, &room);
        Self {
            loans: asks.len(),
            seconds: asks.last().map_or(0.0, |ask| ask.arrival),
            bytes: sizes.iter().sum(),
            median_bytes: sizes.get(sizes.len() / 2).copied().unwrap_or(0),
            nodes,
            node_bytes: node.0,
            want,
            runs,
            advice,
        }
    }

    fn heading(&self) -> String {
        format!(
            "{} loans in {} s, {} GiB in all, half of them {} GiB or more; {} nodes with {} of huge pages each",
            self.loans,
            short(self.seconds),
            short(gib(self.bytes)),
            short(gib(self.median_bytes)),
            self.nodes,
            Bytes(self.node_bytes)
        )
    }

    /// The same as rows of figures.
    fn part(&self) -> Part {
        let mut part = Part::new(
            "runs",
            "How much of what is lent is ready, and what does that cost?",
            "One run of the daemon's own book and policy over the whole trace for each row. \
             Hit: the share of lent bytes that were ready. Added: what starts take longer than with \
             all of it ready. CPU: seconds of workers, and of borrowers that zeroed the rest \
             themselves. Withheld: what was ready and lent to nobody, of all nodes, on average."
                .to_owned(),
        );
        for run in &self.runs {
            let low = 100.0 * gib(run.ready_low_bytes) / gib(run.ready_high_bytes.max(1));
            #[expect(clippy::cast_precision_loss, reason = "figures of three digits")]
            let refused = run.refused as f64;
            part.rows.push(
                Row::new(vec![
                    ("ready_high", Bytes(run.ready_high_bytes).to_string()),
                    ("ready_low", format!("{low:.0} %")),
                    ("workers", run.workers.to_string()),
                    ("placement", run.placement.to_owned()),
                ])
                .with("hit", "%", &[run.hit_rate * 100.0])
                .with("added p50", "s", &[run.added_p50_seconds])
                .with("p95", "s", &[run.added_p95_seconds])
                .with("p99", "s", &[run.added_p99_seconds])
                .with("refused", "loans", &[refused])
                .with("zeroing CPU", "s", &[run.zeroing_cpu_seconds])
                .with("fault CPU", "s", &[run.fault_cpu_seconds])
                .with(
                    "withheld",
                    "GiB",
                    &[run.withheld_bytes / f64::from(1 << 30)],
                ),
            );
        }
        let several = |key: &str| part.rows.iter().any(|r| r.label(key) != part.rows[0].label(key));
        let by: &'static [&'static str] = match (several("workers"), several("ready_low")) {
            (false, false) => &["placement"],
            (true, false) => &["placement", "workers"],
            (false, true) => &["placement", "ready_low"],
            (true, true) => &["placement", "workers", "ready_low"],
        };
        for (title, what) in [
            ("Lent bytes that were ready, %, by what is kept ready", "hit"),
            ("What one start in twenty takes longer, s", "p95"),
        ] {
            let (shape, x, only) = (Shape::Lines, &["ready_high"][..], Vec::new());
            part.charts.push(Chart { title, shape, what, x, series: by, only });
        }
        part
    }

    pub(super) fn html(&self) -> Result<String, Box<dyn Error>> {
        let mut out = String::new();
        page::begin(&mut out, "prezero plan")?;
        out.push_str(&format!(
            "<p><strong>{}</strong></p>\n<p class=\"machine\">{}.</p>\n",
            escape(&self.advice),
            escape(&self.heading())
        ));
        section(&mut out, &self.part())?;
        page::end(&mut out);
        Ok(out)
    }
}

impl Record for PlanReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.heading())?;
        self.part().human(out)?;
        writeln!(out, "\n{}", self.advice)
    }
}

/// How much room the loans of a trace need.
#[derive(Debug)]
struct Room {
    node: Bytes,
    largest: Bytes,
    /// The most that is lent at a time.
    peak: Bytes,
}

impl Room {
    fn new(asks: &[Ask], node: Bytes) -> Self {
        let ends = asks.iter().filter(|ask| ask.lifetime.is_finite());
        let mut changes: Vec<_> = asks
            .iter()
            .map(|ask| (ask.arrival, true, ask.bytes.0))
            .chain(ends.map(|ask| (ask.arrival + ask.lifetime, false, ask.bytes.0)))
            .collect();
        // At one time the ends first.
        changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (mut lent, mut peak) = (0_u64, 0);
        for (_, is_lent, bytes) in changes {
            lent = if is_lent { lent.saturating_add(bytes) } else { lent.saturating_sub(bytes) };
            peak = peak.max(lent);
        }
        let largest = asks.iter().map(|ask| ask.bytes.0).max().unwrap_or(0);
        Self { node, largest: Bytes(largest), peak: Bytes(peak) }
    }

    /// Which nodes would do.
    fn says(&self) -> String {
        if self.largest > self.node {
            return format!(
                "the largest loan has {}, and a node has {}: raise --memory",
                self.largest, self.node
            );
        }
        let nodes = self.peak.0.div_ceil(self.node.0.max(1));
        format!(
            "at most {} GiB are lent at a time, which is all of {nodes} nodes with {}: raise \
             --nodes or --memory",
            short(gib(self.peak.0)),
            self.node
        )
    }
}

/// The smallest setting that reaches the wanted share; of equals the one that refuses least. There
/// is none where loans find no room.
fn advice(runs: &[Cell], want: u8, room: &Room) -> String {
    let fewest = runs.iter().min_by_key(|run| run.refused);
    if let Some(run) = fewest.filter(|run| !run.is_roomy()) {
        return format!(
            "no advice for such nodes: {} of {} loans find no room at best. {}",
            run.refused,
            run.loans,
            room.says()
        );
    }
    let enough = runs
        .iter()
        .filter(|run| run.is_roomy())
        .filter(|run| run.hit_rate * 100.0 >= f64::from(want));
    let least = enough.min_by(|a, b| {
        let by_cost = (a.ready_high_bytes, a.workers).cmp(&(b.ready_high_bytes, b.workers));
        by_cost.then(a.refused.cmp(&b.refused)).then(b.hit_rate.total_cmp(&a.hit_rate))
    });
    if let Some(run) = least {
        return format!("{}: {}\n\n{}", run.settings(), run.comes_to(), run.pool);
    }
    let Some(best) = runs.iter().max_by(|a, b| a.hit_rate.total_cmp(&b.hit_rate)) else {
        return "nothing was run".to_owned();
    };
    format!(
        "nothing that was tried makes {want} % ready; the best is to {}: {}",
        best.settings(),
        best.comes_to()
    )
}

#[expect(clippy::cast_precision_loss, reason = "figures of three digits")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(high: u64, placement: &'static str, hit_rate: f64) -> Cell {
        Cell {
            ready_high_bytes: high << 30,
            ready_low_bytes: high << 29,
            workers: 1,
            placement,
            loans: 10,
            refused: 0,
            hit_rate,
            added_p50_seconds: 0.0,
            added_p95_seconds: 1.25,
            added_p99_seconds: 2.5,
            zeroing_cpu_seconds: 3.0,
            fault_cpu_seconds: 4.0,
            withheld_bytes: 5e9,
            pool: format!("[[pool]]\nready = \"{high}G\"\n"),
        }
    }

    fn room() -> Room {
        let ask = |arrival, gib: u64, lifetime| Ask {
            arrival,
            bytes: Bytes(gib << 30),
            lifetime,
            node: None,
        };
        let asks = [ask(0.0, 64, 10.0), ask(5.0, 32, f64::INFINITY), ask(10.0, 40, 1.0)];
        Room::new(&asks, Bytes(64 << 30))
    }

    #[test]
    fn the_advice_is_the_least_that_is_enough() {
        let runs = [
            cell(32, "packed", 0.45),
            cell(64, "packed", 0.5),
            cell(64, "ready-first", 0.97),
            cell(128, "packed", 0.99),
        ];
        let text = advice(&runs, 95, &room());
        assert!(text.starts_with("keep 64G ready per node, with 1 worker each"), "{text}");
        assert!(text.contains("ready-first (as Kubernetes does"), "{text}");
        assert!(text.contains("97.0 %") && text.contains("(1 in 100: 2.50 s)"), "{text}");
        assert!(text.ends_with("[[pool]]\nready = \"64G\"\n"), "{text}");
        let text = advice(&runs, 100, &room());
        assert!(text.starts_with("nothing that was tried makes 100 % ready; the best"), "{text}");
        assert!(text.contains("keep 128G ready"), "{text}");
    }

    #[test]
    fn nodes_without_room_get_no_advice() {
        let full = |refused| Cell { refused, loans: 1000, ..cell(64, "packed", 0.99) };
        let text = advice(&[full(11), full(500)], 95, &room());
        assert!(text.starts_with("no advice for such nodes: 11 of 1000 loans"), "{text}");
        // 64 GiB until the tenth second, and 32 of them besides.
        assert!(text.contains("96.0 GiB are lent at a time"), "{text}");
        assert!(text.contains("2 nodes with 64G"), "{text}");
        let small = Room { node: Bytes(32 << 30), ..room() };
        assert!(small.says().contains("the largest loan has 64G, and a node has 32G"));
        assert!(advice(&[full(10), full(500)], 95, &room()).starts_with("keep 64G"));
    }

    #[test]
    fn the_page_has_the_advice_and_both_charts() {
        let ask = Ask { arrival: 0.0, bytes: Bytes(8 << 30), lifetime: 1.0, node: None };
        let runs = vec![cell(32, "packed", 0.45), cell(64, "packed", 0.99)];
        let html = PlanReport::new(&[ask], 4, Bytes(128 << 30), 95, runs).html().unwrap();
        assert!(html.contains("<strong>keep 64G ready"), "{html}");
        assert_eq!(html.matches("<svg").count(), 2);
    }
}
