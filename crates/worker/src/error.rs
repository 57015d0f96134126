// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ends a worker early.

use std::io;

use clear::Fault;

/// The reasons why a worker left work undone. What it had done is reported and kept, but for the
/// job at which it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The daemon refused, is absent, or was silent.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A call into the kernel failed.
    #[error(transparent)]
    Kernel(#[from] linux::Error),
    /// A forced method that this CPU does not have.
    #[error("{0}")]
    Method(String),
    /// Clearing could not be set up.
    #[error("{0}")]
    Clearing(String),
    /// The hardware cannot write a page.
    #[error("{0}; the block is not ready")]
    Poisoned(Fault),
    /// Signals or the CPU's description.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What a worker's functions give.
pub type Result<T, E = Error> = std::result::Result<T, E>;
