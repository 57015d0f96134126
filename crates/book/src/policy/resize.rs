// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The size of the kernel's pool. Pure: counts and times go in, a size comes out.
//!
//! # Theory of operation
//!
//! *Needed* pages are in use, promised, wanted ready or wanted free. A loan that was refused for
//! lack of pages counts, too, until there is room for it, or a loan of the same size was granted,
//! or the time is over. Growth takes a while, seconds for a page of 1 GiB. That time does not
//! count, or the added pages would go before the program asks again. A pool that has less grows to
//! exactly the need. It shrinks to the highest need within the operator's time. So it grows again
//! within that time only if the need exceeds every earlier need.
//!
//! *Others.* The pool is the operator's. Pages that were there, or that other programs add, always
//! stay: the pool shrinks only by the pages that were added here. If another program takes away
//! more than others have added, the pool stays at the reduced size until a program adds pages
//! again. Two programs that both set a size would otherwise take turns for ever.
//!
//! *Crashes.* A change is recorded before it begins ([`ResizePolicy::record`]), and pages move one
//! way at a time: so the size found afterwards says how far the change came
//! ([`ResizePolicy::resume`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use units::{Bytes, PageSize, Pages};

/// The first pause after a change that came to less than it was to.
const MIN_RETRY_PERIOD: Duration = Duration::from_secs(1);
/// The longest one: memory that has become free is found within it.
const MAX_RETRY_PERIOD: Duration = Duration::from_secs(60);
/// The history of needs has this number of parts.
const NEED_PARTS: u32 = 16;
/// Above this percentage of the last ten seconds with a task waiting for memory (PSI, *some*), the
/// pool takes no more memory.
const MAX_PRESSURE: f64 = 10.0;

/// How far the size may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResizeLimits {
    /// The minimum in pages.
    pub min: Pages,
    /// ... and at most, by the daemon's own doing.
    pub max: Pages,
    /// How long unused pages are kept.
    pub idle: Duration,
}

/// What there is of one kernel's pool, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolCounts {
    /// A time that goes on across restarts.
    pub now: Duration,
    /// Its size, without surplus pages.
    pub total: Pages,
    /// Unused and unpromised pages: free ones, and those of unlent blocks.
    pub spare: Pages,
    /// Of those, the pages wanted ready, or wanted free.
    pub wanted: Pages,
    /// Whether unused pages are kept for later.
    pub keeps: bool,
}

/// The next change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeStep {
    /// Add this number of pages.
    Grow(Pages),
    /// Take this number of pages away.
    Shrink(Pages),
    /// Nothing; before that time nothing else, unless counts change.
    Wait(Option<Duration>),
}

/// A change that came to less than it was to is tried again later, and then later still.
#[derive(Debug, Clone, Copy, Default)]
struct Pause {
    length: Duration,
    until: Duration,
}

impl Pause {
    fn record(&mut self, now: Duration, wanted: Pages, done: Pages) {
        self.length = match () {
            () if done >= wanted => Duration::ZERO,
            () if done > Pages::ZERO => MIN_RETRY_PERIOD,
            () => (self.length * 2).clamp(MIN_RETRY_PERIOD, MAX_RETRY_PERIOD),
        };
        self.until = now + self.length;
    }
}

/// The knowledge about the size of one kernel's pool. See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct ResizePolicy {
    /// Pages that are there by our doing.
    ours: Pages,
    /// Its size when it was seen last, or changed here.
    last: Option<Pages>,
    /// What others have added since the first look.
    added: Pages,
    /// The ceiling since another program took pages away.
    held: Option<Pages>,
    /// Loans refused for lack of pages, until they expire. The largest of each order of magnitude:
    /// an unservable request leaves the others.
    asked: BTreeMap<Option<u32>, (Duration, Pages)>,
    /// Needs from the given time on: the largest first.
    needs: VecDeque<(Duration, Pages)>,
    growth: Pause,
    shrinking: Pause,
    /// When it began to grow.
    grows_since: Option<Duration>,
}

/// What a restart must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeRecord {
    /// Pages that were there by our doing.
    pub ours: Pages,
    /// What others had added.
    pub added: Pages,
    /// The size before a change that may have been begun since.
    pub from: Pages,
    /// The size after it.
    pub to: Pages,
}

