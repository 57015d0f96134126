// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `prezero` command: one binary, one file per verb.
//!
//! A verb parses its arguments with clap ([`command_line`], and [`shared`] for the common ones). It
//! talks to the daemon through the library that every other program uses ([`client`]), and prints
//! records ([`output`]): the same ones for people and, with `--json`, for programs. Errors are one
//! line on standard error and an exit code out of one table ([`exit`]). Of the verbs, `zero` *is* a
//! worker ([`worker`]) and `serve` is the daemon. `bench` and `demo` are a program of
//! their own, prezero-lab, which measures the public parts of this library and speaks as it does.

mod command_line;
#[cfg(test)]
mod documents;
pub mod environment;
pub mod exit;
pub mod inherited;
pub mod installed;
pub mod machine;
pub mod manual;
pub mod output;
mod parse;
mod placement;
mod program;
pub mod shared;
mod verbs;

use std::process::ExitCode;

use crate::command_line::Cli;
use crate::exit::{Exit, Outcome};

/// All of `prezero`.
#[must_use]
pub fn main() -> ExitCode {
    run(|cli: Cli| cli.verb.run())
}

/// Parses the command line, does what it says, and tells what went wrong.
pub fn run<T: clap::Parser>(work: impl FnOnce(T) -> Outcome) -> ExitCode {
    let outcome = match parse::parse() {
        Ok(Some(parsed)) => work(parsed),
        Ok(None) => Ok(Exit::Done),
        Err(failure) => Err(failure),
    };
    outcome.unwrap_or_else(exit::Failure::report).into()
}
