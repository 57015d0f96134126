// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much to keep ready at each time of the day, learnt from the loans of the days before. Pure,
//! and in whole numbers: the same loans and times give the same answer.
//!
//! # Theory of operation
//!
//! The day has 96 quarters of an hour, in UTC. [`DayDemand`] keeps, for each quarter of the last
//! [`MAX_DAYS`] days, the most pages that were lent in one minute: what a worker can hardly refill
//! while they go. The level of a quarter is a high quantile of its days: the largest while there
//! are few, and later the largest but one, so that one odd day is not insured against for two
//! weeks. The level of the next quarter counts from [`LEAD_SECONDS`] before it.
//!
//! The level is the constant maximum where fewer than [`MIN_DAYS`] days of a quarter are known,
//! as after an installation. It is so, too, while the past fails to predict. Each loan is
//! compared with the level that the days before give, in force or not. The past predicts once
//! [`MIN_COMPARED`] loans were compared, and at most one part in [`MISSED_PART`] of their pages
//! lay beyond. A demand of today that is larger than those of the days before raises the level
//! for the rest of its quarter. It never falls below one part in [`FLOOR_PART`] of the maximum,
//! for loans that no day has had.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::Pages;

const DAY_SECONDS: u64 = 86_400;
const QUARTER_SECONDS: u64 = 900;
const QUARTERS: usize = 96;
/// The next quarter counts this long before it begins: what it needs is zeroed by then.
const LEAD_SECONDS: u64 = 300;
/// The days that are remembered: two weeks.
const MAX_DAYS: usize = 14;
/// The days of a quarter that must be known.
const MIN_DAYS: usize = 3;
/// The quantile, in percent of the days.
const QUANTILE_PERCENT: usize = 90;
/// The pages beyond the prediction that are one too many, as a fraction of the lent ones.
const MISSED_PART: u64 = 32;
/// The loans that must have been compared.
const MIN_COMPARED: u64 = 16;
/// Each day takes this fraction off the comparison, which so remembers some two weeks.
const FADE_PART: u64 = 8;
/// The least level as a fraction of the maximum, and the step of levels.
const FLOOR_PART: u64 = 16;

/// The most pages lent in a minute of one quarter of an hour, by the number of the day.
type Days = BTreeMap<u64, Pages>;

/// What each quarter of an hour has asked for. See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DayDemand {
    /// By quarter of the day; all of them, or none yet.
    quarters: Vec<Days>,
    /// Loans that were compared with what the days before say, their pages, and the pages beyond.
    compared: u64,
    lent: u64,
    missed: u64,
    /// The day of the latest comparison.
    compared_day: u64,
    /// The minute of the latest loan, since 1970, and what it has lent so far.
    #[serde(skip)]
    minute: (u64, Pages),
}

/// A time as a day and the quarter of an hour in it.
fn quarter(now: u64) -> (u64, usize) {
    let number = now % DAY_SECONDS / QUARTER_SECONDS;
    (now / DAY_SECONDS, usize::try_from(number).unwrap_or_default())
}

impl DayDemand {
    /// Notes that the pool could be borrowed from at a time, in seconds since 1970: a quarter
    /// without loans is known, too.
    pub fn pass(&mut self, now: u64) {
        self.record(Pages::ZERO, now);
    }

    /// Records a loan.
    pub fn record(&mut self, pages: Pages, now: u64) {
        let minute = now / 60;
        if self.minute.0 != minute {
            self.minute = (minute, Pages::ZERO);
        }
        let before = self.minute.1;
        self.minute.1 += pages;
        let lent = self.minute.1;
        if pages > Pages::ZERO && self.known_days(now) >= MIN_DAYS {
            let predicted = self.predicted(now);
            let beyond = |lent: Pages| lent.saturating_sub(predicted);
            self.compare(now, pages, beyond(lent).saturating_sub(beyond(before)));
        }
        self.quarters.resize_with(QUARTERS, Days::default);
        let (day, quarter) = quarter(now);
        let days = &mut self.quarters[quarter];
        let most = days.entry(day).or_default();
        *most = lent.max(*most);
        // Those of a clock that was ahead are not the newest for ever.
        days.retain(|known, _| *known <= day);
        while days.len() > MAX_DAYS {
            days.pop_first();
        }
    }

    fn compare(&mut self, now: u64, pages: Pages, missed: Pages) {
        let (day, _) = quarter(now);
        if std::mem::replace(&mut self.compared_day, day) != day {
            for sum in [&mut self.compared, &mut self.lent, &mut self.missed] {
                *sum -= *sum / FADE_PART;
            }
        }
        self.compared = self.compared.saturating_add(1);
        self.lent = self.lent.saturating_add(pages.0);
        self.missed = self.missed.saturating_add(missed.0);
    }

    /// Whether the days before have predicted the loans so far.
    #[must_use]
    pub fn predicts(&self) -> bool {
        self.compared >= MIN_COMPARED && self.missed.saturating_mul(MISSED_PART) <= self.lent
    }

    /// What the days before say.
    fn predicted(&self, now: u64) -> Pages {
        self.usual(quarter(now)).max(self.usual(quarter(now + LEAD_SECONDS)))
    }

    /// The days before this one of which this quarter of an hour is known, and the next one.
    #[must_use]
    pub fn known_days(&self, now: u64) -> usize {
        let before = |now| self.before(quarter(now)).count();
        before(now).min(before(now + LEAD_SECONDS))
    }

