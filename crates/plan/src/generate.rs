// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trace from a seed: bursts of loans of many sizes.
//!
//! Programs start in bursts (a host comes up, a deployment rolls), and their sizes spread over
//! orders of magnitude. So: bursts come at exponentially distributed distances, each has a
//! geometrically distributed number of loans within some seconds, sizes and lifetimes are
//! lognormal. The same seed gives the same trace, as long as prezero's version is the same.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp, Geometric, LogNormal};
use units::Bytes;

use crate::trace::{Ask, ordered};

/// What a generated trace looks like.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// How many loans.
    pub loans: usize,
    /// The median of the sizes.
    pub size: Bytes,
    /// Sizes are multiples of this.
    pub unit: Bytes,
    /// The largest size.
    pub most: Bytes,
    /// Loans a second, over the whole.
    pub rate: f64,
    /// The mean number of loans in a burst; 1 is none.
    pub burst: f64,
    /// The median of the lifetimes, in seconds.
    pub lifetime: f64,
}

/// How much sizes and lifetimes spread: one standard deviation is a factor of e to this.
const SIZE_SPREAD: f64 = 0.9;
const LIFETIME_SPREAD: f64 = 1.2;
/// A burst's loans come within these seconds, each at a random moment.
const BURST_SECONDS: f64 = 5.0;

/// The trace of a seed.
///
/// # Panics
/// If `rate` is not above 0, or `burst` below 1: the command line checks both.
pub fn trace(shape: &Shape, seed: u64) -> Vec<Ask> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let expect = "the command line has checked it";
    let distance = Exp::new(shape.rate / shape.burst).expect(expect);
    let more = Geometric::new(1.0 / shape.burst).expect(expect);
    #[expect(clippy::cast_precision_loss, reason = "sizes of a trace need no more than 53 bits")]
    let (median, unit) = (shape.size.0 as f64, shape.unit.0 as f64);
    let size = LogNormal::new(median.ln(), SIZE_SPREAD).expect(expect);
    let lifetime = LogNormal::new(shape.lifetime.ln(), LIFETIME_SPREAD).expect(expect);
    let (mut asks, mut now) = (Vec::with_capacity(shape.loans), 0.0);
    while asks.len() < shape.loans {
        now += distance.sample(&mut random);
        let within = BURST_SECONDS.min(shape.burst / shape.rate);
        for _ in 0..=more.sample(&mut random) {
            let arrival = now + random.random::<f64>() * within;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates, and is bounded below"
            )]
            let units = (size.sample(&mut random) / unit).round().max(1.0) as u64;
            let bytes = Bytes(units.saturating_mul(shape.unit.0).min(shape.most.0));
            let lifetime = lifetime.sample(&mut random);
            asks.push(Ask { arrival, bytes, lifetime, node: None });
        }
    }
    asks.truncate(shape.loans);
    ordered(asks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        loans: 20_000,
        size: Bytes(8 << 30),
        unit: Bytes(1 << 30),
        most: Bytes(64 << 30),
        rate: 2.0,
        burst: 8.0,
        lifetime: 300.0,
    };

    #[test]
    fn a_seed_gives_one_trace_and_another_seed_another() {
        assert_eq!(trace(&SHAPE, 7), trace(&SHAPE, 7));
        assert_ne!(trace(&SHAPE, 7), trace(&SHAPE, 8));
    }

    #[test]
    fn a_trace_is_what_its_shape_says() {
        let asks = trace(&SHAPE, 1);
        assert_eq!(asks.len(), SHAPE.loans);
        let seconds = asks.last().unwrap().arrival;
        let rate = asks.len() as f64 / seconds;
        assert!((rate / SHAPE.rate - 1.0).abs() < 0.1, "{rate} loans a second");
        let mut sizes: Vec<_> = asks.iter().map(|ask| ask.bytes.0 >> 30).collect();
        sizes.sort_unstable();
        assert_eq!(sizes[sizes.len() / 2], 8, "the median");
        assert!(sizes[0] >= 1 && sizes[sizes.len() - 1] == 64, "bounded on both sides");
        let soon = asks.windows(2).filter(|pair| pair[1].arrival - pair[0].arrival < 0.1).count();
        assert!(soon * 10 > asks.len(), "bursts: {soon} come right after another");
    }
}
