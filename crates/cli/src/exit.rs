// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exit codes and the one line that explains them.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use serde_json::json;

/// The exit codes. They are part of the interface: scripts depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// The operation failed; the line on standard error says how.
    Failed = 1,
    /// Bad input: nothing was changed.
    Usage = 2,
    /// No daemon listens.
    NoDaemon = 3,
    /// The daemon refused: permission or quota.
    Refused = 4,
    /// Not enough memory.
    NotEnough = 5,
    /// `serve`: the provider that was forced is not there.
    NoProvider = 6,
    /// `lend`, `run`: the command exists but cannot be run.
    CannotRun = 126,
    /// `lend`, `run`: the command does not exist. `bench`, `demo`: prezero-lab is not installed.
    NoCommand = 127,
    /// Interrupted by a signal; finished work is kept.
    Interrupted = 130,
}

/// The same table as `--help` prints it; a test compares the two.
pub const TABLE: &str = "\
Exit codes:
  0    done
  1    the operation failed
  2    bad input, nothing was changed
  3    no daemon listens at the socket
  4    the daemon refused: permission or quota
  5    not enough memory
  6    serve: the provider that was forced is not there
  126  lend, run: the command cannot be run
  127  lend, run: the command does not exist; bench, demo: prezero-lab is not installed
  130  interrupted by a signal; what was done is kept
  lend and run give the command their own place, so any other code is the command's.";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a verb ended early: one line for people, one code for scripts.
#[derive(Debug)]
pub struct Failure {
    /// The code.
    pub exit: Exit,
    message: Option<String>,
    /// The daemon's own error, as it came.
    refusal: Option<Box<wire::Error>>,
}

/// How a verb ends.
pub type Outcome = Result<Exit, Failure>;

impl Failure {
    /// An end with that code, and the line that says why.
    pub fn new(exit: Exit, message: impl Display) -> Self {
        Self { exit, message: Some(message.to_string()), refusal: None }
    }

    /// The operation failed.
    pub fn failed(message: impl Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// Bad input.
    pub fn usage(message: impl Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// A signal asked to stop, and its sender knows.
    pub fn interrupted() -> Self {
        Self { exit: Exit::Interrupted, message: None, refusal: None }
    }

    /// Prints the line and hands out the code. Where records are JSON, so is the error, on standard
    /// error: `error` is the line, `exit` the code, and `refusal` what the daemon said.
    pub fn report(self) -> Exit {
        let Some(message) = self.message else { return self.exit };
        if is_json(std::env::args_os()) {
            let code = self.exit as u8;
            let refusal = self.refusal;
            let line = json!({ "error": message, "exit": code, "refusal": refusal });
            crate::output::complain(&line.to_string());
        } else {
            crate::output::note(&message);
        }
        self.exit
    }
}

/// Whether a command line asks for JSON; what follows `--` is another's.
fn is_json(mut words: impl Iterator<Item = OsString>) -> bool {
    words.by_ref().take_while(|word| word != "--").any(|word| word == "--json")
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or("interrupted"))
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        let exit = match &error {
            client::Error::NoDaemon { .. } => Exit::NoDaemon,
            client::Error::Refused(refused) => match refused {
                wire::Error::NotPermitted { .. }
                | wire::Error::QuotaExceeded { .. }
                | wire::Error::ScopeQuotaExceeded { .. }
                | wire::Error::TooManyNames { .. } => Exit::Refused,
                wire::Error::BadValue { .. }
                | wire::Error::NoSuchPool { .. }
                | wire::Error::NameTaken { .. }
                | wire::Error::NoSuchName { .. } => Exit::Usage,
                wire::Error::NotEnough { .. } | wire::Error::NothingToZero => Exit::NotEnough,
                wire::Error::NoSuchLease { .. }
                | wire::Error::NoSuchJob { .. }
                | wire::Error::NameBusy { .. }
                | wire::Error::Failed { .. } => Exit::Failed,
            },
            client::Error::Kernel(kernel) if kernel.is_no_space() => Exit::NotEnough,
            _ => Exit::Failed,
        };
        let refusal = match &error {
            client::Error::Refused(refused) => Some(Box::new(refused.clone())),
            _ => None,
        };
        Self { refusal, ..Self::new(exit, error) }
    }
}

impl From<linux::Error> for Failure {
    fn from(error: linux::Error) -> Self {
        let exit = match () {
            () if error.is_no_space() => Exit::NotEnough,
            () if error.is_denied() => Exit::Refused,
            () => Exit::Failed,
        };
        Self::new(exit, error)
    }
}

impl From<worker::Error> for Failure {
    fn from(error: worker::Error) -> Self {
        match error {
            worker::Error::Client(error) => error.into(),
            worker::Error::Kernel(error) => error.into(),
            worker::Error::Io(error) => error.into(),
            worker::Error::Method(_) => Self::usage(error),
            _ => Self::failed(error),
        }
    }
}

impl From<worker::Unfinished> for Failure {
    fn from(unfinished: worker::Unfinished) -> Self {
        unfinished.error.into()
    }
}

impl From<worker::Exit> for Exit {
    fn from(exit: worker::Exit) -> Self {
        match exit {
            worker::Exit::Done => Self::Done,
            worker::Exit::NotEnough => Self::NotEnough,
            worker::Exit::Interrupted => Self::Interrupted,
        }
    }
}

impl From<daemon::Error> for Failure {
    fn from(error: daemon::Error) -> Self {
        let exit = match &error {
            daemon::Error::NoProvider { .. } => Exit::NoProvider,
            _ => Exit::Failed,
        };
        Self::new(exit, error)
    }
}

impl From<io::Error> for Failure {
    /// A reader that has gone away (`prezero status | head -1`) is no failure.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self { exit: Exit::Done, message: None, refusal: None };
        }
        Self::failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{Bytes, JobId, Uid};

    #[test]
    fn the_help_names_every_code() {
        for exit in [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::NoDaemon,
            Exit::Refused,
            Exit::NotEnough,
            Exit::NoProvider,
            Exit::CannotRun,
            Exit::NoCommand,
            Exit::Interrupted,
        ] {
            let line = format!("\n  {:<4} ", exit as u8);
            assert!(TABLE.contains(&line), "{exit:?}");
        }
    }

    #[test]
    fn json_flag_counts_only_before_an_external_command() {
        let is = |line: &str| is_json(line.split(' ').map(OsString::from));
        assert!(is("prezero status --json") && !is("prezero lend 2M -- x --json"));
    }

    #[test]
    fn a_worker_and_the_table_mean_the_same_codes() {
        for exit in [worker::Exit::Done, worker::Exit::NotEnough, worker::Exit::Interrupted] {
            assert_eq!(Exit::from(exit) as u8, exit as u8);
        }
    }

    #[test]
    fn every_refusal_has_the_code_that_the_table_promises() {
        let pool = || wire::Error::NoSuchPool { wanted: String::new(), configured: String::new() };
        let bad = || wire::Error::BadValue { field: String::new(), reason: String::new() };
        for (refused, exit) in [
            (wire::Error::NothingToZero, Exit::NotEnough),
            (pool(), Exit::Usage),
            (bad(), Exit::Usage),
            (wire::Error::NoSuchJob { job: JobId(1) }, Exit::Failed),
            (
                wire::Error::QuotaExceeded {
                    uid: Uid(1),
                    held_bytes: Bytes(1),
                    quota_bytes: Bytes(1),
                    asked_bytes: Bytes(1),
                },
                Exit::Refused,
            ),
        ] {
            assert_eq!(Failure::from(client::Error::Refused(refused)).exit, exit);
        }
    }
}
