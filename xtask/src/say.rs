// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one place that writes to the terminal.

#![expect(clippy::print_stdout, reason = "results of xtask are read on stdout")]

use std::fmt::Display;

/// The current step, for a person who waits.
pub(crate) fn step(what: impl Display) {
    eprintln!("xtask: {what}");
}

/// A result: a path, a table row, a count.
pub(crate) fn result(line: impl Display) {
    println!("{line}");
}

/// Why the verb failed, cause by cause.
pub(crate) fn error(error: &anyhow::Error) {
    eprintln!("xtask: error: {error:#}");
}
