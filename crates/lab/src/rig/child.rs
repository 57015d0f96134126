// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that do not outlive this one.
//!
//! # Safety
//!
//! The one unsafe call runs a function in the child between `fork` and `execve`, where only
//! async-signal-safe functions may be called: it makes one system call and touches no memory of the
//! parent's.
#![expect(unsafe_code, reason = "a child that is ended with its parent")]

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

use cli::exit::Failure;
use worker::Stop;

/// Between two looks at a program that runs.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Sends the child a signal when the thread that starts it ends, however that comes: what waits for
/// ever would keep its huge pages if this process is killed.
pub(crate) fn end_with_parent(command: &mut Command, signal: Signal) -> &mut Command {
    let with_parent = move || Ok(set_parent_process_death_signal(Some(signal))?);
    // SAFETY: the function makes the system call prctl(PR_SET_PDEATHSIG) and nothing else; an
    // error is turned into an `io::Error` without allocating. The standard library runs it after it
    // has changed the child's user, which would undo it.
    unsafe { command.pre_exec(with_parent) }
}

/// What a program printed.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a program in a process group of its own to its end, and returns what it printed. The wish
/// to stop, or the end of timeout, ends it with all that it has started.
pub(crate) fn watch(
    command: &mut Command,
    timeout: Duration,
    stop: &Stop,
) -> Result<Said, Failure> {
    // Files take any amount of text without a reader.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
    let mut child = end_with_parent(command, Signal::TERM)
        .spawn()
        .map_err(|error| Failure::failed(format!("{name}: {error}")))?;
    let begin = Instant::now();
    let status = wait(&mut child, || stop.is_set() || begin.elapsed() > timeout)?;
    if stop.is_set() {
        return Err(Failure::stopped(stop));
    }
    if !status.success() {
        let said = last_lines(&read(&mut stderr)?);
        let how = if begin.elapsed() > timeout {
            format!("did not end within {timeout:?}")
        } else {
            status.to_string()
        };
        return Err(Failure::failed(format!("{name}: {how}: {said}")));
    }
    Ok(Said { stdout: read(&mut stdout)?, stderr: read(&mut stderr)? })
}

/// Waits for a program, and ends it with all that it has started once that is wanted.
fn wait(child: &mut Child, mut is_over: impl FnMut() -> bool) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if is_over() {
            let _ = kill_process_group(Pid::from_child(child), Signal::TERM);
            return child.wait();
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn read(file: &mut File) -> io::Result<String> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The end of what a program said, in one line.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use cli::exit::Exit;

    const STOP_TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn watched_program_ends_at_a_stop_with_its_children() {
        let stop = Stop::default();
        // Both hold the other end: reading ends when both have ended.
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "exec 3<&0; sleep 60 & echo >&3; wait"]);
        command.stdin(OwnedFd::from(theirs));
        thread::scope(|scope| {
            scope.spawn(|| {
                ours.read_exact(&mut [0]).unwrap();
                stop.set();
            });
            let failure = watch(&mut command, STOP_TIMEOUT, &stop).unwrap_err();
            assert_eq!(failure.exit, Exit::Interrupted);
        });
        drop(command);
        ours.set_read_timeout(Some(STOP_TIMEOUT)).unwrap();
        assert_eq!(ours.read(&mut [0]).unwrap(), 0, "nobody is left");
    }

    #[test]
    fn program_output_is_separated_by_stream() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2"]);
        let said = watch(&mut command, STOP_TIMEOUT, &Stop::default()).unwrap();
        assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("out\n", "err\n"));
    }

    #[test]
    fn wait_has_a_timeout() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60"]);
        let failure = watch(&mut command, Duration::from_millis(20), &Stop::default()).unwrap_err();
        assert_eq!(failure.to_string(), "sh: did not end within 20ms: ");
    }

    #[test]
    fn a_program_that_fails_is_named_with_its_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        let failure = watch(&mut command, STOP_TIMEOUT, &Stop::default()).unwrap_err().to_string();
        assert_eq!(failure, "sh: exit status: 3: two");
    }
}