impl ResizePolicy {
    /// Continues from an earlier daemon's last record.
    #[must_use]
    pub fn resume(record: &ResizeRecord, total: Pages) -> Self {
        let ResizeRecord { ours, added, from, to } = *record;
        // The finished part of the running change; the rest was others.
        let came = total.clamp(from.min(to), from.max(to));
        let ours = (ours + came.saturating_sub(from)).saturating_sub(from.saturating_sub(came));
        let mut resize_policy = Self { ours, added, last: Some(came), ..Self::default() };
        resize_policy.record_others(total);
        resize_policy.held = None;
        resize_policy
    }

    /// What a restart must know once `next` is begun.
    #[must_use]
    pub fn record(&self, next: ResizeStep) -> ResizeRecord {
        let from = self.last.unwrap_or_default();
        let to = match next {
            ResizeStep::Grow(pages) => from + pages,
            ResizeStep::Shrink(pages) => from.saturating_sub(pages),
            ResizeStep::Wait(_) => from,
        };
        ResizeRecord { ours: self.ours, added: self.added, from, to }
    }

    /// Pages that are there by our doing.
    #[must_use]
    pub fn ours(&self) -> Pages {
        self.ours
    }

    /// The ceiling that another program has set.
    #[must_use]
    pub fn held(&self) -> Option<Pages> {
        self.held
    }

    /// Forgets that another program has taken pages away: the operator has configured the pool
    /// anew.
    pub fn lift_limit(&mut self) {
        self.held = None;
        (self.growth, self.shrinking) = (Pause::default(), Pause::default());
    }

    /// Records a refused loan that takes `pages` missing pages.
    pub fn ask(&mut self, limits: &ResizeLimits, seen: &PoolCounts, pages: Pages) {
        self.forget_impossible(limits, seen);
        // What can never be served takes the place of nothing that can.
        if pages <= self.room(limits, seen) {
            let (until, most) = self.asked.entry(pages.0.checked_ilog2()).or_default();
            (*until, *most) = (seen.now + limits.idle, pages.max(*most));
        }
    }

    /// Records a granted loan of `pages`. Requests of at most this size had room then: a request
    /// that comes between the last page added for it and the next look stops counting.
    pub fn record_granted(&mut self, pages: Pages) {
        self.asked.retain(|_, (_, asked)| *asked > pages);
    }

    /// Returns the next change.
    pub fn next(&mut self, limits: &ResizeLimits, seen: &PoolCounts) -> ResizeStep {
        self.record_others(seen.total);
        let most = self.most(limits);
        let taken = seen.total.saturating_sub(seen.spare);
        self.forget_impossible(limits, seen);
        self.asked.retain(|_, (_, pages)| *pages > seen.spare);
        let asked = self.asked.values().map(|(_, pages)| *pages).max();
        let wanted = seen.wanted.max(asked.unwrap_or_default());
        let needed = taken + wanted;
        if !seen.keeps {
            self.needs.clear();
        }
        let lately = self.record_need(seen.now, needed, limits.idle);
        let goal = needed.max(limits.min).min(most);
        if goal > seen.total {
            return match seen.now < self.growth.until {
                true => ResizeStep::Wait(Some(self.growth.until)),
                false => {
                    self.grows_since = Some(seen.now);
                    ResizeStep::Grow(goal.saturating_sub(seen.total))
                }
            };
        }
        // Who adds pages wants them beside all that is needed.
        let kept = lately.max(limits.min) + self.added;
        let unneeded = seen.total.saturating_sub(kept);
        let unneeded = unneeded.min(seen.spare.saturating_sub(wanted)).min(self.ours);
        if unneeded > Pages::ZERO {
            return match seen.now < self.shrinking.until {
                true => ResizeStep::Wait(Some(self.shrinking.until)),
                false => ResizeStep::Shrink(unneeded),
            };
        }
        let next = self.needs.front().map(|(from, _)| *from + limits.idle);
        ResizeStep::Wait(next.filter(|_| self.ours > Pages::ZERO && lately > needed))
    }

