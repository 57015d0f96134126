// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The user queues of the calls that a file needs.

use super::*;

const SIZE: PageSize = PageSize::MIB_2;

fn user_queue(name: &str, state: StateName) -> UserQueue {
    assert!(journal::parse(name, SIZE).is_some(), "{name}");
    user_queue_of(name, SIZE, state)
}

#[test]
fn unheld_files_use_the_shared_queue() {
    let name = "b1-n0-p1-l1-i0-u1000-g1";
    for state in StateName::ALL {
        let is_ours = matches!(state, StateName::Zeroable | StateName::Zeroing | StateName::Ready);
        let expected = if is_ours { None } else { Some(Uid(1000)) };
        assert_eq!(user_queue(name, state), expected, "{state}");
    }
    assert_eq!(user_queue("b1-n0-p1", StateName::Draining), None, "it was nobody's");
}

#[test]
fn subordinates_and_owners_use_their_users_queue() {
    for name in ["b1-n0-p1-l1-i0-u5-a7-g1", "b1-n0-p1-l1-i0-u7-g1-k60-oguest"] {
        assert_eq!(user_queue(name, StateName::Lent), Some(Uid(7)), "{name}");
    }
}

#[test]
fn each_scope_of_names_has_a_queue_of_its_own() {
    let of = |scope: &str, state| {
        user_queue(&format!("b1-n0-p1-l1-i0-u5-a7-g1-h{scope}+x"), state).expect("a user's")
    };
    let scopes = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|s| of(s, StateName::Lent));
    let distinct: BTreeSet<_> = scopes.iter().collect();
    assert_eq!(distinct.len(), scopes.len(), "{scopes:?}");
    // Users have the numbers below, and user queues that are shared the last one.
    assert!(scopes.iter().all(|Uid(n)| (1 << 31..3 << 30).contains(n)), "{scopes:?}");
    let kept = user_queue("b1-n0-p1-l1-i0-u5-a7-g1-k60-oguest-sa", StateName::Kept);
    assert_eq!(kept, Some(of("a", StateName::Draining)), "also when its name is gone");
}

/// The user queue by the standard library's hash with its fixed key.
fn guessed(scope: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    scope.hash(&mut hasher);
    hasher.finish() & 0x3fff_ffff
}

// Promise P273 (names): A tenant that chooses the text of its scope cannot choose which user queue
// its returns share.
#[test]
fn scopes_with_chosen_names_share_no_queue() {
    let mut seen = std::collections::HashMap::new();
    let found = (0..1_000_000).find_map(|n| {
        let scope = format!("team-{n}");
        seen.insert(guessed(&scope), scope.clone()).map(|other| (scope, other))
    });
    let (one, other) = found.expect("of a million scopes two share a user queue of 30 bits");
    let user_queue_of =
        |scope: &str| user_queue(&format!("b1-n0-p1-l1-i0-u0-g1-h{scope}+x"), StateName::Draining);
    assert_eq!(user_queue_of(&one), user_queue_of(&one), "a scope has one user queue");
    assert_ne!(user_queue_of(&one), user_queue_of(&other), "{one} and {other}");
}
