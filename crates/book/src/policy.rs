// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides when and what to zero, the number of workers, and the size of the kernel's pool. Pure
//! functions of counts.

mod day;
mod demand;
mod large;
mod resize;

use units::Pages;

pub use day::DayDemand;
pub use demand::{Demand, piece};
pub use resize::{
    MemoryLeft, PoolCounts, ResizeLimits, ResizePolicy, ResizeRecord, ResizeStep, Scarce,
    affordable,
};

/// Of pools with blocks of several sizes, one part in this number of the lent bytes may be thrown
/// away.
pub const CREDIT_PART: u64 = 24;

/// Whether a pool is being refilled: hysteresis between its two thresholds.
///
/// Starts below `low`, goes on until `high`. Without the gap a pool with a ready count near one
/// threshold would start and stop a worker for every loan.
#[must_use]
pub fn refilling(was: bool, ready: Pages, low: Pages, high: Pages) -> bool {
    ready < low || (was && ready < high)
}

/// How many of the daemon's own workers should run: one for the last stretch above `low`, all
/// of `max` when nothing is ready, in proportion between.
///
/// A fixed single worker would fall behind whenever loans come faster than it zeroes; the
/// shortfall below `low` is exactly the sign of that.
#[must_use]
pub fn wanted_workers(refilling: bool, ready: Pages, low: Pages, max: u32) -> u32 {
    if !refilling || max == 0 {
        return 0;
    }
    let short = low.saturating_sub(ready).0;
    if short == 0 {
        return 1;
    }
    let extra = u128::from(max - 1) * u128::from(short);
    1 + u32::try_from(extra.div_ceil(u128::from(low.0))).unwrap_or(max - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Promise P20.
    #[test]
    fn refilling_starts_below_low_and_stops_at_high() {
        let (low, high) = (Pages(4), Pages(8));
        let mut on = false;
        let mut seen = Vec::new();
        for ready in [8, 5, 4, 3, 4, 7, 8, 7, 4] {
            on = refilling(on, Pages(ready), low, high);
            seen.push(on);
        }
        assert_eq!(seen, [false, false, false, true, true, true, false, false, false]);
    }

    proptest! {
        #[test]
        fn workers_stay_within_bounds_and_grow_with_the_shortfall(
            low in 1u64..1000, ready in 0u64..2000, max in 1u32..64,
        ) {
            let at = |ready| wanted_workers(true, Pages(ready), Pages(low), max);
            prop_assert!((1..=max).contains(&at(ready)));
            prop_assert!(at(ready) >= at(ready + 1), "fewer ready pages never want fewer workers");
            prop_assert_eq!(at(0), max);
            prop_assert_eq!(at(low), 1);
        }
    }
}
