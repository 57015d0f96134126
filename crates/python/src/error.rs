// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client's errors as Python's: each an `OSError` with the errno that C callers get.

use client::Error as ClientError;
use pyo3::exceptions::PyOSError;
use pyo3::{PyErr, create_exception};

create_exception!(prezero, Error, PyOSError, "What went wrong between a program and the daemon.");
create_exception!(prezero, NoDaemon, Error, "No daemon listens at the socket.");
create_exception!(prezero, Refused, Error, "The daemon refused: its reason is `strerror`.");

pub(crate) fn raised(error: &ClientError) -> PyErr {
    let arguments = (error.errno().raw_os_error(), error.to_string());
    match error {
        ClientError::NoDaemon { .. } => NoDaemon::new_err(arguments),
        ClientError::Refused(_) => Refused::new_err(arguments),
        _ => Error::new_err(arguments),
    }
}
