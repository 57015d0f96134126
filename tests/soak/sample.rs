// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of each round, taken while no loan exists, and whether they grow.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use prezero_tests::process;
use prezero_tests::storm::Seen;
use serde_json::{Value, json};

use crate::round::Soak;

/// Loans that are timed in each round.
const LOANS: usize = 200;

/// All rounds' samples, each a line of the file as soon as it is taken.
#[derive(Debug)]
pub(crate) struct Samples {
    taken: Vec<Value>,
    file: Option<File>,
}

impl Samples {
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        let file = path.map(|path| File::create(path).expect("a file for the samples"));
        Self { taken: Vec::new(), file }
    }

    /// Of the daemon that lives to the end.
    pub(crate) fn take(&mut self, at: Duration, soak: &mut Soak, seen: Seen) {
        let mut took = soak.time_loans(LOANS);
        took.sort_unstable();
        let micros = |of: usize| took[took.len() * of / 100].as_secs_f64() * 1e6;
        let pid = soak.elder().pid();
        let mut sample = json!({
            "seconds": at.as_secs_f64(),
            "resident_kib": process::resident_kib(pid),
            "descriptors": process::descriptors(pid),
            "threads": process::threads(pid),
            "p50_us": micros(50),
            "p99_us": micros(99),
            "loans": seen.loans,
            "gib_read": seen.gib(),
            "kept": seen.kept,
            "foreign_bytes": seen.foreign,
        });
        let done = serde_json::to_value(soak.done()).expect("counts");
        let counts = done.as_object().expect("counts by name").clone();
        sample.as_object_mut().expect("an object").extend(counts);
        eprintln!("{sample}");
        if let Some(file) = &mut self.file {
            writeln!(file, "{sample}").expect("room for a line");
        }
        self.taken.push(sample);
    }

    /// How one figure moves after the first `warm`; `None` of so few samples says nothing.
    pub(crate) fn trend(&self, what: &str, warm: Duration) -> Option<Trend> {
        let number = |sample: &Value, what: &str| sample[what].as_f64().expect("a figure");
        let points: Vec<_> = self
            .taken
            .iter()
            .map(|sample| (number(sample, "seconds") / 3600.0, number(sample, what)))
            .filter(|(hours, _)| *hours >= warm.as_secs_f64() / 3600.0)
            .collect();
        Trend::from_points(&points)
    }
}

/// The straight line of least squares through the figures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trend {
    first: f64,
    slope: f64,
    error: f64,
    hours: f64,
}

impl Trend {
    /// Of points by their hour: three at least.
    fn from_points(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        if points.len() < 3 {
            return None;
        }
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (middle, height) = (mean(|p| p.0), mean(|p| p.1));
        let spread: f64 = points.iter().map(|p| (p.0 - middle).powi(2)).sum();
        let slope = points.iter().map(|p| (p.0 - middle) * (p.1 - height)).sum::<f64>() / spread;
        let off = |p: &(f64, f64)| (p.1 - height - slope * (p.0 - middle)).powi(2);
        let error = (points.iter().map(off).sum::<f64>() / (count - 2.0) / spread).sqrt();
        let hours = points[points.len() - 1].0 - points[0].0;
        Some(Self { first: height - slope * (middle - points[0].0), slope, error, hours })
    }

    /// Whether it has grown by no more than `most` over the whole time, within the error: the slope
    /// is known to within three times its error.
    pub(crate) fn is_flat(self, most: f64) -> bool {
        (self.slope - 3.0 * self.error) * self.hours <= most
    }
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, slope, error, hours } = self;
        write!(f, "{first:.1}, and {slope:+.2} ± {error:.2} an hour over {hours:.2} h")
    }
}

#[test]
fn growth_is_separated_from_scatter() {
    let points = |slope: f64| -> Vec<_> {
        let scatter = |minute: u32| if minute.is_multiple_of(2) { 3.0 } else { -3.0 };
        let at = |minute: u32| f64::from(minute) / 60.0;
        (0..120).map(|m| (at(m), 100.0 + slope * at(m) + scatter(m))).collect()
    };
    let flat = Trend::from_points(&points(0.0)).expect("points");
    let grows = Trend::from_points(&points(10.0)).expect("points");
    assert!(flat.is_flat(0.5), "{flat}");
    assert!(!grows.is_flat(0.5), "{grows}");
    assert!((grows.slope - 10.0).abs() < 3.0 * grows.error, "{grows}");
    assert!(Trend::from_points(&points(0.0)[..2]).is_none());
}