    /// The change ended with this number of pages.
    pub fn record_done(&mut self, now: Duration, begun: ResizeStep, done: Pages) {
        let last = self.last.unwrap_or_default();
        match begun {
            ResizeStep::Grow(wanted) => {
                self.ours += done;
                self.last = Some(last + done);
                self.growth.record(now, wanted, done);
                let since = self.grows_since.take().unwrap_or(now);
                self.prolong(now.saturating_sub(since));
            }
            ResizeStep::Shrink(wanted) => {
                self.ours = self.ours.saturating_sub(done);
                self.last = Some(last.saturating_sub(done));
                self.shrinking.record(now, wanted, done);
            }
            ResizeStep::Wait(_) => {}
        }
    }

    /// Extends the time of every need.
    fn prolong(&mut self, time: Duration) {
        self.asked.values_mut().for_each(|(until, _)| *until += time);
        self.needs.iter_mut().for_each(|(from, _)| *from += time);
    }

    /// So large it may become.
    fn most(&self, limits: &ResizeLimits) -> Pages {
        self.held.map_or(limits.max, |held| held.min(limits.max))
    }

    /// The most pages that can be lent beside those in use.
    fn room(&self, limits: &ResizeLimits, seen: &PoolCounts) -> Pages {
        self.most(limits).saturating_sub(seen.total.saturating_sub(seen.spare))
    }

    /// What can never be served is no reason to grow.
    fn forget_impossible(&mut self, limits: &ResizeLimits, seen: &PoolCounts) {
        let room = self.room(limits, seen);
        self.asked.retain(|_, (until, pages)| seen.now < *until && *pages <= room);
    }

    fn record_others(&mut self, total: Pages) {
        let last = self.last.replace(total).unwrap_or(total);
        if total > last {
            self.added += total.saturating_sub(last);
            self.lift_limit();
        }
        let taken = last.saturating_sub(total);
        let beyond = taken.saturating_sub(self.added);
        self.added = self.added.saturating_sub(taken);
        if beyond > Pages::ZERO {
            self.ours = self.ours.saturating_sub(beyond);
            self.held = Some(total);
        }
    }

    /// Records the current need, and returns the largest within the time.
    fn record_need(&mut self, now: Duration, needed: Pages, idle: Duration) -> Pages {
        while self.needs.front().is_some_and(|(from, _)| *from + idle <= now) {
            self.needs.pop_front();
        }
        // The last moment of its part: it counts a little longer than the time, and each part has
        // at most one entry.
        let part = (idle / NEED_PARTS).as_millis().max(1);
        let parts = now.as_millis().div_ceil(part).saturating_mul(part);
        let end = Duration::from_millis(u64::try_from(parts).unwrap_or(u64::MAX));
        while self.needs.back().is_some_and(|(_, before)| *before <= needed) {
            self.needs.pop_back();
        }
        match self.needs.back() {
            // The same part had a larger need: that one counts as long.
            Some((at, _)) if *at == end => {}
            _ => self.needs.push_back((end, needed)),
        }
        self.needs.front().map_or(needed, |(_, most)| *most)
    }
}

/// The memory that a pool would grow by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryLeft {
    /// What programs could still have of the node's.
    pub available: Bytes,
    /// Percentage of the last ten seconds with a task waiting for memory, if the kernel says.
    pub pressure: Option<f64>,
}

/// Why a pool does not grow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scarce {
    /// The available memory equals the amount that must stay.
    Memory(Bytes),
    /// Tasks already wait for memory for this percentage of the time.
    Pressure(f64),
}

/// How many of `pages` may be taken from memory while `free` stays available: at least one.
///
/// # Errors
/// Why it is none.
pub fn affordable(
    pages: Pages,
    size: PageSize,
    free: Bytes,
    memory: &MemoryLeft,
) -> Result<Pages, Scarce> {
    if let Some(percent) = memory.pressure.filter(|percent| *percent > MAX_PRESSURE) {
        return Err(Scarce::Pressure(percent));
    }
    let spare = Bytes(memory.available.0.saturating_sub(free.0)).whole_pages(size);
    match pages.min(spare) {
        Pages::ZERO => Err(Scarce::Memory(memory.available)),
        some => Ok(some),
    }
}

#[cfg(test)]
mod tests;
