// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came out of every run, and what follows from it.

use std::cmp::Ordering;
use std::error::Error;
use std::io::{self, Write};

use ::plan::{Ask, Fleet, Outcome, PeakDemand, ReadyPolicy, seconds};
use cli::output::Record;
use serde::Serialize;
use units::{Bytes, PageSize};

use crate::figure::{Chart, Part, Row, Shape, quantile, short};
use crate::page::{self, escape, section};

/// One run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cell {
    ready_high_bytes: u64,
    ready_low_bytes: u64,
    workers: u32,
    placement: &'static str,
    policy: ReadyPolicy,
    /// Of the trace, until the run ended.
    loans: usize,
    is_complete: bool,
    refused: usize,
    /// The share of lent bytes that were ready.
    hit_rate: f64,
    /// What a loan's start takes longer than with all of it ready: null in JSON for a loan that
    /// found no room.
    added_p50_seconds: f64,
    added_p95_seconds: f64,
    added_p99_seconds: f64,
    /// CPU seconds of workers, and of borrowers that zeroed the rest themselves.
    zeroing_cpu_seconds: f64,
    fault_cpu_seconds: f64,
    /// Bytes that were ready and unlent, of all nodes, on average over the time.
    withheld_bytes: f64,
}

impl Cell {
    pub(super) fn new(fleet: &Fleet, outcome: Outcome) -> Self {
        // A loan without room waits for ever.
        let without_room = std::iter::repeat_n(f64::INFINITY, outcome.refused);
        let starts: Vec<_> = outcome.added.iter().copied().chain(without_room).collect();
        let added = |part| {
            let at = quantile(&starts, part);
            if at.is_nan() { 0.0 } else { at }
        };
        let unbacked = Bytes(outcome.bytes - outcome.ready_bytes);
        Self {
            ready_high_bytes: fleet.kind.ready_high.0,
            ready_low_bytes: fleet.kind.ready_low.0,
            workers: fleet.kind.workers,
            placement: fleet.placement.name(),
            policy: fleet.kind.policy,
            loans: outcome.loans,
            is_complete: outcome.is_complete,
            refused: outcome.refused,
            hit_rate: outcome.hit_rate(),
            added_p50_seconds: added(0.5),
            added_p95_seconds: added(0.95),
            added_p99_seconds: added(0.99),
            zeroing_cpu_seconds: outcome.zeroing,
            fault_cpu_seconds: seconds(unbacked, fleet.fault_rate),
            withheld_bytes: outcome.withheld_bytes(),
        }
    }

    fn settings(&self) -> String {
        let (high, low) = (Bytes(self.ready_high_bytes), Bytes(self.ready_low_bytes));
        let workers = cli::output::count(u64::from(self.workers), "worker");
        let low = if low == high { String::new() } else { format!(" (ready_low {low})") };
        let keep = match self.policy {
            ReadyPolicy::Constant => format!("keep {high} ready per node{low}"),
            ReadyPolicy::Day => {
                format!("learn from the day, and keep at most {high} ready per node")
            }
            ReadyPolicy::Oracle => {
                format!("know the future, and keep at most {high} ready per node")
            }
        };
        format!("{keep}, with {workers} each and loans placed {}", self.placement)
    }

    /// The tables of prezero.toml.
    fn config(&self, page: PageSize, block: Option<Bytes>) -> String {
        let (low, high) = (Bytes(self.ready_low_bytes), Bytes(self.ready_high_bytes));
        let blocks = match block {
            None if self.policy == ReadyPolicy::Day => {
                format!("ready = {{ learn = \"day\", max = \"{high}\" }}\n")
            }
            // Learnt from the loans.
            None => format!("ready = \"{high}\"\n"),
            Some(block) => format!(
                "pages_per_block = {}\nready_low = \"{low}\"\nready_high = \"{high}\"\n",
                block.0.div_ceil(page.bytes()).max(1)
            ),
        };
        format!(
            "[workers]\nmax = {}\n\n# Once for each node: node = 0, 1, ...\n[[pool]]\nnode = 0\n\
             page_size = \"{page}\"\n{blocks}",
            self.workers
        )
    }

