// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any method, chunk and range, stopped anywhere: the range's cleared part is zero, its
//! surroundings are not.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use prezero_clear::{Chunk, Clearer, Extent, Method, Outcome};

#[derive(Arbitrary, Debug)]
struct Case {
    method: u8,
    chunk_pages: u8,
    start: u16,
    len: u16,
    fill: u8,
    stop_after: Option<u8>,
}

fuzz_target!(|case: Case| {
    let methods: Vec<Method> = Method::available().collect();
    let method = methods[usize::from(case.method) % methods.len()];
    let chunk = Chunk::from_bytes((usize::from(case.chunk_pages % 8) + 1) * 4096).expect("pages");
    let clearer = Clearer::new(method, chunk).expect("available");
    let fill = case.fill | 1;
    let mut bytes = vec![fill; 0x1_0000 + 0x1_0000];
    let range = usize::from(case.start)..usize::from(case.start) + usize::from(case.len);
    let mut calls = 0;
    let outcome = clearer.clear(Extent::from(&mut bytes[range.clone()]), |_| {
        calls += 1;
        if case.stop_after == Some(calls) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let cleared_bytes = match outcome {
        Outcome::Complete(zeroed) => zeroed.len(),
        Outcome::Stopped { cleared_bytes, .. } => cleared_bytes,
        Outcome::Poisoned { .. } => unreachable!("no guard is installed"),
    };
    assert_eq!(bytes[range.clone()].iter().filter(|byte| **byte == 0).count(), cleared_bytes);
    assert!(bytes[..range.start].iter().chain(&bytes[range.end..]).all(|byte| *byte == fill));
});
