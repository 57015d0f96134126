// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table is the documentation's, and the dashboard knows its names.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use super::table::{Metric, MetricSource, TABLE};
use super::*;

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

/// The name in Prometheus.
fn full_name(metric: &Metric) -> String {
    let total = if matches!(metric.source, MetricSource::Counter(_) | MetricSource::Seconds(_)) {
        "_total"
    } else {
        ""
    };
    format!("prezero_{}{total}", metric.name)
}

/// The documentation's table of gauges, or of all others.
fn table(gauges: bool) -> String {
    let mut text = "| metric | labels | meaning |\n|---|---|---|\n".to_owned();
    let rows = TABLE.iter().filter(|row| matches!(row.source, MetricSource::Gauge(_)) == gauges);
    for metric in rows {
        let label = |label: &table::Label| match label.values {
            [] => label.name.to_owned(),
            values => format!("{}: `{}`", label.name, values.join("`, `")),
        };
        let labels: Vec<_> = metric.labels.iter().map(label).collect();
        writeln!(text, "| `{}` | {} | {} |", full_name(metric), labels.join(", "), metric.help)
            .expect("a string takes everything");
    }
    text
}

/// Where the table that `mark` names stands in `text`.
fn place(text: &str, mark: &str) -> std::ops::Range<usize> {
    let begin = format!("<!-- {mark}: printed from the daemon's table of metrics -->\n");
    let start = text.find(&begin).expect("the document marks its tables") + begin.len();
    start..start + text[start..].find("\n<!-- end -->").expect("an end") + 1
}

// Promise P64.
#[test]
fn documentation_has_the_table_of_metrics() {
    let path = file("docs/reference/metrics.md");
    let text = fs::read_to_string(&path).expect("the document");
    let mut made = text.clone();
    for (mark, gauges) in [("gauges", true), ("counters", false)] {
        made.replace_range(place(&made, mark), &table(gauges));
    }
    if std::env::var_os("PREZERO_WRITE_DOCS").is_some() {
        fs::write(&path, &made).expect("the document can be written");
        return;
    }
    assert!(text == made, "write it anew: PREZERO_WRITE_DOCS=1 cargo test -p prezero-daemon");
}

// Promise P64.
#[test]
fn dashboard_shows_every_metric_and_no_other() {
    let text = fs::read_to_string(file("dist/grafana/prezero.json")).expect("the dashboard");
    let board: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let known: BTreeSet<_> = TABLE.iter().map(full_name).collect();
    let mut asked = BTreeSet::new();
    for panel in board["panels"].as_array().expect("panels") {
        let targets = panel["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(panel["type"] == "row" || !targets.is_empty(), "{panel}");
        for target in targets {
            let expr = target["expr"].as_str().expect("an expression");
            let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let names: Vec<_> = words.filter(|word| word.starts_with("prezero_")).collect();
            assert!(!names.is_empty(), "{expr}");
            for name in names {
                asked.insert(name.strip_suffix("_bucket").unwrap_or(name).to_owned());
            }
        }
    }
    let variable = "prezero_build_info";
    assert!(text.contains(variable));
    asked.insert(variable.to_owned());
    assert_eq!(asked, known);
}

#[test]
fn bounds_of_a_loans_time_leave_no_gap() {
    for pair in LEND_BUCKETS.windows(2) {
        assert!(pair[0] < pair[1] && pair[1] <= 2.51 * pair[0], "{pair:?}");
    }
}

/// The word of a metric, or what a histogram's is called without its ending.
fn is_known(known: &BTreeSet<String>, word: &str) -> bool {
    let stem = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| word.strip_suffix(end));
    known.contains(word) || stem.is_some_and(|stem| known.contains(stem))
}

