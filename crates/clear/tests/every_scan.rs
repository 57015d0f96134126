// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One runner over every scan method x alignment x length x place of the odd byte, between
//! forbidden pages.

mod support;

use prezero_clear::{ScanMethod, Scanner, first_nonzero, is_zero};
use proptest::prelude::*;
use support::{Fenced, PAGE};

/// Miri is slow: it runs one case in this many.
const STRIDE: usize = if cfg!(miri) { 97 } else { 1 };

fn scanners() -> impl Iterator<Item = Scanner> {
    ScanMethod::ALL.into_iter().filter_map(Scanner::new)
}

/// The oracle.
fn naive(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte != 0)
}

fn check(bytes: &[u8]) {
    let expected = naive(bytes);
    for scanner in scanners() {
        assert_eq!(
            scanner.first_nonzero(bytes),
            expected,
            "{} of {} bytes",
            scanner.method(),
            bytes.len()
        );
        assert_eq!(
            scanner.is_zero(bytes),
            expected.is_none(),
            "{} of {} bytes",
            scanner.method(),
            bytes.len()
        );
    }
    assert_eq!(first_nonzero(bytes), expected);
    assert_eq!(is_zero(bytes), expected.is_none());
}

#[test]
fn odd_byte_is_found_at_any_place_and_length() {
    let mut fenced = Fenced::new(PAGE, 0);
    for len in (0..300).chain([511, 512, 513, 1023, 1025, PAGE - 1, PAGE]).step_by(STRIDE) {
        for start in [0, 1, 15, 17, 31, 33, 63]
            .map(|offset| offset.min(PAGE - len))
            .into_iter()
            .chain([PAGE - len])
        {
            check(&fenced.bytes()[start..start + len]);
            for at in (0..len).step_by(len / 40 + 1).chain(len.checked_sub(1)) {
                fenced.bytes()[start + at] = 0x80;
                check(&fenced.bytes()[start..start + len]);
                fenced.bytes()[start + at] = 0;
            }
        }
    }
}

#[test]
fn bytes_outside_the_slice_are_not_looked_at() {
    let mut fenced = Fenced::new(PAGE, 0xff);
    for len in [0, 1, 16, 63, 64, 65, 255, 256, 257, 1000] {
        let range = 100..100 + len;
        fenced.bytes()[range.clone()].fill(0);
        check(&fenced.bytes()[range.clone()]);
        fenced.bytes()[range].fill(0xff);
    }
}

#[test]
fn names_survive_print_and_parse() {
    for method in ScanMethod::ALL {
        assert_eq!(method.to_string().parse(), Ok(method));
    }
    assert!("mmx".parse::<ScanMethod>().unwrap_err().to_string().contains("portable"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sparse_bytes_are_found(places in prop::collection::vec((0..PAGE, any::<u8>()), 0..4), from in 0..PAGE, to in 0..=PAGE) {
        let mut fenced = Fenced::new(PAGE, 0);
        for (at, byte) in places {
            fenced.bytes()[at] = byte;
        }
        check(&fenced.bytes()[from.min(to)..to.max(from)]);
    }
}
