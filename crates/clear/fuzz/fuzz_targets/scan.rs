// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes at any alignment: every scan finds what the plain loop finds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prezero_clear::{ScanMethod, Scanner};

fuzz_target!(|input: (u8, u16, Vec<(u16, u8)>)| {
    let (offset, len, places) = input;
    let mut bytes = vec![0_u8; usize::from(offset) + usize::from(len)];
    for (at, byte) in places {
        if let Some(place) = bytes.get_mut(usize::from(at)) {
            *place = byte;
        }
    }
    let bytes = &bytes[usize::from(offset)..];
    let expected = bytes.iter().position(|byte| *byte != 0);
    for scanner in ScanMethod::ALL.into_iter().filter_map(Scanner::new) {
        assert_eq!(scanner.first_nonzero(bytes), expected, "{}", scanner.method());
        assert_eq!(scanner.is_zero(bytes), expected.is_none(), "{}", scanner.method());
    }
});
