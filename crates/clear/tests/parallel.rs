// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several threads give the same zeros as one, end when told to, and run where told to.
#![cfg(all(target_os = "linux", not(miri)))]

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use prezero_clear::parallel::{Share, TeamError, clear_shares};
use prezero_clear::{Chunk, Clearer, Extent, Outcome, Progress};
use proptest::prelude::*;

const MIB: usize = 1 << 20;

fn number(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).expect("not 0")
}

fn share(bytes: &mut [u8], threads: usize) -> Share<'_> {
    Share { extent: Extent::from(bytes), threads: number(threads), cpus: Vec::new() }
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_shares_are_cleared_and_their_surroundings_are_not(
        (first, second) in (0..5 * MIB, 0..5 * MIB),
        (head, gap) in (0..5000_usize, 0..5000_usize),
        threads in 1..5_usize,
        page_bytes in prop::sample::select(vec![4096, 2 * MIB, 1024 * MIB]),
    ) {
        let mut bytes = vec![0xd7_u8; head + first + gap + second + 1];
        let (before, rest) = bytes.split_at_mut(head);
        let (one, rest) = rest.split_at_mut(first);
        let (between, rest) = rest.split_at_mut(gap);
        let (two, after) = rest.split_at_mut(second);
        let most = AtomicUsize::new(0);
        let outcomes = clear_shares(
            &Clearer::default(),
            number(page_bytes),
            vec![share(one, threads), share(two, 1)],
            |progress| {
                most.fetch_max(progress.cleared_bytes, Ordering::Relaxed);
                assert_eq!(progress.total_bytes, first + second);
                ControlFlow::Continue(())
            },
        ).unwrap();
        prop_assert!(matches!(&outcomes[..], [Outcome::Complete(a), Outcome::Complete(b)]
            if a.len() == first && b.len() == second), "{outcomes:?}");
        prop_assert_eq!(most.into_inner(), first + second);
        drop(outcomes);
        prop_assert!(one.iter().chain(two.iter()).all(|byte| *byte == 0));
        prop_assert!(before.iter().chain(between.iter()).chain(after.iter()).all(|byte| *byte == 0xd7));
    }
}

#[test]
fn a_break_ends_every_thread_after_its_chunk() {
    let mut bytes = vec![1_u8; 32 * MIB];
    let chunk = Chunk::from_bytes(64 << 10).unwrap();
    let clearer = Clearer::new(Clearer::default().method(), chunk).unwrap();
    let threads = 4;
    // Counted here, since the sums leave out what other threads have in hand.
    let (chunks, enough) = (AtomicUsize::new(0), 64);
    let outcomes =
        clear_shares(&clearer, number(2 * MIB), vec![share(&mut bytes, threads)], |_| {
            if chunks.fetch_add(1, Ordering::Relaxed) + 1 >= enough {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
    let Outcome::Stopped { cleared_bytes, .. } = outcomes.unwrap().remove(0) else {
        panic!("nobody stopped")
    };
    let zeros = bytes.iter().filter(|byte| **byte == 0).count();
    // Chunks at the borders of batches may be shorter, none is longer.
    let most = (enough + threads) * chunk.bytes();
    assert!((most / 2..=most).contains(&zeros), "{zeros}");
    assert!(
        cleared_bytes <= zeros && prezero_clear::is_zero(&bytes[..cleared_bytes]),
        "{cleared_bytes}"
    );
    assert_eq!(bytes[cleared_bytes], 1, "the first gap is where it is said to be");
}

#[test]
fn a_break_in_the_last_chunk_is_too_late_to_matter() {
    let mut bytes = vec![1_u8; 4 * MIB];
    let outcomes =
        clear_shares(&Clearer::default(), number(4096), vec![share(&mut bytes, 1)], |progress| {
            if progress.cleared_bytes == progress.total_bytes {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
    assert!(matches!(outcomes.unwrap()[..], [Outcome::Complete(_)]));
}

#[test]
fn threads_run_on_the_cpus_of_their_share() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)).unwrap();
    let mut bytes = vec![1_u8; 8 * MIB];
    let seen = Mutex::new(BTreeSet::new());
    let here = Share { cpus: vec![cpu], ..share(&mut bytes, 2) };
    let outcomes = clear_shares(&Clearer::default(), number(4096), vec![here], |_| {
        seen.lock().unwrap().insert(rustix::thread::sched_getcpu());
        ControlFlow::Continue(())
    });
    assert!(matches!(outcomes.unwrap()[..], [Outcome::Complete(_)]));
    assert_eq!(seen.into_inner().unwrap(), BTreeSet::from([cpu]));
    assert_eq!(
        rustix::thread::sched_getaffinity(None).unwrap(),
        allowed,
        "the caller stays where it was"
    );
}

#[test]
fn cpus_that_do_not_exist_are_named_in_the_error() {
    for cpu in [rustix::thread::CpuSet::MAX_CPU - 1, usize::MAX] {
        let mut bytes = vec![1_u8; MIB];
        let nowhere = Share { cpus: vec![cpu], ..share(&mut bytes, 1) };
        let error =
            clear_shares(&Clearer::default(), number(4096), vec![nowhere], go_on).unwrap_err();
        assert!(matches!(&error, TeamError::Affinity { cpus, .. } if *cpus == [cpu]), "{error:?}");
        assert!(error.to_string().contains(&cpu.to_string()), "{error}");
    }
}

#[test]
fn a_panic_of_the_callback_reaches_the_caller() {
    let mut bytes = vec![1_u8; 4 * MIB];
    let run = std::panic::AssertUnwindSafe(|| {
        clear_shares(&Clearer::default(), number(4096), vec![share(&mut bytes, 2)], |_| {
            panic!("from the callback")
        })
        .is_ok()
    });
    let panic = std::panic::catch_unwind(run).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"from the callback"));
}

#[test]
fn no_shares_and_empty_shares_are_complete() {
    assert!(clear_shares(&Clearer::default(), number(4096), Vec::new(), go_on).unwrap().is_empty());
    let outcomes =
        clear_shares(&Clearer::default(), number(4096), vec![share(&mut [], 3)], go_on).unwrap();
    assert!(matches!(&outcomes[..], [Outcome::Complete(zeroed)] if zeroed.is_empty()));
}
