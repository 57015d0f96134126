// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel's pool, its users, an operator and a clock, against what the policy says.

use proptest::prelude::*;

use super::*;

const SIZE: PageSize = PageSize::MIB_2;
const IDLE_PERIOD: Duration = Duration::from_secs(10);
const LIMITS: ResizeLimits = ResizeLimits { min: Pages(8), max: Pages(64), idle: IDLE_PERIOD };

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn seen(now: u64, total: u64, spare: u64, wanted: u64) -> PoolCounts {
    PoolCounts {
        now: seconds(now),
        total: Pages(total),
        spare: Pages(spare),
        wanted: Pages(wanted),
        keeps: true,
    }
}

/// Runs the next change whole, and returns it.
fn step(resize_policy: &mut ResizePolicy, at: &PoolCounts) -> ResizeStep {
    let next = resize_policy.next(&LIMITS, at);
    if let ResizeStep::Grow(pages) | ResizeStep::Shrink(pages) = next {
        resize_policy.record_done(at.now, next, pages);
    }
    next
}

#[test]
fn pool_starts_at_its_minimum_grows_by_need_and_shrinks_later() {
    let mut resize_policy = ResizePolicy::default();
    assert_eq!(step(&mut resize_policy, &seen(0, 0, 0, 0)), ResizeStep::Grow(Pages(8)));
    assert_eq!(step(&mut resize_policy, &seen(1, 8, 8, 0)), ResizeStep::Wait(None));
    // All of it is lent, and the target is 16 ready.
    assert_eq!(step(&mut resize_policy, &seen(2, 8, 0, 16)), ResizeStep::Grow(Pages(16)));
    assert!(matches!(step(&mut resize_policy, &seen(3, 24, 24, 16)), ResizeStep::Wait(Some(_))));
    assert!(matches!(step(&mut resize_policy, &seen(11, 24, 24, 16)), ResizeStep::Wait(Some(_))));
    assert_eq!(step(&mut resize_policy, &seen(14, 24, 24, 16)), ResizeStep::Shrink(Pages(8)));
    assert_eq!(step(&mut resize_policy, &seen(15, 16, 16, 16)), ResizeStep::Wait(None));
    assert_eq!(resize_policy.ours(), Pages(16));
}

#[test]
fn no_more_is_taken_than_the_operator_allows() {
    let mut resize_policy = ResizePolicy::default();
    assert_eq!(step(&mut resize_policy, &seen(0, 0, 0, 500)), ResizeStep::Grow(Pages(64)));
    assert_eq!(step(&mut resize_policy, &seen(1, 64, 64, 500)), ResizeStep::Wait(None));
}

#[test]
fn refused_loan_is_needed_until_it_fits_unless_it_never_can() {
    let mut resize_policy = ResizePolicy::default();
    step(&mut resize_policy, &seen(0, 8, 0, 0));
    resize_policy.ask(&LIMITS, &seen(1, 8, 0, 0), Pages(57));
    assert_eq!(
        step(&mut resize_policy, &seen(1, 8, 0, 0)),
        ResizeStep::Wait(None),
        "8 and 57 are above 64"
    );
    resize_policy.ask(&LIMITS, &seen(2, 8, 0, 0), Pages(56));
    assert_eq!(step(&mut resize_policy, &seen(2, 8, 0, 0)), ResizeStep::Grow(Pages(56)));
    assert!(matches!(step(&mut resize_policy, &seen(3, 64, 56, 0)), ResizeStep::Wait(Some(_))));
    assert_eq!(step(&mut resize_policy, &seen(14, 64, 56, 0)), ResizeStep::Shrink(Pages(56)));
}

