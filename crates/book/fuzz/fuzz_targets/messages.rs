// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes as the parameters of each method: they are refused, or mean the same when they are
//! written out and read again.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn reads<T: DeserializeOwned + Serialize + Debug>(bytes: &[u8]) {
    let Ok(read) = serde_json::from_slice::<T>(bytes) else { return };
    let written = serde_json::to_vec(&read).expect("what was read can be written");
    let again: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(format!("{read:?}"), format!("{again:?}"));
}

fuzz_target!(|bytes: &[u8]| {
    reads::<wire::LendRequest>(bytes);
    reads::<wire::TakeZeroing>(bytes);
    reads::<wire::FinishZeroing>(bytes);
    reads::<wire::Release>(bytes);
    reads::<wire::Configure>(bytes);
    reads::<wire::Watch>(bytes);
    reads::<wire::FindHolders>(bytes);
    reads::<wire::Revoke>(bytes);
    reads::<wire::Drain>(bytes);
    reads::<wire::LendForAgent>(bytes);
    reads::<wire::Status>(bytes);
    reads::<wire::Error>(bytes);
});
