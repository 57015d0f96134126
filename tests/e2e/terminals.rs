// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verbs at a terminal: their end with it, their exit codes after signals, and the width of their
//! lines.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prezero_tests::Daemon;
use prezero_tests::daemon::{WAIT_TIMEOUT, binary};
use prezero_tests::terminal::Terminal;

/// How long a verb may live on after its terminal.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Verbs that run until something happens, which does not happen here, and what each shows first.
const INTERACTIVE: [(&[&str], &str); 5] = [
    (&["top"], "provider plain"),
    (&["top", "--json"], "\"provider\""),
    (&["watch"], "ready"),
    (&["wait", "--ready", "1T"], ""),
    (&["lend", "16M", "--wait", "1h", "--", "true"], ""),
];

fn plain() -> Daemon {
    Daemon::start_with(None, "", &["--plain", "--pool", "page_size=2M,max=16M"])
}

/// A verb on a terminal of its own.
struct Verb(Terminal);

impl Verb {
    fn start(daemon: &Daemon, words: &[&str], columns: u16) -> Self {
        let mut command = Command::new(binary());
        command.args(words).env("PREZERO_SOCKET", daemon.socket());
        Self(Terminal::start(&command, columns, 24))
    }

    /// Reads until the verb has shown that text.
    fn wait_for(&self, part: &str) {
        let mut reader = self.0.other_end();
        let (mut seen, mut bytes) = (String::new(), [0; 4096]);
        while !seen.contains(part) {
            let read = reader.read(&mut bytes).expect("it has not ended");
            seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    /// Whether it ends in time.
    fn ends_within(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while self.0.child.try_wait().expect("our own child").is_none() {
            if Instant::now() >= deadline {
                self.0.child.kill().expect("our own child");
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// CPU time used so far, in ticks.
    fn ticks(&self) -> u64 {
        let pid = self.0.child.id();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let field = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
        field(11).unwrap_or(0) + field(12).unwrap_or(0)
    }
}

// Promise P322 (operator): Interactive verbs end within a second of their terminal, with or without
// SIGHUP, and with the code of the signal that ended them.
#[test]
fn interactive_verbs_end_with_their_terminal() {
    let daemon = plain();
    for (words, shown) in INTERACTIVE {
        let mut verb = Verb::start(&daemon, words, 80);
        if shown.is_empty() {
            std::thread::sleep(Duration::from_millis(300));
        } else {
            verb.wait_for(shown);
        }
        verb.0.close();
        assert!(verb.ends_within(END_TIMEOUT), "{words:?} lives on, at {} ticks", verb.ticks());
    }
}

/// As ssh leaves a program whose SIGHUP is lost: in another session than its terminal's.
// Promise P322.
#[test]
fn top_without_a_hangup_signal_ends_with_its_terminal() {
    let daemon = plain();
    let mut verb = Verb::start(&daemon, &["top"], 80);
    verb.wait_for("provider plain");
    let pid = Pid::from_raw(i32::try_from(verb.0.child.id()).expect("one"));
    // The end of the terminal comes while the signal that tells it cannot.
    kill(pid, Signal::SIGSTOP).expect("our own child");
    verb.0.close();
    kill(pid, Signal::SIGCONT).expect("our own child");
    assert!(verb.ends_within(END_TIMEOUT), "it lives on, at {} ticks", verb.ticks());
}

// Promise P322.
#[test]
fn verbs_end_with_the_code_of_the_signal_that_ended_them() {
    let daemon = plain();
    for (words, _) in &INTERACTIVE[1..] {
        for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)]
        {
            // A shell has background jobs ignore SIGINT, and so would the verb.
            let mut command = Command::new("env");
            command
                .arg("--default-signal=INT")
                .arg(binary())
                .args(*words)
                .env("PREZERO_SOCKET", daemon.socket());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().expect("prezero runs");
            std::thread::sleep(Duration::from_millis(200));
            let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process"));
            kill(pid, signal).expect("our own child");
            let deadline = Instant::now() + WAIT_TIMEOUT;
            let status = loop {
                if let Some(status) = child.try_wait().expect("our own child") {
                    break status;
                }
                assert!(Instant::now() < deadline, "{words:?} does not end at {signal}");
                std::thread::sleep(Duration::from_millis(10));
            };
            // A shell reports the death by signal N as 128 + N.
            let death = std::os::unix::process::ExitStatusExt::signal(&status);
            let reported = status.code().or(death.map(|signal| 128 + signal));
            assert_eq!(reported, Some(code), "{words:?} at {signal}");
        }
    }
}

// Promise P323 (operator): Tables, sentences and progress fit the terminal. A line names the
// columns for which there is no room.
#[test]
fn printed_lines_fit_the_terminal() {
    let daemon = plain();
    daemon.zero("max");
    for columns in [60, 80, 120] {
        for words in [&["status"][..], &["holders"], &["zero"]] {
            let mut verb = Verb::start(&daemon, words, columns);
            let mut reader = verb.0.other_end();
            assert!(verb.ends_within(WAIT_TIMEOUT), "{words:?} does not end");
            let mut text = Vec::new();
            verb.0.close();
            // The end of the terminal is an error (EIO) behind its last line.
            let _ = reader.read_to_end(&mut text);
            let text = String::from_utf8_lossy(&text).into_owned();
            // A progress line is written over itself.
            let lines = text.split(['\n', '\r']).filter(|line| !line.contains('\u{1b}'));
            let wide: Vec<_> =
                lines.filter(|line| line.chars().count() > usize::from(columns)).collect();
            assert!(wide.is_empty(), "{words:?} at {columns} columns: {wide:#?}");
            assert!(words != ["status"] || text.contains("READY"), "{text}");
        }
    }
}