// Promise P238 (operator): A loan that was refused is needed once: not a second time when it was
// granted before its room was seen, and for all of `size_idle` once there is room, however long
// growth took.
#[test]
fn loan_granted_before_its_room_was_seen_is_not_needed_twice() {
    let mut resize_policy = ResizePolicy::default();
    resize_policy.ask(&LIMITS, &seen(1, 8, 0, 0), Pages(20));
    resize_policy.ask(&LIMITS, &seen(1, 8, 0, 0), Pages(40));
    assert_eq!(step(&mut resize_policy, &seen(1, 8, 0, 0)), ResizeStep::Grow(Pages(40)));
    // It came again between the last page and this look, and has them.
    resize_policy.record_granted(Pages(40));
    assert_eq!(step(&mut resize_policy, &seen(2, 48, 0, 0)), ResizeStep::Wait(None));
    // A smaller one leaves a larger one.
    resize_policy.ask(&LIMITS, &seen(3, 48, 10, 0), Pages(16));
    resize_policy.record_granted(Pages(10));
    assert_eq!(step(&mut resize_policy, &seen(3, 48, 0, 0)), ResizeStep::Grow(Pages(16)));
}

// Promise P238.
#[test]
fn the_time_that_growth_takes_does_not_count() {
    let mut resize_policy = ResizePolicy::default();
    step(&mut resize_policy, &seen(0, 8, 8, 0));
    resize_policy.ask(&LIMITS, &seen(1, 8, 0, 0), Pages(20));
    let grow = resize_policy.next(&LIMITS, &seen(1, 8, 0, 0));
    assert_eq!(grow, ResizeStep::Grow(Pages(20)));
    // Three times as long as anything is kept.
    resize_policy.record_done(seconds(31), grow, Pages(20));
    assert!(matches!(step(&mut resize_policy, &seen(31, 28, 20, 0)), ResizeStep::Wait(Some(_))));
    assert!(matches!(step(&mut resize_policy, &seen(40, 28, 20, 0)), ResizeStep::Wait(Some(_))));
    assert_eq!(step(&mut resize_policy, &seen(42, 28, 20, 0)), ResizeStep::Shrink(Pages(20)));
    // A loan with half of its pages found still counts.
    resize_policy.ask(&LIMITS, &seen(43, 8, 0, 0), Pages(20));
    let grow = resize_policy.next(&LIMITS, &seen(43, 8, 0, 0));
    resize_policy.record_done(seconds(60), grow, Pages(10));
    assert_eq!(step(&mut resize_policy, &seen(62, 18, 10, 0)), ResizeStep::Grow(Pages(10)));
}

// Promise P223 (operator): A loan that can never be served keeps no other's want from making the
// kernel's pool larger.
#[test]
fn a_loan_that_can_never_be_served_keeps_no_other_from_being() {
    let mut resize_policy = ResizePolicy::default();
    step(&mut resize_policy, &seen(0, 8, 0, 0));
    for _ in 0..100 {
        resize_policy.ask(&LIMITS, &seen(1, 8, 0, 0), Pages(57));
        resize_policy.ask(&LIMITS, &seen(1, 8, 0, 0), Pages(20));
    }
    resize_policy.ask(&LIMITS, &seen(1, 8, 0, 0), Pages(1 << 40));
    assert_eq!(resize_policy.next(&LIMITS, &seen(1, 8, 0, 0)), ResizeStep::Grow(Pages(20)));
    // A loan that had room when it was requested counts as well, and so does any number of them.
    for pages in 21..=56 {
        resize_policy.ask(&LIMITS, &seen(2, 8, 0, 0), Pages(pages));
    }
    assert_eq!(resize_policy.next(&LIMITS, &seen(3, 28, 0, 0)), ResizeStep::Grow(Pages(31)));
}

// Promise P199.
#[test]
fn growth_that_fails_backs_off_until_pages_are_added() {
    let mut resize_policy = ResizePolicy::default();
    let (mut now, mut tries) = (Duration::ZERO, Vec::new());
    while tries.len() < 8 {
        let next = resize_policy.next(&LIMITS, &PoolCounts { now, ..seen(0, 0, 0, 0) });
        match next {
            ResizeStep::Wait(until) => now = until.expect("it is tried again"),
            tried => {
                tries.push(now.as_secs());
                resize_policy.record_done(now, tried, Pages::ZERO);
            }
        }
    }
    assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 123]);
    assert!(matches!(resize_policy.next(&LIMITS, &seen(124, 1, 1, 0)), ResizeStep::Grow(Pages(7))));
}