    fn comes_to(&self) -> String {
        let mut text = format!("{} % of lent bytes are ready then", short(self.hit_rate * 100.0));
        if self.refused > 0 {
            text += &format!(", {} of {} loans find no room", self.refused, self.loans);
        }
        if self.added_p95_seconds.is_infinite() {
            text += ", and 1 start in 20 or more never comes";
        } else if self.added_p95_seconds < 0.001 {
            text += ", and 19 of 20 starts wait for nothing";
        } else {
            let added = short(self.added_p95_seconds);
            text += &format!(", and 1 start in 20 waits {added} s or more");
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
    /// The recommended setting as prezero.toml has it.
    config: Option<String>,
    /// Whether every run has played the whole trace.
    complete: bool,
}

impl PlanReport {
    pub(super) fn new(
        asks: &[Ask],
        nodes: usize,
        node: Bytes,
        want: u8,
        (page, block): (PageSize, Option<Bytes>),
        runs: Vec<Cell>,
    ) -> Self {
        let mut sizes: Vec<_> = asks.iter().map(|ask| ask.bytes.0).collect();
        sizes.sort_unstable();
        let complete = runs.iter().all(|run| run.is_complete);
        let no_advice =
            if complete { too_small(asks, nodes, node, &runs) } else { ended(&runs, asks) };
        // A fleet that is too small has no setting to write down.
        let config = match no_advice {
            Some(_) => None,
            None => chosen(&runs, want).map(|(run, _)| run.config(page, block)),
        };
        let advice = no_advice.unwrap_or_else(|| advice(&runs, want));
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
            config,
            complete,
        }
    }

    /// Whether every run has played the whole trace.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    fn heading(&self) -> String {
        format!(
            "{} loans in {}, {} GiB in all, half of them {} GiB or more; {} nodes with {} of huge pages each",
            self.loans,
            span(self.seconds),
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
        let has_policies = self.runs.iter().any(|run| run.policy != ReadyPolicy::Constant);
        for run in &self.runs {
            let low = 100.0 * gib(run.ready_low_bytes) / gib(run.ready_high_bytes.max(1));
            #[expect(clippy::cast_precision_loss, reason = "figures of three digits")]
            let refused = run.refused as f64;
            let mut labels = vec![
                ("ready_high", Bytes(run.ready_high_bytes).to_string()),
                ("ready_low", format!("{low:.0} %")),
                ("workers", run.workers.to_string()),
                ("placement", run.placement.to_owned()),
            ];
            if has_policies {
                labels.push(("policy", run.policy.name().to_owned()));
            }
            if !self.complete {
                labels.push(("loans", run.loans.to_string()));
            }
            part.rows.push(
                Row::new(labels)
                    .with("hit", "%", &[run.hit_rate * 100.0])
                    .with("added p50", "s", &[run.added_p50_seconds])
                    .with("p95", "s", &[run.added_p95_seconds])
                    .with("p99", "s", &[run.added_p99_seconds])
                    .with("refused", "loans", &[refused])
                    .with("zeroing CPU", "s", &[run.zeroing_cpu_seconds])
                    .with("fault CPU", "s", &[run.fault_cpu_seconds])
                    .with("withheld", "GiB", &[run.withheld_bytes / f64::from(1 << 30)]),
            );
        }
        let several = |key: &str| part.rows.iter().any(|r| r.label(key) != part.rows[0].label(key));
        let several_policies = has_policies && several("policy");
        let by: &'static [&'static str] = match (several("workers"), several("ready_low")) {
            (false, false) if several_policies => &["placement", "policy"],
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
        writeln!(out, "\n{}", self.advice)?;
        match &self.config {
            Some(config) => write!(out, "\nin prezero.toml:\n\n{config}"),
            None => Ok(()),
        }
    }
}

/// Loans without room at which no setting of a pool is worth a recommendation, in percent.
const MAX_REFUSED_PERCENT: usize = 1;

/// A time as people say it: seconds up to an hour, then hours, then days.
fn span(seconds: f64) -> String {
    match seconds {
        ..3600.0 => format!("{} s", short(seconds)),
        ..172_800.0 => format!("{} hours", short(seconds / 3600.0)),
        _ => format!("{} days", short(seconds / 86_400.0)),
    }
}

/// Says so where runs were ended early.
fn ended(runs: &[Cell], asks: &[Ask]) -> Option<String> {
    let least = runs.iter().map(|run| run.loans).min()?;
    let all = asks.len();
    Some(format!(
        "ended early: the rows are of their first loans, {least} of {all} in the shortest one"
    ))
}

/// Says so where the machines are too small or too few for the trace, however their pools are set.
fn too_small(asks: &[Ask], nodes: usize, node: Bytes, runs: &[Cell]) -> Option<String> {
    let least = runs.iter().min_by_key(|run| run.refused)?;
    if least.refused * 100 <= least.loans * MAX_REFUSED_PERCENT {
        return None;
    }
    let peak = PeakDemand::of(asks, node);
    let all = Bytes(node.0.saturating_mul(nodes as u64));
    let needed = match peak.nodes {
        Some(needed) => format!("all of them fit on {needed} nodes of {node}"),
        None => format!("a loan is larger than a node of {node}"),
    };
    Some(format!(
        "the machines are too small or too few for these loans: {} are lent at once, {nodes} nodes \
         have {all}, and {} of {} loans find no room, however much is kept ready; {needed}",
        peak.bytes, least.refused, least.loans
    ))
}

/// The smallest setting that reaches the wanted share; of equals the one that refuses least.
fn advice(runs: &[Cell], want: u8) -> String {
    match chosen(runs, want) {
        Some((run, true)) => format!("{}: {}", run.settings(), run.comes_to()),
        Some((best, false)) => format!(
            "nothing that was tried makes {want} % ready; the best is to {}: {}",
            best.settings(),
            best.comes_to()
        ),
        None => "the oracle knows the future, and no daemon does: name another --policy".to_owned(),
    }
}

/// That run, or the one with most ready if none reaches the share, and whether it does.
fn chosen(runs: &[Cell], want: u8) -> Option<(&Cell, bool)> {
    // No daemon knows the future.
    let possible = || runs.iter().filter(|run| run.policy != ReadyPolicy::Oracle);
    let enough = possible().filter(|run| run.hit_rate * 100.0 >= f64::from(want));
    let least = enough.min_by(|a, b| {
        let by_cost = (a.ready_high_bytes, a.workers).cmp(&(b.ready_high_bytes, b.workers));
        let by_policy =
            (a.policy != b.policy).then(|| a.withheld_bytes.total_cmp(&b.withheld_bytes));
        let by_cost = by_cost.then(by_policy.unwrap_or(Ordering::Equal));
        by_cost.then(a.refused.cmp(&b.refused)).then(b.hit_rate.total_cmp(&a.hit_rate))
    });
    let most = || possible().max_by(|a, b| a.hit_rate.total_cmp(&b.hit_rate));
    least.map(|run| (run, true)).or_else(|| Some((most()?, false)))
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
            policy: ReadyPolicy::Constant,
            loans: 10,
            is_complete: true,
            refused: 0,
            hit_rate,
            added_p50_seconds: 0.0,
            added_p95_seconds: 1.25,
            added_p99_seconds: 2.5,
            zeroing_cpu_seconds: 3.0,
            fault_cpu_seconds: 4.0,
            withheld_bytes: 5e9,
        }
    }

    #[test]
    fn the_advice_is_the_least_that_is_enough() {
        let runs = [
            cell(32, "packed", 0.45),
            cell(64, "packed", 0.5),
            cell(64, "ready-first", 0.97),
            cell(128, "packed", 0.99),
        ];
        let text = advice(&runs, 95);
        assert!(text.starts_with("keep 64G ready per node (ready_low 32G)"), "{text}");
        assert!(text.contains("1 worker each and loans placed ready-first: 97.0 %"), "{text}");
        let text = advice(&runs, 100);
        assert!(text.starts_with("nothing that was tried makes 100 % ready; the best"), "{text}");
        assert!(text.contains("keep 128G ready"), "{text}");
    }

    const SHAPE: (PageSize, Option<Bytes>) = (PageSize::GIB_1, Some(Bytes(8 << 30)));

    #[test]
    fn plan_ends_with_a_configuration_to_paste() {
        let runs = vec![cell(32, "packed", 0.45), cell(64, "packed", 0.99)];
        let ask = Ask { arrival: 0.0, bytes: Bytes(8 << 30), lifetime: 1.0, node: None };
        let report = PlanReport::new(&[ask], 4, Bytes(128 << 30), 95, SHAPE, runs);
        let mut out = Vec::new();
        report.human(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let (_, config) = text.split_once("in prezero.toml:\n\n").unwrap();
        let config = book::config::Config::from_toml(config).unwrap();
        assert_eq!((config.workers.max, config.pools.len()), (1, 1));
        assert!(text.ends_with("ready_low = \"32G\"\nready_high = \"64G\"\n"), "{text}");
    }

    // Promise P387 (operator): `prezero plan` advises the table of the policy that it tried, and no
    // daemon to be the oracle.
    #[test]
    fn learnt_day_is_advised_with_its_table_and_the_oracle_is_not() {
        let policy = |policy, withheld_bytes| Cell {
            policy,
            withheld_bytes,
            ready_low_bytes: 64 << 30,
            ..cell(64, "packed", 0.99)
        };
        let runs = vec![
            policy(ReadyPolicy::Oracle, 1e9),
            policy(ReadyPolicy::Constant, 9e9),
            policy(ReadyPolicy::Day, 5e9),
        ];
        let ask = Ask { arrival: 0.0, bytes: Bytes(8 << 30), lifetime: 1.0, node: None };
        let shape = (PageSize::MIB_2, None);
        let of = |runs| PlanReport::new(&[ask], 1, Bytes(128 << 30), 95, shape, runs);
        let report = of(runs.clone());
        assert!(
            report.advice.starts_with("learn from the day, and keep at most 64G ready per node, ")
        );
        let config = book::config::Config::from_toml(&report.config.unwrap()).unwrap();
        assert_eq!(config.pools[0].learns, Some(book::config::ReadyLearning::Day));
        let mut out = Vec::new();
        of(runs[..2].to_vec()).human(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("oracle") && text.ends_with("ready = \"64G\"\n"), "{text}");
        let report = of(runs[..1].to_vec());
        assert!(report.config.is_none() && report.advice.contains("no daemon does"));
    }

    // Promise P388 (operator): A plan that is ended early prints the rows that it has played, says
    // how many loans they have, and advises nothing.
    #[test]
    fn plan_that_is_ended_early_has_rows_and_no_advice() {
        let asks: Vec<_> = (0..100)
            .map(|at| Ask { arrival: f64::from(at), bytes: Bytes(1), lifetime: 1.0, node: None })
            .collect();
        let cut = Cell { loans: 40, is_complete: false, ..cell(64, "packed", 0.99) };
        let runs = vec![cell(32, "packed", 0.99), cut];
        let report = PlanReport::new(&asks, 4, Bytes(128 << 30), 95, SHAPE, runs);
        assert!(!report.is_complete() && report.config.is_none());
        let mut out = Vec::new();
        report.human(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("ended early") && text.contains("10 of 100"), "{text}");
        assert_eq!(text.matches("packed").count(), 2, "{text}");
    }

    #[test]
    fn spans_are_said_as_people_say_them() {
        let said = [59.0, 7200.0, 864_000.0].map(span);
        assert_eq!(said, ["59.0 s", "2.00 hours", "10.0 days"]);
    }

    #[test]
    fn fleet_that_is_too_small_gets_no_recommendation() {
        let asks: Vec<_> = (0..100)
            .map(|at| Ask {
                arrival: f64::from(at) * 60.0,
                bytes: Bytes(48 << 30),
                lifetime: f64::INFINITY,
                node: None,
            })
            .collect();
        let full = Cell {
            loans: 100,
            refused: 96,
            added_p95_seconds: f64::INFINITY,
            ..cell(64, "packed", 1.0)
        };
        let report = PlanReport::new(&asks, 4, Bytes(64 << 30), 95, SHAPE, vec![full.clone()]);
        for part in [
            "too small or too few",
            "4.6T are lent at once",
            "have 256G",
            "96 of 100",
            "fit on 100 nodes of 64G",
        ] {
            assert!(report.advice.contains(part), "{part}: {}", report.advice);
        }
        assert!(!report.advice.contains("keep"), "{}", report.advice);
        assert!(full.comes_to().contains("never comes"), "{}", full.comes_to());
        let one = Cell { loans: 100, refused: 1, ..cell(64, "packed", 1.0) };
        let report = PlanReport::new(&asks, 4, Bytes(64 << 30), 95, SHAPE, vec![one]);
        assert!(report.advice.starts_with("keep 64G"), "{}", report.advice);
    }

    #[test]
    fn the_page_has_the_advice_and_both_charts() {
        let ask = Ask { arrival: 0.0, bytes: Bytes(8 << 30), lifetime: 1.0, node: None };
        let runs = vec![cell(32, "packed", 0.45), cell(64, "packed", 0.99)];
        let html = PlanReport::new(&[ask], 4, Bytes(128 << 30), 95, SHAPE, runs).html().unwrap();
        assert!(html.contains("<strong>keep 64G ready"), "{html}");
        assert_eq!(html.matches("<svg").count(), 2);
    }
}
