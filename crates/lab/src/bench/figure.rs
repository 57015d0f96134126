// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a part of the benchmark finds: rows of figures, and how to draw them.
//!
//! Every row has labels (what was measured) and values (what came out), so that the table, the
//! chart and the JSON are three views of the same data.

use serde::{Serialize, Serializer};

/// Median, quartiles, and how many samples they come from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Stats {
    pub(super) median: f64,
    /// The lower quartile.
    pub(super) low: f64,
    /// The upper quartile.
    pub(super) high: f64,
    pub(super) samples: usize,
}

impl Stats {
    /// Of no samples: not a number.
    pub(super) fn of(samples: &[f64]) -> Self {
        let at = |part| quantile(samples, part);
        Self { median: at(0.5), low: at(0.25), high: at(0.75), samples: samples.len() }
    }

    /// Half the distance of the quartiles, in percent of the median.
    pub(super) fn spread_percent(&self) -> f64 {
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
pub(super) fn quantile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

/// A number with three digits or a little more: `1234`, `85.2`, `2.98`, `0.0042`.
pub(super) fn short(value: f64) -> String {
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
pub(super) struct Value {
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    #[serde(flatten)]
    pub(super) stats: Stats,
}

/// What was measured, in order.
pub(super) type Labels = Vec<(&'static str, String)>;

/// One thing that was measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    #[serde(serialize_with = "as_map")]
    pub(super) labels: Labels,
    pub(super) values: Vec<Value>,
}

impl Row {
    pub(super) fn new(labels: Labels) -> Self {
        Self { labels, values: Vec::new() }
    }

    /// The same with one more value.
    pub(super) fn with(mut self, what: &'static str, unit: &'static str, samples: &[f64]) -> Self {
        self.values.push(Value { what, unit, stats: Stats::of(samples) });
        self
    }

    pub(super) fn label(&self, key: &str) -> &str {
        self.labels.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    }

    pub(super) fn value(&self, what: &str) -> Option<&Value> {
        self.values.iter().find(|value| value.what == what)
    }

    /// The median of a value.
    pub(super) fn median(&self, what: &str) -> Option<f64> {
        self.value(what).map(|value| value.stats.median).filter(|median| median.is_finite())
    }
}

fn as_map<S: Serializer>(labels: &Labels, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(labels.iter().map(|(key, value)| (key, value)))
}

/// How a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// One bar per row, lying.
    Bars,
    /// One line per series over the values of the label `x`.
    Lines,
}

/// Which rows to draw, and how.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) shape: Shape,
    /// The value that is drawn.
    pub(super) what: &'static str,
    /// The labels of a bar, or the one that a line runs over.
    pub(super) x: &'static [&'static str],
    /// The labels that tell lines apart.
    pub(super) series: &'static [&'static str],
    /// Only rows with these labels.
    pub(super) only: Vec<(&'static str, String)>,
}

impl Chart {
    /// The rows to draw.
    pub(super) fn rows<'a>(&self, part: &'a Part) -> Vec<&'a Row> {
        let fits = |row: &&Row| {
            self.only.iter().all(|(key, value)| row.label(key) == value)
                && row.median(self.what).is_some()
        };
        part.rows.iter().filter(fits).collect()
    }
}

/// One part of the benchmark with all that it found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Part {
    pub(super) name: &'static str,
    /// The question that it answers.
    pub(super) question: &'static str,
    /// How it was measured, in a sentence.
    pub(super) method: String,
    pub(super) rows: Vec<Row>,
    /// What else a reader must know.
    pub(super) notes: Vec<String>,
    /// What could not be measured here, and why.
    pub(super) skipped: Vec<String>,
    #[serde(skip)]
    pub(super) charts: Vec<Chart>,
}

impl Part {
    pub(super) fn new(name: &'static str, question: &'static str, method: String) -> Self {
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

    /// Says that something cannot be measured, and counts it.
    pub(super) fn skip(&mut self, what: impl Into<String>) {
        let what = what.into();
        cli::output::note(&format!("{}: skipped: {what}", self.name));
        self.skipped.push(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_and_of_nothing_not_a_number() {
        let samples = [5.0, 1.0, 4.0, 2.0, 3.0];
        let stats = Stats::of(&samples);
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
