// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a benchmark or a plan finds: rows of figures, and how to draw them.
//!
//! Every row has labels, which name the measurement, and values, so that the table, the chart and
//! the JSON are three views of the same data.

use std::io::{self, Write};

use cli::output::table::{self, Align};
use serde::{Serialize, Serializer};

/// Median, quartiles, and how many samples they come from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Stats {
    pub(crate) median: f64,
    /// The lower quartile.
    pub(crate) low: f64,
    /// The upper quartile.
    pub(crate) high: f64,
    pub(crate) samples: usize,
}

impl Stats {
    /// Of no samples: not a number.
    pub(crate) fn from_samples(samples: &[f64]) -> Self {
        let at = |part| quantile(samples, part);
        Self { median: at(0.5), low: at(0.25), high: at(0.75), samples: samples.len() }
    }

    /// Half the distance of the quartiles, in percent of the median.
    pub(crate) fn spread_percent(&self) -> f64 {
        50.0 * (self.high - self.low) / self.median.abs()
    }
}

/// The sample at `part` (0 to 1) of the sorted samples, the nearest rank.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index within a few thousand samples"
)]
pub(crate) fn quantile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

/// A number with three digits or a little more: `1234`, `85.2`, `2.98`, `0.0042`.
pub(crate) fn short(value: f64) -> String {
    let digits = match value.abs() {
        m if m >= 100.0 => 0,
        m if m >= 10.0 => 1,
        m if m >= 1.0 => 2,
        m if m >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// One value of a row.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Value {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    #[serde(flatten)]
    pub(crate) stats: Stats,
}

/// The names of the measurement, in order.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// One thing that was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    #[serde(serialize_with = "as_map")]
    pub(crate) labels: Labels,
    pub(crate) values: Vec<Value>,
}

impl Row {
    pub(crate) fn new(labels: Labels) -> Self {
        Self { labels, values: Vec::new() }
    }

    /// The same with one more value.
    pub(crate) fn with(mut self, what: &'static str, unit: &'static str, samples: &[f64]) -> Self {
        self.values.push(Value { what, unit, stats: Stats::from_samples(samples) });
        self
    }

    pub(crate) fn label(&self, key: &str) -> &str {
        self.labels.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    }

    pub(crate) fn value(&self, what: &str) -> Option<&Value> {
        self.values.iter().find(|value| value.what == what)
    }

    /// The median of a value.
    pub(crate) fn median(&self, what: &str) -> Option<f64> {
        self.value(what).map(|value| value.stats.median).filter(|median| median.is_finite())
    }
}

fn as_map<S: Serializer>(labels: &Labels, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(labels.iter().map(|(key, value)| (key, value)))
}

/// How a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One bar per row, lying.
    Bars,
    /// One line per series over the values of the label `x`.
    Lines,
}

/// Which rows to draw, and how.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    pub(crate) shape: Shape,
    /// The value that is drawn.
    pub(crate) what: &'static str,
    /// The labels of a bar, or the one that a line runs over.
    pub(crate) x: &'static [&'static str],
    /// The labels that tell lines apart.
    pub(crate) series: &'static [&'static str],
    /// Only rows with these labels.
    pub(crate) only: Vec<(&'static str, String)>,
}

impl Chart {
    /// The rows to draw.
    pub(crate) fn rows<'a>(&self, part: &'a Part) -> Vec<&'a Row> {
        let fits = |row: &&Row| {
            self.only.iter().all(|(key, value)| row.label(key) == value)
                && row.median(self.what).is_some()
        };
        part.rows.iter().filter(fits).collect()
    }
}

/// One part of a report with all that it found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// The question that it answers.
    pub(crate) question: &'static str,
    /// How it was measured, in a sentence.
    pub(crate) method: String,
    pub(crate) rows: Vec<Row>,
    /// What else a reader must know.
    pub(crate) notes: Vec<String>,
    /// What could not be measured here, and why.
    pub(crate) skipped: Vec<String>,
    #[serde(skip)]
    pub(crate) charts: Vec<Chart>,
}

impl Part {
    pub(crate) fn new(name: &'static str, question: &'static str, method: String) -> Self {
        Self {
            name,
            question,
            method,
            rows: Vec::new(),
            notes: Vec::new(),
            skipped: Vec::new(),
            charts: Vec::new(),
        }
    }

    /// Its tables and notes, for people.
    pub(crate) fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{}: {}\n{}", self.name, self.question, self.method)?;
        let (headings, rows, left) = columns(&self.rows);
        let columns: Vec<_> = (headings.iter().enumerate())
            .map(|(at, name)| (name.as_str(), if at < left { Align::Left } else { Align::Right }))
            .collect();
        table::write(out, &columns, &rows)?;
        for note in &self.notes {
            writeln!(out, "  {note}")?;
        }
        for skipped in &self.skipped {
            writeln!(out, "  skipped: {skipped}")?;
        }
        Ok(())
    }

    /// Says that something cannot be measured, and counts it.
    pub(crate) fn skip(&mut self, what: impl Into<String>) {
        let what = what.into();
        cli::output::note(&format!("{}: skipped: {what}", self.name));
        self.skipped.push(what);
    }
}

/// A value with its spread: `85.2 ±3%`.
fn text(value: &Value) -> String {
    let median = short(value.stats.median);
    let spread = value.stats.spread_percent();
    if value.stats.samples < 2 || !spread.is_finite() {
        median
    } else {
        format!("{median} ±{spread:.0}%")
    }
}

/// Headings and cells of a part's rows: a column per label, then one per value.
pub(crate) fn columns(rows: &[Row]) -> (Vec<String>, Vec<Vec<String>>, usize) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_and_of_nothing_not_a_number() {
        let samples = [5.0, 1.0, 4.0, 2.0, 3.0];
        let stats = Stats::from_samples(&samples);
        assert_eq!((stats.low, stats.median, stats.high), (2.0, 3.0, 4.0));
        assert!((stats.spread_percent() - 100.0 / 3.0).abs() < 1e-9);
        assert_eq!(quantile(&samples, 1.0), 5.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_row_is_an_object_of_its_labels_and_its_values() {
        let row = Row::new(vec![("page", "2M".into())]).with("rate", "GB/s", &[1.0, 2.0, 3.0]);
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(json["labels"]["page"], "2M");
        assert_eq!(json["values"][0]["median"], 2.0);
        assert_eq!(json["values"][0]["samples"], 3);
    }
}
