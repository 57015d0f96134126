// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon refuses with, where it is to refuse.

use std::fmt::Debug;

use client::Error;

/// What a call was refused with.
///
/// # Panics
/// If it was not refused by the daemon.
pub fn refusal<T: Debug>(result: Result<T, Error>) -> wire::Error {
    match result {
        Err(Error::Refused(error)) => error,
        other => panic!("not refused: {other:?}"),
    }
}
