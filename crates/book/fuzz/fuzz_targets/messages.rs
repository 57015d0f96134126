// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes as the parameters of each method, as a call, and as a reply: they are refused, or mean
//! the same when they are written out and read again.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::{Call, Parameters};

fn reads<T: DeserializeOwned + Serialize + Debug>(bytes: &[u8]) {
    let Ok(read) = serde_json::from_slice::<T>(bytes) else { return };
    let written = serde_json::to_vec(&read).expect("what was read can be written");
    let again: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(format!("{read:?}"), format!("{again:?}"));
}

/// A call in its envelope, and a reply to it.
fn calls<P: Parameters>(bytes: &[u8]) {
    let Ok(call) = Call::read(bytes) else { return };
    let more = call.more;
    if call.method == P::NAME
        && let Ok(parameters) = call.parameters::<P>()
    {
        let written = wire::call(&parameters, more).expect("what was read can be written");
        let (end, message) = written.split_last().expect("an end");
        assert!(*end == wire::END && !message.contains(end), "an end within the message");
        let again = Call::read(message).expect("what was written is a call");
        assert_eq!((again.method.as_str(), again.more), (P::NAME, more));
        let again = again.parameters::<P>().expect("what was written can be read");
        assert_eq!(format!("{parameters:?}"), format!("{again:?}"));
    }
}

fn replies<P: Parameters>(bytes: &[u8]) {
    let written = match wire::read_reply::<P>(bytes) {
        Ok(Ok(reply)) => wire::reply(&reply.parameters, reply.continues),
        Ok(Err(refused)) => wire::refusal(&refused),
        Err(_) => return,
    };
    let written = written.expect("what was read can be written");
    let message = written.strip_suffix(&[wire::END]).expect("an end");
    let read = |message| format!("{:?}", wire::read_reply::<P>(message).expect("a reply"));
    assert_eq!(read(message), read(bytes));
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
    reads::<wire::agent::Return>(bytes);
    reads::<wire::agent::ListLoans>(bytes);
    reads::<wire::Status>(bytes);
    reads::<wire::Error>(bytes);
    calls::<wire::LendRequest>(bytes);
    calls::<wire::Configure>(bytes);
    calls::<wire::Watch>(bytes);
    calls::<wire::agent::ListLoans>(bytes);
    calls::<wire::GetInterfaceDescription>(bytes);
    replies::<wire::LendRequest>(bytes);
    replies::<wire::GetStatus>(bytes);
    replies::<wire::Watch>(bytes);
    replies::<wire::agent::ListLoans>(bytes);
});