// Promise P198.
#[test]
fn pages_removed_by_others_stay_away_until_others_add() {
    let mut resize_policy = ResizePolicy::default();
    step(&mut resize_policy, &seen(0, 10, 0, 20));
    assert_eq!(
        step(&mut resize_policy, &seen(1, 12, 2, 20)),
        ResizeStep::Wait(None),
        "18 went at once"
    );
    assert_eq!((resize_policy.held(), resize_policy.ours()), (Some(Pages(12)), Pages(2)));
    assert_eq!(step(&mut resize_policy, &seen(2, 12, 2, 20)), ResizeStep::Wait(None));
    assert_eq!(step(&mut resize_policy, &seen(3, 13, 3, 20)), ResizeStep::Grow(Pages(17)));
    // What others add and take away again is theirs.
    step(&mut resize_policy, &seen(4, 40, 20, 20));
    step(&mut resize_policy, &seen(5, 30, 10, 10));
    assert_eq!((resize_policy.held(), resize_policy.ours()), (None, Pages(19)));
}

#[test]
fn pages_present_or_added_by_others_are_not_removed() {
    let mut resize_policy = ResizePolicy::default();
    step(&mut resize_policy, &seen(0, 30, 0, 10));
    assert!(matches!(step(&mut resize_policy, &seen(1, 45, 45, 0)), ResizeStep::Wait(Some(_))));
    assert_eq!(step(&mut resize_policy, &seen(30, 45, 45, 0)), ResizeStep::Shrink(Pages(10)));
    assert_eq!(step(&mut resize_policy, &seen(60, 35, 35, 0)), ResizeStep::Wait(None));
}

#[test]
fn pages_not_kept_for_later_go_at_once() {
    let mut resize_policy = ResizePolicy::default();
    step(&mut resize_policy, &seen(0, 0, 0, 40));
    let drained = PoolCounts { keeps: false, ..seen(1, 40, 38, 0) };
    assert_eq!(step(&mut resize_policy, &drained), ResizeStep::Shrink(Pages(32)));
}

#[test]
fn memory_that_is_to_stay_free_and_pressure_end_growth() {
    let memory =
        |pages: u64, pressure| MemoryLeft { available: Pages(pages).bytes(SIZE), pressure };
    let of = |memory| affordable(Pages(8), SIZE, Pages(100).bytes(SIZE), &memory);
    assert_eq!(of(memory(200, None)), Ok(Pages(8)));
    assert_eq!(of(memory(103, Some(9.9))), Ok(Pages(3)));
    assert_eq!(of(memory(100, Some(0.0))), Err(Scarce::Memory(Pages(100).bytes(SIZE))));
    assert_eq!(of(memory(200, Some(10.0))), Ok(Pages(8)));
    assert_eq!(of(memory(200, Some(10.1))), Err(Scarce::Pressure(10.1)));
}

#[test]
fn exactly_granted_request_is_not_waited_for() {
    let mut resize_policy = ResizePolicy::default();
    resize_policy.ask(&LIMITS, &seen(1, 8, 0, 0), Pages(20));
    assert_eq!(step(&mut resize_policy, &seen(1, 8, 0, 0)), ResizeStep::Grow(Pages(20)));
    resize_policy.record_granted(Pages(20));
    assert_eq!(
        step(&mut resize_policy, &seen(2, 28, 0, 0)),
        ResizeStep::Wait(None),
        "there is room for more"
    );
}

#[test]
fn refused_loan_counts_for_its_time_and_no_longer() {
    for (at, is_heeded) in [(10, true), (11, false)] {
        let mut resize_policy = ResizePolicy::default();
        resize_policy.ask(&LIMITS, &seen(1, 8, 0, 0), Pages(20));
        let grows = matches!(resize_policy.next(&LIMITS, &seen(at, 8, 0, 0)), ResizeStep::Grow(_));
        assert_eq!(grows, is_heeded, "at {at} s");
    }
}

