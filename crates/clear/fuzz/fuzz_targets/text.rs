// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any text: a value that was read prints as itself, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prezero_clear::calibrate::{Choice, Cpu};
use prezero_clear::{Chunk, Method, ScanMethod};

fn survives<T: std::str::FromStr + ToString + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert!(value.to_string().parse::<T>().is_ok_and(|again| again == value), "{text}");
    }
}

fuzz_target!(|text: &str| {
    survives::<Method>(text);
    survives::<ScanMethod>(text);
    survives::<Chunk>(text);
    survives::<Choice>(text);
    assert!(!Cpu::from_cpuinfo(text).to_string().contains(char::is_whitespace));
});