// Promise P397 (operator): The fleet's dashboard and rules ask for metrics that there are, and for
// series that the rules record.
#[test]
fn fleets_dashboard_and_rules_ask_for_metrics_that_there_are() {
    let mut known: BTreeSet<_> = TABLE.iter().map(full_name).collect();
    let rules = fs::read_to_string(file("dist/prometheus/prezero-fleet.rules.yml")).expect("rules");
    let recorded = rules.lines().filter_map(|line| line.trim().strip_prefix("- record: "));
    let recorded: BTreeSet<_> = recorded.map(str::to_owned).collect();
    assert!(recorded.len() > 3, "{recorded:?}");
    known.extend(recorded.clone());
    let board = fs::read_to_string(file("dist/grafana/prezero-fleet.json")).expect("a dashboard");
    let board: serde_json::Value = serde_json::from_str(&board).expect("JSON");
    let targets = board["panels"].as_array().expect("panels").iter();
    let targets = targets.flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let expressions: Vec<_> =
        targets.map(|target| target["expr"].as_str().expect("an expression")).collect();
    let cases = fs::read_to_string(file("dist/prometheus/prezero-fleet.test.yml")).expect("cases");
    for text in expressions.iter().copied().chain([&rules[..], &cases[..]]) {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        let asked = words
            .map(|word| word.trim_end_matches(':'))
            .filter(|word| word.starts_with("prezero_") || word.contains(":prezero_"));
        for word in asked {
            assert!(is_known(&known, word), "{word} in {text}");
        }
    }
    for name in recorded {
        assert!(expressions.iter().any(|text| text.contains(&name)), "{name} is on no panel");
    }
}

// Promise P328 (operator): Alerts ask for metrics that there are, and each has a recorded case.
#[test]
fn alerts_and_their_cases_ask_for_metrics_that_there_are() {
    let known: BTreeSet<_> = TABLE.iter().map(full_name).collect();
    for name in ["prezero.rules.yml", "prezero.test.yml"] {
        let text = fs::read_to_string(file("dist/prometheus").join(name)).expect("the alerts");
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let asked: BTreeSet<_> = words.filter(|word| word.starts_with("prezero_")).collect();
        assert!(asked.len() > 5, "{name}: {asked:?}");
        let unknown: Vec<_> = asked.iter().filter(|word| !known.contains(**word)).collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
    }
    let alerts = fs::read_to_string(file("dist/prometheus/prezero.rules.yml")).expect("the alerts");
    let cases = fs::read_to_string(file("dist/prometheus/prezero.test.yml")).expect("the cases");
    let pages = fs::read_to_string(file("docs/guides/monitor.md")).expect("the page");
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(cases.contains(&format!("alertname: {alert}\n")), "{alert} has no case");
        assert!(pages.contains(&format!("`{alert}`")), "{alert} is not in the guide");
    }
}

#[test]
fn every_label_value_is_there_from_the_start() {
    let status = Status { pools: vec![wire::PoolStatus::default()], ..empty() };
    let text = Metrics::new().text(&status, Duration::ZERO, OwnProcess::default());
    for metric in TABLE {
        for label in metric.labels {
            for value in label.values {
                let (name, pair) = (full_name(metric), format!("{}=\"{value}\"", label.name));
                let is_sample = |line: &str| {
                    line.starts_with(&name) && line.contains(&pair) && !line.contains("_sum{")
                };
                let sample = text.lines().find(|line| is_sample(line));
                let is_there = sample.is_some_and(|line| {
                    line.ends_with(" 0") || name == "prezero_health" && line.ends_with(" 1")
                });
                assert!(is_there, "{name} {pair}\n{text}");
            }
        }
    }
    // Without labels there are no braces.
    assert!(text.contains("\nprezero_lost_workers_total 0\n"), "{text}");
    assert!(text.contains("# UNIT prezero_lent_ready_bytes bytes\n"), "{text}");
}

/// What an idle daemon without pools says.
fn empty() -> Status {
    serde_json::from_value(serde_json::json!({
        "provider": "stock", "version": "1", "pid": 1, "pools": [], "levels": [], "loans": [],
        "users": [], "workers": 0, "drained": false, "unknown_files": 0,
        "paused_by_pressure": false, "fresh_reason": null, "health": "healthy", "ailments": [],
        "counters": wire::Counters::default(),
    }))
    .expect("a status")
}

/// The words behind a sign in a text, up to the first letter that no name has.
fn names_behind<'a>(text: &'a str, sign: &str) -> Vec<&'a str> {
    let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    text.split(sign).skip(1).map(|rest| rest.split(ends).next().unwrap_or_default()).collect()
}