#[test]
fn shrinking_that_frees_nothing_is_tried_ever_later() {
    let mut resize_policy = ResizePolicy::default();
    step(&mut resize_policy, &seen(0, 0, 0, 40));
    let (mut now, mut tries) = (seconds(100), Vec::new());
    while tries.len() < 4 {
        match resize_policy.next(&LIMITS, &PoolCounts { now, ..seen(0, 40, 40, 0) }) {
            ResizeStep::Wait(until) => now = until.expect("it is tried again"),
            tried => {
                assert_eq!(tried, ResizeStep::Shrink(Pages(32)));
                tries.push(now.as_secs());
                resize_policy.record_done(now, tried, Pages::ZERO);
            }
        }
    }
    assert_eq!(tries[1..], [tries[0] + 1, tries[0] + 3, tries[0] + 7]);
}

#[test]
fn changes_by_others_without_a_daemon_are_theirs() {
    let idle =
        |ours, added| ResizeRecord { ours: Pages(ours), added, from: Pages(20), to: Pages(20) };
    let more = ResizePolicy::resume(&idle(10, Pages(0)), Pages(25));
    assert_eq!((more.ours(), more.record(ResizeStep::Wait(None)).added), (Pages(10), Pages(5)));
    let fewer = ResizePolicy::resume(&idle(10, Pages(2)), Pages(15));
    assert_eq!((fewer.ours(), fewer.record(ResizeStep::Wait(None)).added), (Pages(7), Pages(0)));
    assert_eq!(fewer.held(), None, "a start is the operator's");
    // A running change ended at the current size.
    let record = ResizeRecord { from: Pages(20), to: Pages(28), ours: Pages(10), added: Pages(0) };
    for (total, ours, added) in [(20, 10, 0), (23, 13, 0), (28, 18, 0), (30, 18, 2)] {
        let resize_policy = ResizePolicy::resume(&record, Pages(total));
        let now = resize_policy.record(ResizeStep::Wait(None));
        assert_eq!((now.ours, now.added), (Pages(ours), Pages(added)), "found {total}");
    }
}

#[test]
fn without_removable_pages_no_moment_is_waited_for() {
    let mut resize_policy = ResizePolicy::default();
    step(&mut resize_policy, &seen(0, 8, 0, 0));
    assert_eq!(
        step(&mut resize_policy, &seen(1, 8, 8, 0)),
        ResizeStep::Wait(None),
        "all of it was there"
    );
}

#[test]
fn past_need_is_known_by_parts_of_the_time() {
    let mut resize_policy = ResizePolicy::default();
    for needed in (1..50).rev() {
        assert_eq!(resize_policy.record_need(seconds(1), Pages(needed), IDLE_PERIOD), Pages(49));
    }
    assert_eq!(resize_policy.needs.len(), 1, "one part has one entry");
}

/// What happens to a pool.
#[derive(Debug, Clone)]
enum Event {
    /// Time passes.
    Time(u64),
    /// Another program takes `pages` of the unused pages, if there are enough.
    Take(u64),
    /// ... or returns them.
    Return(u64),
    /// The pages wanted ready and free.
    Want(u64),
    /// A loan is refused.
    Refuse(u64),
    /// One is granted, if there are enough unused pages.
    Grant(u64),
    /// The operator adds pages.
    Add(u64),
    /// ... or takes some unused ones away.
    Remove(u64),
    /// The kernel finds only this number of pages for the next growth.
    Find(u64),
    /// The daemon is killed after this number of pages of the next change.
    Kill(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => (1u64..4000).prop_map(Event::Time),
        3 => (0u64..30).prop_map(Event::Take),
        3 => (0u64..30).prop_map(Event::Return),
        2 => (0u64..40).prop_map(Event::Want),
        1 => (1u64..90).prop_map(Event::Refuse),
        2 => (1u64..60).prop_map(Event::Grant),
        1 => (1u64..20).prop_map(Event::Add),
        1 => (1u64..20).prop_map(Event::Remove),
        2 => (0u64..20).prop_map(Event::Find),
        1 => (0u64..20).prop_map(Event::Kill),
    ];
    proptest::collection::vec(event, 1..120)
}

