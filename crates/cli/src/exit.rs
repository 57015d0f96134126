// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exit codes and the one line that explains them.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGTERM};
use worker::Stop;

use crate::installed;

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
    /// Ended by SIGHUP, or by the end of the terminal; finished work is kept.
    HungUp = 129,
    /// Ended by SIGINT; finished work is kept.
    Interrupted = 130,
    /// Ended by SIGTERM; finished work is kept.
    Terminated = 143,
}

impl Exit {
    /// The code after a stop: as a shell reports the signal that asked for it.
    #[must_use]
    pub fn after(stop: &Stop) -> Self {
        match stop.signal() {
            Some(SIGHUP) => Self::HungUp,
            Some(SIGTERM) => Self::Terminated,
            _ => Self::Interrupted,
        }
    }

    /// Whether it is one of those.
    #[must_use]
    pub fn is_stop(self) -> bool {
        matches!(self, Self::HungUp | Self::Interrupted | Self::Terminated)
    }
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
  129  ended by SIGHUP or the end of the terminal; what was done is kept
  130  ended by SIGINT (Ctrl-C); what was done is kept
  143  ended by SIGTERM; what was done is kept
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
    pub fn stopped(stop: &Stop) -> Self {
        Self { exit: Exit::after(stop), message: None, refusal: None }
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
        Self { refusal, ..Self::new(exit, words_of(&error)) }
    }
}

/// An error of the library in the words of this program and this machine.
pub(crate) fn words_of(error: &client::Error) -> String {
    words_within(error, client::ANSWER_TIMEOUT)
}

/// The same of a client that waits for its answers for that time.
pub(crate) fn words_within(error: &client::Error, timeout: Duration) -> String {
    match error {
        client::Error::NoDaemon { path, source } => {
            let advice = installed::start_advice(path);
            format!("no daemon at {}: {source}; {advice}", path.display())
        }
        client::Error::Broken { method, source } if is_timeout(source) => {
            // A loan that waits for its pages may take longer.
            let time = match *method {
                "io.prezero.Lend" => "in time".to_owned(),
                _ if timeout < Duration::from_secs(1) => {
                    format!("within {} ms", timeout.as_millis())
                }
                _ => format!("within {} s", timeout.as_secs()),
            };
            format!("the daemon did not answer {method} {time}: it hangs, or is stopped")
        }
        error => error.to_string(),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
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
            Exit::HungUp,
            Exit::Interrupted,
            Exit::Terminated,
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
