// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast things go: differences of counters over the last ten seconds.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde::Serialize;
use wire::{Counters, Status};

use crate::output::Record;

/// What rates are taken over.
const RATE_PERIOD: Duration = Duration::from_secs(10);

/// How fast things go.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(super) struct Rates {
    pub(super) zeroed_bytes_per_second: f64,
    pub(super) loans_per_second: f64,
    pub(super) refusals_per_second: f64,
    /// The part of the bytes lent that was ready; nothing if nothing was lent.
    pub(super) hit_rate: Option<f64>,
}

/// Remembers as much as rates need.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    samples: VecDeque<(Instant, Counters)>,
    pid: u32,
}

impl Sampler {
    /// Takes the state seen at `now`, and computes the rates.
    pub(super) fn add(&mut self, status: &Status, now: Instant) -> Rates {
        if status.pid != self.pid {
            // Another daemon counts from zero.
            self.samples.clear();
            self.pid = status.pid;
        }
        self.samples.push_back((now, status.counters));
        while self.samples.len() > 2 && now.duration_since(self.samples[1].0) >= RATE_PERIOD {
            self.samples.pop_front();
        }
        let Some((then, before)) = self.samples.front() else { return Rates::default() };
        rates(before, &status.counters, now.duration_since(*then).as_secs_f64())
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates are for eyes: 53 bits are plenty")]
fn rates(before: &Counters, now: &Counters, seconds: f64) -> Rates {
    let more = |of: fn(&Counters) -> u64| of(now).saturating_sub(of(before)) as f64;
    let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
    let (hit, miss) = (more(|c| c.lent_ready_bytes.0), more(|c| c.lent_unbacked_bytes.0));
    Rates {
        zeroed_bytes_per_second: per_second(more(|c| c.zeroed_bytes.0)),
        loans_per_second: per_second(more(|c| c.loans)),
        refusals_per_second: per_second(more(|c| c.refusals)),
        hit_rate: (hit + miss > 0.0).then(|| hit / (hit + miss)),
    }
}

/// One line for programs.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    #[serde(flatten)]
    pub(super) status: Status,
    pub(super) rates: Rates,
}

impl Record for Line {
    fn human(&self, _: &mut dyn Write) -> io::Result<()> {
        // People have the screen.
        Ok(())
    }
}

/// The line while the daemon is away.
#[derive(Debug, Serialize)]
pub(super) struct NoDaemon {
    pub(super) error: String,
}

impl Record for NoDaemon {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::status;
    use super::*;
    use units::Bytes;

    fn seen(loans: u64, lent_ready_bytes: u64, lent_unbacked_bytes: u64) -> Status {
        let zeroed_bytes = loans << 30;
        let counters = Counters {
            loans,
            lent_ready_bytes: Bytes(lent_ready_bytes),
            lent_unbacked_bytes: Bytes(lent_unbacked_bytes),
            zeroed_bytes: Bytes(zeroed_bytes),
            ..Counters::default()
        };
        Status { counters, ..status() }
    }

    #[test]
    fn rates_are_of_the_last_ten_seconds() {
        let (begin, mut sampler) = (Instant::now(), Sampler::default());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(sampler.add(&seen(100, 9, 1), at(0)), Rates::default());
        let rates = sampler.add(&seen(110, 18, 2), at(5));
        assert!((rates.loans_per_second - 2.0).abs() < 1e-9);
        assert!((rates.zeroed_bytes_per_second - f64::from(1 << 30) * 2.0).abs() < 1.0);
        assert_eq!(rates.hit_rate, Some(0.9));
        for second in 6..20 {
            sampler.add(&seen(110, 18, 2), at(second));
        }
        assert_eq!(sampler.add(&seen(110, 18, 2), at(20)), Rates::default());
    }

    #[test]
    fn another_daemon_counts_from_zero() {
        let (begin, mut sampler) = (Instant::now(), Sampler::default());
        sampler.add(&seen(100, 9, 1), begin);
        let restarted = Status { pid: 8, ..seen(1, 0, 0) };
        let rates = sampler.add(&restarted, begin + Duration::from_secs(1));
        assert_eq!(rates, Rates::default());
    }
}