    /// How much to keep ready now, of at most `max`; `max` where too little is known.
    #[must_use]
    pub fn level(&self, now: u64, max: Pages) -> Pages {
        if self.known_days(now) < MIN_DAYS || !self.predicts() {
            return max;
        }
        let (day, this) = quarter(now);
        let today = self.quarters.get(this).and_then(|days| days.get(&day).copied());
        let wanted = self.predicted(now).max(today.unwrap_or_default());
        let step = max.0.div_ceil(FLOOR_PART).max(1);
        Pages(wanted.0.div_ceil(step).max(1).saturating_mul(step)).min(max)
    }

    /// The quantile of a quarter's days.
    fn usual(&self, of: (u64, usize)) -> Pages {
        let mut most: Vec<_> = self.before(of).collect();
        most.sort_unstable();
        let place = (most.len() * QUANTILE_PERCENT).div_ceil(100).saturating_sub(1);
        most.get(place).copied().unwrap_or_default()
    }

    /// What a quarter asked for on the days before.
    fn before(&self, (day, quarter): (u64, usize)) -> impl Iterator<Item = Pages> + '_ {
        let days = self.quarters.get(quarter).into_iter();
        days.flat_map(move |days| days.range(..day).map(|(_, most)| *most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Pages = Pages(64);
    const NINE: u64 = 9 * 3600;
    /// The first day on which enough loans were compared.
    const FIRST: u64 = 6;

    /// A daemon that runs through some days, with that many loans of a page at nine o'clock.
    fn after(days: u64, loans: u64) -> DayDemand {
        let mut demand = DayDemand::default();
        for day in 0..days {
            for quarter in 0..QUARTERS as u64 {
                demand.pass(day * DAY_SECONDS + quarter * QUARTER_SECONDS);
            }
            (0..loans).for_each(|_| demand.record(Pages(1), day * DAY_SECONDS + NINE));
        }
        demand
    }

    // Promise P381 (work): A pool that learns the day keeps its constant amount ready until it
    // knows three days of a quarter of an hour, and while they fail to predict its loans.
    #[test]
    fn level_is_the_maximum_until_days_predict_the_loans() {
        for days in 0..5 {
            let level = after(days, 9).level(days * DAY_SECONDS + NINE, MAX);
            assert_eq!(level, MAX, "{days}");
        }
        let demand = after(FIRST, 9);
        let at = |seconds| demand.level(FIRST * DAY_SECONDS + seconds, MAX);
        assert_eq!(at(NINE), Pages(12), "9 in steps of 4");
        assert_eq!(at(NINE - LEAD_SECONDS), Pages(12));
        assert_eq!(at(NINE - LEAD_SECONDS - 1), Pages(4));
        assert_eq!(at(NINE + QUARTER_SECONDS), Pages(4), "a sixteenth stays");
        // Loans at another time of each day.
        let mut random = after(FIRST, 9);
        for day in FIRST..30 {
            let time = day * DAY_SECONDS + day * 7919 % DAY_SECONDS;
            random.record(Pages(3), time);
            assert_eq!(random.level(time + 3600, MAX), MAX, "{day}");
        }
    }

    #[test]
    fn only_loans_of_one_minute_add_up() {
        let mut demand = after(FIRST, 9);
        let today = FIRST * DAY_SECONDS + NINE;
        demand.record(Pages(5), today);
        demand.record(Pages(4), today + 59);
        assert_eq!(demand.level(today + 59, MAX), Pages(12));
        demand.record(Pages(9), today + 61);
        assert_eq!(demand.level(today + 61, MAX), Pages(12), "of another minute");
        assert!(demand.predicts());
        demand.record(Pages(4), today + 62);
        assert!(!demand.predicts(), "13 of 9");
        assert_eq!(demand.level(today + 62, MAX), MAX);
    }

    #[test]
    fn one_odd_day_is_forgotten_once_ten_are_known() {
        let mut demand = after(1, 60);
        let usual = |demand: &mut DayDemand, day: u64| {
            (0..8).for_each(|_| demand.record(Pages(1), day * DAY_SECONDS + NINE));
            demand.level((day + 1) * DAY_SECONDS + NINE, MAX)
        };
        let levels: Vec<_> = (1..12).map(|day| usual(&mut demand, day)).collect();
        assert_eq!(
            (levels[3], levels[4], levels[7], levels[8]),
            (MAX, Pages(60), Pages(60), Pages(8))
        );
        assert_eq!(demand.quarters[36].len(), 12);
        for day in 12..40 {
            usual(&mut demand, day);
        }
        assert_eq!(demand.quarters[36].len(), MAX_DAYS);
    }

    #[test]
    fn days_of_a_clock_that_was_ahead_are_dropped() {
        let mut demand = after(20, 32);
        demand.record(Pages(1), 900 * DAY_SECONDS + NINE);
        demand.record(Pages(32), 20 * DAY_SECONDS + NINE);
        assert_eq!(demand.known_days(20 * DAY_SECONDS + NINE), 13);
        assert_eq!(demand.level(20 * DAY_SECONDS + NINE, MAX), Pages(32));
        // After a clock that was behind there are too few days.
        assert_eq!(demand.level(NINE, MAX), MAX);
    }

    #[test]
    fn knowledge_is_the_same_after_a_restart() {
        let demand = after(FIRST, 9);
        let text = serde_json::to_string(&demand).expect("numbers");
        let read: DayDemand = serde_json::from_str(&text).expect("a record");
        let now = FIRST * DAY_SECONDS + NINE;
        assert_eq!((read.level(now, MAX), read.known_days(now)), (Pages(12), 6));
    }
}
