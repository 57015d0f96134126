// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In whose lane is done what a file needs.

use super::*;

const SIZE: PageSize = PageSize::MIB_2;

fn lane(name: &str, state: StateName) -> Lane {
    assert!(journal::parse(name, SIZE).is_some(), "{name}");
    lane_of(name, SIZE, state)
}

#[test]
fn what_nobody_else_has_is_done_in_the_lane_that_nobody_holds_up() {
    let name = "b1-n0-p1-l1-i0-u1000-g1";
    for state in StateName::ALL {
        let is_ours = matches!(state, StateName::Zeroable | StateName::Zeroing | StateName::Ready);
        let expected = if is_ours { None } else { Some(Uid(1000)) };
        assert_eq!(lane(name, state), expected, "{state}");
    }
    assert_eq!(lane("b1-n0-p1", StateName::Lingering), None, "it was nobody's");
}

#[test]
fn a_users_subordinates_and_owners_have_its_lane() {
    for name in ["b1-n0-p1-l1-i0-u5-a7-g1", "b1-n0-p1-l1-i0-u7-g1-k60-oguest"] {
        assert_eq!(lane(name, StateName::Lent), Some(Uid(7)), "{name}");
    }
}

#[test]
fn each_scope_of_names_has_a_lane_that_no_user_has() {
    let of = |scope: &str, state| {
        lane(&format!("b1-n0-p1-l1-i0-u5-a7-g1-h{scope}+x"), state).expect("a user's")
    };
    let scopes = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|s| of(s, StateName::Lent));
    let distinct: BTreeSet<_> = scopes.iter().collect();
    assert_eq!(distinct.len(), scopes.len(), "{scopes:?}");
    // Users have the numbers below, and lanes that are shared the last one.
    assert!(scopes.iter().all(|Uid(n)| (1 << 31..3 << 30).contains(n)), "{scopes:?}");
    let kept = lane("b1-n0-p1-l1-i0-u5-a7-g1-k60-oguest-sa", StateName::Kept);
    assert_eq!(kept, Some(of("a", StateName::Lingering)), "also when its name is gone");
}

/// The lane by the standard library's hash with its fixed key.
fn guessed(scope: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    scope.hash(&mut hasher);
    hasher.finish() & 0x3fff_ffff
}

#[test]
fn scopes_that_were_chosen_to_share_a_lane_do_not() {
    let mut seen = std::collections::HashMap::new();
    let found = (0..1_000_000).find_map(|n| {
        let scope = format!("team-{n}");
        seen.insert(guessed(&scope), scope.clone()).map(|other| (scope, other))
    });
    let (one, other) = found.expect("of a million scopes two share a lane of 30 bits");
    let lane_of =
        |scope: &str| lane(&format!("b1-n0-p1-l1-i0-u0-g1-h{scope}+x"), StateName::Lingering);
    assert_eq!(lane_of(&one), lane_of(&one), "a scope has one lane");
    assert_ne!(lane_of(&one), lane_of(&other), "{one} and {other}");
}
