// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One runner over every method x alignment x length x pattern, against an oracle of one line, with
//! forbidden pages on both sides.

mod support;

use std::ops::{ControlFlow, Range};

use prezero_clear::{Chunk, Clearer, Extent, Method, Outcome};
use proptest::prelude::*;
use support::{Fenced, PAGE};

/// Miri is slow: it runs one case in this many.
const STRIDE: usize = if cfg!(miri) { 13 } else { 1 };

/// Lengths around every unit that a loop knows: words, lines, blocks of `dc zva`, pages, chunks.
fn lengths() -> impl Iterator<Item = usize> {
    let around = [16, 32, 64, 128, 256, 512, 2048, PAGE, 2 * PAGE, 3 * PAGE]
        .into_iter()
        .flat_map(|unit| [unit - 1, unit, unit + 1]);
    (0..9).chain(around)
}

fn clearers() -> impl Iterator<Item = Clearer> {
    let chunk = Chunk::from_bytes(PAGE).expect("one page");
    Method::available().flat_map(move |method| {
        [chunk, Chunk::WHOLE].map(|chunk| Clearer::new(method, chunk).expect("available"))
    })
}

/// The oracle: what clearing `range` must leave of `before`.
fn naive_clear(before: &[u8], range: Range<usize>) -> Vec<u8> {
    let mut after = before.to_vec();
    for byte in &mut after[range] {
        *byte = 0;
    }
    after
}

/// The runner: clears `range` of memory filled with `fill` and compares all of it with the oracle.
fn check(fenced: &mut Fenced, clearer: &Clearer, range: Range<usize>, fill: u8) {
    fenced.bytes().fill(fill);
    let expected = naive_clear(fenced.bytes(), range.clone());
    let extent = Extent::from(&mut fenced.bytes()[range.clone()]);
    let outcome = clearer.clear(extent, |_| ControlFlow::Continue(()));
    assert!(
        matches!(outcome, Outcome::Complete(ref zeroed) if zeroed.len() == range.len()),
        "{outcome:?}"
    );
    assert!(fenced.bytes() == expected, "{clearer:?} {range:?} of {fill:#x}");
}

#[test]
fn every_method_clears_what_it_should_and_nothing_else() {
    let mut fenced = Fenced::new(4 * PAGE, 0);
    let all = fenced.bytes().len();
    for clearer in clearers() {
        for len in lengths().step_by(STRIDE) {
            // From the first accessible byte on, and up to the last.
            let starts = [0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 65, PAGE - 1].into_iter();
            for start in starts
                .flat_map(|offset| [offset, (all - len).saturating_sub(offset)])
                .step_by(STRIDE)
            {
                check(&mut fenced, &clearer, start..start + len, 0xff);
            }
        }
    }
}

#[test]
fn every_pattern_ends_in_the_same_zeros() {
    let mut fenced = Fenced::new(4 * PAGE, 0);
    for clearer in clearers() {
        for fill in [0x00, 0x01, 0x80, 0xa5, 0xff].into_iter().rev().step_by(STRIDE) {
            for (start, len) in
                [(0, 4 * PAGE), (1, 3 * PAGE), (PAGE + 63, 2 * PAGE + 2), (4 * PAGE - 1, 1)]
            {
                check(&mut fenced, &clearer, start..start + len, fill);
            }
        }
    }
}

#[test]
fn stopping_after_any_chunk_leaves_the_rest_untouched() {
    let mut fenced = Fenced::new(5 * PAGE, 0);
    for method in Method::available() {
        let clearer = Clearer::new(method, Chunk::from_bytes(PAGE).unwrap()).unwrap();
        for stop_after in 1..=5 {
            fenced.bytes().fill(0xee);
            let expected = naive_clear(fenced.bytes(), 0..stop_after * PAGE);
            let mut calls = Vec::new();
            let outcome = clearer.clear(Extent::from(fenced.bytes()), |progress| {
                calls.push(progress.cleared_bytes);
                assert_eq!(progress.total_bytes, 5 * PAGE);
                if calls.len() == stop_after {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            match outcome {
                Outcome::Stopped { cleared_bytes, extent } => {
                    assert_eq!((cleared_bytes, extent.len()), (stop_after * PAGE, 5 * PAGE));
                }
                Outcome::Complete(_) => assert_eq!(stop_after, 5, "{method}"),
                Outcome::Poisoned { .. } => panic!("{outcome:?}"),
            }
            assert_eq!(calls, (1..=stop_after).map(|chunk| chunk * PAGE).collect::<Vec<_>>());
            assert!(fenced.bytes() == expected, "{method} stopped after {stop_after}");
        }
    }
}

#[test]
fn a_method_of_another_cpu_is_refused_by_name() {
    let refused: Vec<_> = Method::ALL.into_iter().filter(|method| !method.is_available()).collect();
    assert!(!refused.is_empty(), "no CPU has both x86-64 and aarch64 methods");
    for method in refused {
        let error = Clearer::new(method, Chunk::WHOLE).unwrap_err();
        assert!(error.to_string().contains(method.name()), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_range_any_chunk(
        start in 0..4 * PAGE,
        end in 0..=4 * PAGE,
        fill: u8,
        chunk_pages in 1..6_usize,
    ) {
        let range = start.min(end)..end.max(start);
        let mut fenced = Fenced::new(4 * PAGE, 0);
        for method in Method::available() {
            let clearer = Clearer::new(method, Chunk::from_bytes(chunk_pages * PAGE).unwrap()).unwrap();
            check(&mut fenced, &clearer, range.clone(), fill);
        }
    }
}
