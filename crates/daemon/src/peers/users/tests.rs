// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places, turns, and the price of long calls.

use super::*;
use crate::base::now::NowOrNever as _;
use tokio::task::{LocalSet, spawn_local};

const ROOT: u32 = 0;

fn fill(users: &Rc<Users>, uid: u32) -> Vec<Place> {
    std::iter::from_fn(|| users.enter(uid, uid == ROOT).ok()).take(100).collect()
}

// Promise P91.
#[test]
fn one_user_leaves_places_to_others_and_all_of_them_to_root() {
    let users = Users::new(Bounds { all: 8, user: 3 });
    let first = fill(&users, 1);
    assert_eq!((first.len(), users.enter(1, false).unwrap_err()), (3, Full::User(3)));
    let rest: Vec<_> = [2, 3, 4].iter().map(|uid| fill(&users, *uid)).collect();
    // The third finds two places, and the fourth is made room for until all have two.
    assert_eq!(rest.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2, 2]);
    assert_eq!(fill(&users, ROOT).len(), 8, "root is not a user among others");
    drop((first, rest));
    assert_eq!((users.others.get(), users.table.borrow().len()), (0, 0));
    assert_eq!(fill(&users, 1).len(), 3);
}

// Promise P207.
#[test]
fn busiest_user_makes_room_with_its_longest_silent_connection() {
    let users = Users::new(Bounds { all: 8, user: 4 });
    let wanted = |place: &Place| place.wanted().now_or_never().is_some();
    let (few, many) = (fill(&users, 1), fill(&users, 2));
    assert_eq!((few.len(), many.len()), (4, 4));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        many[0].turn().await;
        few[0].turn().await;
    });
    let third: Vec<_> = (0..2).map(|_| users.enter(3, false).unwrap()).collect();
    let gone = [&few, &many].map(|places| places.iter().map(wanted).collect::<Vec<_>>());
    let second = [false, true, false, false];
    assert_eq!(gone, [second, second], "one each, and not the one that has just asked");
    // All have two or three: each keeps as many as a newcomer gets.
    assert_eq!(users.enter(3, false).unwrap_err(), Full::All(8));
    assert_eq!((users.others.get(), users.take_made_room()), (8, 2));
    // A newcomer gets a place while any user has two.
    let newcomers: Vec<_> = (4..100).map_while(|uid| users.enter(uid, false).ok()).collect();
    assert_eq!((newcomers.len(), users.others.get()), (5, 8));
    // A removed one counts once, and the rest is found again.
    drop((few, many, third, newcomers));
    assert_eq!((users.others.get(), users.table.borrow().len()), (0, 0));
    let root = fill(&users, ROOT);
    assert_eq!((root.len(), users.enter(ROOT, true).unwrap_err()), (8, Full::All(8)));
    assert!(!root.iter().any(wanted), "masters make no room");
}

// Promise P224 (years): A subordinate of the user that the daemon runs as is a user among others:
// it takes none of the daemon's own places, and has none taken for them.
#[test]
fn a_master_and_a_subordinate_of_its_account_are_two_users() {
    let users = Users::new(Bounds { all: 4, user: 4 });
    for [first, then] in [[false, true], [true, false]] {
        let (one, other) = (users.enter(1, first).unwrap(), users.enter(1, then).unwrap());
        assert_eq!((users.masters.get(), users.others.get()), (1, 1));
        drop((one, other));
        assert_eq!((users.masters.get(), users.others.get()), (0, 0));
        assert!(users.table.borrow().is_empty());
    }
    let masters: Vec<_> = (0..4).map(|_| users.enter(1, true).unwrap()).collect();
    let others: Vec<_> = (0..4).map(|_| users.enter(1, false).unwrap()).collect();
    let newcomer = users.enter(2, false).unwrap();
    let wanted = |place: &Place| place.wanted().now_or_never().is_some();
    assert!(!masters.iter().any(wanted), "masters make no room");
    assert!(wanted(&others[0]));
    drop((masters, others, newcomer));
    assert_eq!((users.masters.get(), users.others.get()), (0, 0));
}