/// A kernel's pool, and its truth independent of the policy.
struct World {
    resize_policy: ResizePolicy,
    now: Duration,
    total: u64,
    taken: u64,
    wanted: u64,
    asked: u64,
    asked_until: Duration,
    finds: u64,
    kill_after: Option<u64>,
    /// Memory that is no huge page, in pages.
    memory: u64,
    /// Pages from the start and pages that others added, minus pages that others took.
    theirs: u64,
    /// What others have added and not taken away again.
    added: u64,
    /// By our doing.
    ours: u64,
    held: Option<u64>,
    /// All that was needed, and when.
    needs: Vec<(Duration, u64)>,
}

/// Memory that must stay available.
const FREE: u64 = 40;

impl World {
    fn new(total: u64, memory: u64) -> Self {
        Self {
            resize_policy: ResizePolicy::default(),
            now: seconds(1000),
            total,
            taken: 0,
            wanted: 0,
            asked: 0,
            asked_until: Duration::ZERO,
            finds: u64::MAX,
            kill_after: None,
            memory,
            theirs: total,
            added: 0,
            ours: 0,
            held: None,
            needs: Vec::new(),
        }
    }

    fn happen(&mut self, event: &Event) {
        let spare = self.total - self.taken;
        match *event {
            Event::Time(millis) => self.now += Duration::from_millis(millis),
            Event::Take(pages) => self.taken += pages.min(spare),
            Event::Return(pages) => self.taken -= pages.min(self.taken),
            Event::Want(pages) => self.wanted = pages,
            Event::Refuse(pages) => {
                let seen = self.seen();
                self.resize_policy.ask(&LIMITS, &seen, Pages(pages));
                self.asked = self.asked.max(pages);
                self.asked_until = self.now + IDLE_PERIOD;
            }
            Event::Grant(pages) if pages > spare => return,
            Event::Grant(pages) => {
                self.taken += pages;
                self.resize_policy.record_granted(Pages(pages));
                if self.asked <= pages {
                    self.asked = 0;
                }
            }
            Event::Add(pages) => {
                self.total += pages;
                self.theirs += pages;
                self.added += pages;
                self.memory = self.memory.saturating_sub(pages);
                self.held = None;
            }
            Event::Remove(pages) => {
                let pages = pages.min(spare);
                self.total -= pages;
                self.added = self.added.saturating_sub(pages);
                self.memory += pages;
            }
            Event::Find(pages) => self.finds = pages,
            Event::Kill(pages) => self.kill_after = Some(pages),
        }
        // What others take away the policy attributes; that it adds nothing to it is checked.
        if matches!(event, Event::Remove(_)) {
            self.look(true);
        } else {
            self.look(false);
        }
    }

    fn seen(&self) -> PoolCounts {
        PoolCounts {
            now: self.now,
            total: Pages(self.total),
            spare: Pages(self.total - self.taken),
            wanted: Pages(self.wanted),
            keeps: true,
        }
    }

    fn look(&mut self, removed: bool) {
        let was_ours = self.resize_policy.ours().0;
        let next = self.resize_policy.next(&LIMITS, &self.seen());
        if removed {
            // Missing pages of ours are those that others took beyond the initial ones.
            let ours = self.resize_policy.ours().0;
            assert!(ours <= was_ours && ours <= self.total);
            self.ours = ours;
            self.theirs = self.total - ours;
            self.held = self.resize_policy.held().map(|pages| pages.0);
        }
        assert_eq!(self.resize_policy.ours().0, self.ours);
        let spare = self.total - self.taken;
        self.needs.push((self.now, self.taken + self.wanted));
        match next {
            ResizeStep::Grow(pages) => self.grow(next, pages.0),
            ResizeStep::Shrink(pages) => {
                assert!(pages.0 <= self.ours, "others' pages");
                assert!(pages.0 <= spare - self.wanted, "what is to be ready");
                assert!(self.total - pages.0 >= LIMITS.min.0, "below size_min");
                let lately = self.needs.iter().filter(|(at, _)| *at + IDLE_PERIOD > self.now);
                let most = lately.map(|(_, needed)| *needed).max().expect("now");
                assert!(self.total - pages.0 >= most, "what was needed lately");
                assert!(self.total - pages.0 >= most + self.added, "what others have added");
                self.change(next, pages.0, false);
            }
            ResizeStep::Wait(until) => assert!(until.is_none_or(|until| until > self.now)),
        }
    }