// Promise P406 (operator): The dashboard has what Grafana's loader asks for: one id a panel, places
// that do not overlap, one letter a query, variables and labels that there are.
#[test]
fn dashboard_is_one_that_grafana_loads() {
    let text = fs::read_to_string(file("dist/grafana/prezero.json")).expect("the dashboard");
    let board: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(board["schemaVersion"].as_u64() >= Some(36), "a datasource is named by an object");
    assert!(board["uid"].as_str().is_some_and(|uid| !uid.is_empty() && uid.len() <= 40));
    let variables = board["templating"]["list"].as_array().expect("variables");
    let mut known: BTreeSet<_> = variables.iter().filter_map(|one| one["name"].as_str()).collect();
    // Grafana's own.
    known.extend(["__rate_interval", "__range", "__interval", "__all"]);
    let named = names_behind(&text, "$").into_iter().chain(names_behind(&text, "${"));
    for name in named.filter(|name| !name.is_empty()) {
        assert!(known.contains(name), "${name} is no variable");
    }
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    let panels = board["panels"].as_array().expect("panels");
    assert!(panels.len() > 10);
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: its id is another's");
        let side = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        assert!(side("x") + side("w") <= 24, "{title}: the grid has 24 columns");
        for cell in (side("x")..side("x") + side("w"))
            .flat_map(|x| (side("y")..side("y") + side("h")).map(move |y| (x, y)))
        {
            assert!(taken.insert(cell), "{title} overlaps another panel at {cell:?}");
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let (mut letters, is_table) = (BTreeSet::new(), panel["type"] == "table");
        for target in panel["targets"].as_array().expect("queries") {
            assert!(letters.insert(target["refId"].as_str().expect("a letter")), "{title}");
            assert!(!is_table || target["format"] == "table", "{title}: a table wants rows");
            let expr = target["expr"].as_str().expect("an expression");
            let pairs = [('(', ')'), ('{', '}'), ('[', ']')];
            for (open, close) in pairs {
                assert_eq!(expr.matches(open).count(), expr.matches(close).count(), "{expr}");
            }
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            let labels: BTreeSet<_> =
                TABLE.iter().flat_map(|one| one.labels.iter().map(|label| label.name)).collect();
            for label in names_behind(legend, "{{") {
                assert!(label == "instance" || labels.contains(label), "{title}: no label {label}");
            }
        }
    }
}

// Promise P380 (operator): From Prometheus alone an operator knows how large the loans are and how
// long they last.
#[test]
fn loans_are_counted_by_size_and_lifetime() {
    let metrics = Metrics::new();
    let two_gib = (Pages(1024), PageSize::MIB_2);
    metrics.granted_of(false, Pages::ZERO, two_gib, Duration::from_millis(1));
    metrics.ended(Bytes(2 << 30), Duration::from_secs(50));
    metrics.ended(Bytes(2 << 20), Duration::from_millis(20));
    let text = metrics.text(&empty(), Duration::ZERO, OwnProcess::default());
    for line in [
        "prezero_loan_bytes_bucket{le=\"1073741824.0\"} 0",
        "prezero_loan_bytes_bucket{le=\"2147483648.0\"} 1",
        "prezero_loan_bytes_bucket{le=\"1099511627776.0\"} 1",
        "prezero_loan_seconds_bucket{le=\"15.0\",up_to=\"16G\"} 0",
        "prezero_loan_seconds_bucket{le=\"60.0\",up_to=\"16G\"} 1",
        "prezero_loan_seconds_bucket{le=\"0.1\",up_to=\"64M\"} 1",
        "prezero_loan_seconds_bucket{le=\"+Inf\",up_to=\"more\"} 0",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line}\n{text}");
    }
    let classes =
        [(64 << 20, "64M"), ((64 << 20) + 1, "1G"), (16 << 30, "16G"), (u64::MAX, "more")];
    for (bytes, word) in classes {
        assert_eq!(SizeClass::WORDS[SizeClass::new(Bytes(bytes)) as usize], word);
    }
}