#[test]
fn bounds_leave_half_of_the_descriptors_to_loans() {
    assert_eq!(Bounds::new(1 << 20), Bounds { all: 4096, user: 1024 });
    assert_eq!(Bounds::new(1024), Bounds { all: 256, user: 64 });
    assert_eq!(Bounds::new(0), Bounds { all: 4, user: 1 });
}

#[test]
fn user_with_slow_calls_pauses_and_others_do_not() {
    let users = Users::new(Bounds { all: 100, user: 100 });
    let busy = |long: Duration| {
        let begin = cpu_time();
        while cpu_time() - begin < long {}
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let long = 5 * SLOW_CALL_PERIOD;
        let place = users.enter(1, false).unwrap();
        charged(&place, async { busy(long) }).await;
        drop(place);
        users.forget_rested();
        let (place, other) = (users.enter(1, false).unwrap(), users.enter(2, false).unwrap());
        let begin = Instant::now();
        other.turn().await;
        let others = begin.elapsed();
        place.turn().await;
        let rested = begin.elapsed();
        assert!(rested >= long * (MAX_SLOW_TIME_SHARE - 2), "its turn came after {rested:?}");
        assert!(others < rested, "another user waited {others:?}");
        // Root's time has no bound either.
        let root = users.enter(ROOT, true).unwrap();
        charged(&root, async { busy(long) }).await;
        assert!(!root.user.rests());
        drop((place, other, root));
        users.forget_rested();
        assert_eq!(users.table.borrow().len(), 0);
    });
}

#[test]
fn after_a_slow_call_a_users_calls_run_in_its_own_thread() {
    let users = Users::new(Bounds { all: 100, user: 100 });
    let busy = || {
        let begin = cpu_time();
        while cpu_time() - begin < 2 * SLOW_CALL_PERIOD {}
    };
    let (place, other) = (users.enter(1, false).unwrap(), users.enter(2, false).unwrap());
    let root = users.enter(ROOT, true).unwrap();
    other.here(|| ());
    root.here(busy);
    place.here(busy);
    let crowded = [&place, &other, &root].map(Place::wakes_many);
    assert_eq!(crowded, [true, false, false]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let mut first = place.aside(move || held.recv().is_ok());
        let mut long = place.aside(busy);
        // Waited for and given up.
        tokio::select! {
            biased;
            done = first.done() => panic!("nobody has let it: {done:?}"),
            () = yield_now() => {}
        }
        release.send(()).unwrap();
        assert!(first.done().await.unwrap());
        assert!(!place.user.rests());
        long.done().await.unwrap();
        assert!(place.user.rests(), "it is charged for what its thread does");
    });
    // No user comes back as another.
    drop(place);
    users.forget_rested();
    assert!(users.enter(1, false).unwrap().wakes_many());
}

// Promise P94.
#[test]
fn calls_sent_ahead_by_one_user_let_another_user_in_between() {
    let users = Users::new(Bounds { all: 100, user: 100 });
    let order: Rc<RefCell<Vec<u32>>> = Rc::default();
    let calls = |uid, many: usize| {
        let (place, order) = (users.enter(uid, false).unwrap(), Rc::clone(&order));
        async move {
            for _ in 0..many {
                place.turn().await;
                order.borrow_mut().push(uid);
            }
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let flood: Vec<_> = (0..50).map(|_| spawn_local(calls(1, 10))).collect();
        spawn_local(calls(2, 10)).await.unwrap();
        // Ten calls of another user: fifty connections of the first had no more turns.
        let flooded = order.borrow().iter().filter(|uid| **uid == 1).count();
        assert!((1..=10).contains(&flooded), "{flooded} calls of the flood came before");
        for task in flood {
            task.await.unwrap();
        }
    });
    assert_eq!(order.borrow().len(), 510);
}
