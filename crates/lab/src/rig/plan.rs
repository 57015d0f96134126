// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every part of a demonstration or measurement needs to know.

use cli::exit::Failure;
use worker::Stop;

/// How often, by how many, and until when.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    pub(crate) threads: usize,
    pub(crate) stop: Stop,
}

impl Plan {
    /// Ends it after a signal.
    pub(crate) fn go_on(&self) -> Result<(), Failure> {
        if self.stop.is_set() { Err(Failure::stopped(&self.stop)) } else { Ok(()) }
    }
}
