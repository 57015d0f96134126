// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Running other programs, with errors that name the command.

use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// The command line as a person would type it, for messages.
pub(crate) fn shown(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// A command with its arguments, to be run in `dir`.
pub(crate) fn new<I, S>(dir: &Path, program: &str, args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(program);
    command.current_dir(dir).args(args);
    command
}

/// Runs it with our own stdout and stderr; any status but 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// Runs it and returns status, stdout and stderr, whatever the status is.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let line = shown(command);
    command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{line}`"))
}

/// Runs it and returns its stdout; any status but 0 is an error with its stderr.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    let line = shown(command);
    let output = output(command)?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` ended with {}: {}", output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
