// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One time, measured in several rounds.

use std::time::Duration;

use serde::Serialize;

use cli::output::seconds;

/// One measurement, repeated. Serializes as its median and all of its values, in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Series {
    median_seconds: f64,
    seconds: Vec<f64>,
}

impl Series {
    pub(crate) fn add(&mut self, time: Duration) {
        self.seconds.push(time.as_secs_f64());
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        // The upper one of two in the middle: the default number of rounds is odd.
        self.median_seconds = sorted[sorted.len() / 2];
    }

    pub(crate) fn median(&self) -> f64 {
        self.median_seconds
    }

    /// All values, in the order measured, in seconds.
    pub(crate) fn values(&self) -> &[f64] {
        &self.seconds
    }

    /// From the shortest to the longest; nothing for a single value.
    pub(crate) fn spread(&self) -> String {
        let text = |value: f64| seconds(Duration::from_secs_f64(value));
        let low = self.seconds.iter().copied().reduce(f64::min);
        let high = self.seconds.iter().copied().reduce(f64::max);
        match (low, high) {
            (Some(low), Some(high)) if self.seconds.len() > 1 => {
                format!("{} to {}", text(low), text(high))
            }
            _ => String::new(),
        }
    }

    pub(crate) fn text(&self) -> String {
        seconds(Duration::from_secs_f64(self.median_seconds))
    }
}
