// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes as a trace of each format: they are refused, or are loans that can be, and those can
//! be written and read again.
#![no_main]

use clap::ValueEnum as _;
use libfuzzer_sys::fuzz_target;
use plan::trace::{self, Format};

fuzz_target!(|input: (u8, &[u8])| {
    let formats = Format::value_variants();
    let format = formats[usize::from(input.0) % formats.len()];
    let Ok(asks) = trace::parse(input.1, format) else { return };
    for ask in &asks {
        assert!(ask.arrival.is_finite() && ask.arrival >= 0.0, "{ask:?}");
        assert!(ask.lifetime >= 0.0, "{ask:?}");
    }
    let mut written = Vec::new();
    trace::write(&asks, &mut written).expect("memory is there to be written");
    let again = trace::parse(&written[..], Format::Csv).expect("what was written can be read");
    assert_eq!(again.len(), asks.len());
    // Times are written in milliseconds.
    for (read, ask) in again.iter().zip(&asks) {
        assert_eq!((read.bytes, read.node), (ask.bytes, ask.node));
    }
});