    fn grow(&mut self, next: ResizeStep, pages: u64) {
        let after = self.total + pages;
        assert!(after <= LIMITS.max.0, "above size_max");
        assert!(self.held.is_none_or(|held| after <= held), "somebody took that away");
        let asked = if self.now < self.asked_until { self.asked } else { 0 };
        let needed = (self.taken + self.wanted.max(asked)).max(LIMITS.min.0);
        assert!(after <= needed, "more than is needed");
        let memory = MemoryLeft { available: Pages(self.memory).bytes(SIZE), pressure: None };
        let free = Pages(FREE).bytes(SIZE);
        let affordable = affordable(Pages(pages), SIZE, free, &memory).map_or(0, |pages| pages.0);
        let done = affordable.min(self.finds);
        self.finds = u64::MAX;
        self.change(next, done, true);
        if done > 0 {
            assert!(self.memory >= FREE, "memory that was to stay free");
        }
    }

    /// A change ends after this number of pages, or earlier when the daemon is killed.
    fn change(&mut self, next: ResizeStep, pages: u64, grows: bool) {
        let killed = self.kill_after.take();
        let done = killed.map_or(pages, |after| after.min(pages));
        let record = self.resize_policy.record(next);
        if grows {
            (self.total, self.ours) = (self.total + done, self.ours + done);
            self.memory -= done;
        } else {
            (self.total, self.ours) = (self.total - done, self.ours - done);
            self.memory += done;
        }
        if killed.is_none() {
            self.resize_policy.record_done(self.now, next, Pages(done));
            return;
        }
        self.resize_policy = ResizePolicy::resume(&record, Pages(self.total));
        assert_eq!(self.resize_policy.ours().0, self.ours, "a crash loses count");
        // Needs, requests and losses from before a restart are forgotten with it.
        self.needs.clear();
        (self.held, self.asked) = (None, 0);
    }
}

#[test]
fn repeated_failure_waits_longer_and_part_success_retries_soon() {
    let now = Duration::from_secs(100);
    let mut pause = Pause::default();
    let mut lengths = Vec::new();
    for done in [0, 0, 0, 1, 0, 4] {
        pause.record(now, Pages(4), Pages(done));
        assert_eq!(pause.until, now + pause.length);
        lengths.push(pause.length);
    }
    let first = MIN_RETRY_PERIOD;
    assert_eq!(lengths, [first, first * 2, first * 4, first, first * 2, Duration::ZERO]);
}

proptest! {
    // Promise P197 (operator): In every case, a resizable pool takes away only pages that it has
    // added: none that are in use or promised, and none of the ready amount.
    #[test]
    fn pool_keeps_its_bounds_and_takes_nothing_from_others(
        total in 0u64..80, memory in 0u64..200, events in events(),
    ) {
        let mut world = World::new(total, memory);
        // Pages that others add before the first look count as initial.
        world.look(false);
        for event in &events {
            world.happen(event);
        }
    }

    #[test]
    fn constant_need_is_never_released_and_nothing_is_done_twice(
        total in 0u64..80, taken in 0u64..40, wanted in 0u64..40, steps in 1u64..200,
    ) {
        let mut world = World::new(total, u64::MAX / (4 << 20));
        world.taken = taken.min(total);
        world.wanted = wanted;
        world.look(false);
        let size = world.total;
        for _ in 0..steps {
            world.now += Duration::from_millis(700);
            world.look(false);
            prop_assert_eq!(world.total, size);
        }
    }
}
