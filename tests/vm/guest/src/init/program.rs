// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs one program, and leaves no process behind.

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use vm_guest::{Module, Outcome, Program};

/// Runs `program`, hands each line of its output to `line`, and returns how it
/// ended and how long it took.
pub(crate) fn run(program: &Program, mut line: impl FnMut(String)) -> (Outcome, Duration) {
    let start = Instant::now();
    let outcome = match spawn(program) {
        Ok(child) => follow(child, Duration::from_secs(program.timeout_s), &mut line),
        Err(error) => Outcome::NotStarted { reason: error.to_string() },
    };
    bury_the_rest();
    (outcome, start.elapsed())
}

fn spawn(program: &Program) -> io::Result<(Child, io::PipeReader)> {
    let (path, arguments) = program
        .argv
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "empty argv"))?;
    fs::create_dir_all(&program.dir)?;
    // One pipe for both: the order of lines is the order of writing.
    let (reader, writer) = io::pipe()?;
    let child = Command::new(path)
        .args(arguments)
        .env_clear()
        .env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
        .env("HOME", "/tmp")
        .env("TMPDIR", "/tmp")
        .envs(&program.env)
        .current_dir(&program.dir)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()?;
    Ok((child, reader))
}

fn follow(
    (mut child, reader): (Child, io::PipeReader),
    limit: Duration,
    line: &mut impl FnMut(String),
) -> Outcome {
    let deadline = Instant::now() + limit;
    let (sender, lines) = mpsc::channel();
    // Ends at the end of the pipe, which `bury_the_rest` brings about at the latest.
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            if sender.send(text).is_err() {
                return;
            }
            bytes.clear();
        }
    });
    loop {
        // A grandchild may hold the pipe open for longer than the program
        // lives: look at both, four times a second.
        match lines.recv_timeout(Duration::from_millis(250)) {
            Ok(text) => line(text),
            Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(10)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match child.try_wait() {
            Ok(Some(status)) => {
                while let Ok(text) = lines.recv_timeout(Duration::from_millis(250)) {
                    line(text);
                }
                return match (status.code(), status.signal()) {
                    (Some(status), _) => Outcome::Exit { status },
                    (None, signal) => Outcome::Signal { signal: signal.unwrap_or(0) },
                };
            }
            Ok(None) if Instant::now() >= deadline => {
                bury_the_rest();
                while let Ok(text) = lines.recv_timeout(Duration::from_millis(250)) {
                    line(text);
                }
                return Outcome::Timeout;
            }
            Ok(None) => {}
            Err(error) => return Outcome::NotStarted { reason: format!("wait: {error}") },
        }
    }
}

/// Kills and reaps every process but this one.
fn bury_the_rest() {
    // "The group of PID 1" is kill(2)'s -1: every process that we may signal, the caller excluded.
    // It fails when there is none.
    let _ = kill_process_group(Pid::INIT, Signal::KILL);
    while let Ok(Some(_)) = wait(WaitOptions::empty()) {}
}

/// Loads an uncompressed module by the shell's own tools.
pub(crate) fn load_module(Module { path, parameters }: &Module) -> io::Result<()> {
    let mut insmod = Command::new("/bin/busybox");
    let output = insmod.args(["insmod", path]).args(parameters.split_whitespace()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("insmod {path}: {text}")))
}
