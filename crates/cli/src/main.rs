// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `prezero` command: one binary, one file per verb.
//!
//! A verb parses its arguments with clap ([`command_line`]), talks to the daemon through the library that
//! every other program uses ([`client`]) and prints records ([`output`]): the same ones for people
//! and, with `--json`, for programs. What goes wrong is one line on standard error and an exit code
//! out of one table ([`exit`]). Of the verbs, `zero` *is* a worker ([`worker`]), `serve` is the
//! daemon, and `demo` embeds one. What has to be asked of the machine is asked through
//! `daemon::host`.

mod command_line;
mod exit;
mod output;
mod shared;
mod signals;
mod stage;
mod verbs;
mod worker;

use std::process::ExitCode;

use crate::exit::Exit;

fn main() -> ExitCode {
    let outcome = match command_line::parse() {
        Ok(Some(verb)) => verb.run(),
        Ok(None) => Ok(Exit::Done),
        Err(failure) => Err(failure),
    };
    outcome.unwrap_or_else(exit::Failure::tell).into()
}
