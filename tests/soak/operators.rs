// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands and programs at random, a few at a time: the verbs as people and scripts type them, and
//! programs under the shim.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use prezero_tests::{Daemon, c};
use rand::Rng;
use rand::rngs::StdRng;
use wire::Status;

/// Commands that run at a time.
const MAX_COMMANDS: usize = 4;
/// A command that takes longer is hung: `wait` and `lend --wait` are told to wait 2 s at most.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// The documented exit codes of a verb with a daemon that is busy, full, or killed meanwhile: done,
/// failed, no daemon, refused, not enough.
const EXPECTED: [i32; 5] = [0, 1, 3, 4, 5];
/// Verbs that end with 2 where another has been faster: a name that is no longer lent, a lease that
/// has ended, a pool of another shape.
const LATE: [&str; 4] = ["lend", "return", "revoke", "set"];
/// Programs of tests/c: their output depends on how many pages others leave them, and some end by
/// SIGBUS of too few. The test checks that they end.
const PROGRAMS: [&str; 3] = ["shim", "private", "differ"];

#[derive(Debug)]
struct Running {
    words: Vec<String>,
    child: Child,
    begun: Instant,
    is_program: bool,
    errors: PathBuf,
}

/// The operator that types the commands.
#[derive(Debug)]
pub(crate) struct Operators {
    dir: PathBuf,
    programs: Vec<PathBuf>,
    running: Vec<Running>,
    /// Verbs that have ended.
    pub verbs: u64,
    /// Programs that have ended.
    pub programs_run: u64,
    born: u64,
}

impl Operators {
    pub(crate) fn new(dir: &Path) -> Self {
        let programs = PROGRAMS.iter().map(|name| c::compile(name, dir, &[])).collect();
        let running = Vec::new();
        Self { dir: dir.to_owned(), programs, running, verbs: 0, programs_run: 0, born: 0 }
    }

    /// Checks the running ones, and types the next one.
    pub(crate) fn step(&mut self, daemon: &Daemon, random: &mut StdRng) {
        self.look();
        if self.running.len() >= MAX_COMMANDS || random.random_bool(0.5) {
            return;
        }
        let is_program = random.random_bool(0.2);
        let words = if is_program { self.program(random) } else { verb(daemon, random) };
        self.born += 1;
        let errors = self.dir.join(format!("errors-{}", self.born));
        let mut command = daemon.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
        // Files, not pipes: borrowers are forked meanwhile, and would hold a pipe open.
        let errors_file = File::create(&errors).expect("a file");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors_file);
        let child = command.spawn().expect("prezero runs");
        self.running.push(Running { words, child, begun: Instant::now(), is_program, errors });
    }

    fn program(&self, random: &mut StdRng) -> Vec<String> {
        let program = &self.programs[random.random_range(0..self.programs.len())];
        let mut words: Vec<String> = ["run", "--log", "/dev/null"].map(Into::into).into();
        if random.random_bool(0.3) {
            words.push("--shm".to_owned());
        }
        words.extend(["--".to_owned(), program.display().to_string()]);
        words.push(random.random_range(1..1_000_000).to_string());
        words
    }

    fn look(&mut self) {
        let mut still = Vec::new();
        for mut running in self.running.drain(..) {
            match running.child.try_wait().expect("our own child") {
                Some(status) => {
                    running.ended(status);
                    self.verbs += u64::from(!running.is_program);
                    self.programs_run += u64::from(running.is_program);
                }
                None => {
                    let (words, begun) = (&running.words, running.begun);
                    assert!(begun.elapsed() < COMMAND_TIMEOUT, "hung: prezero {}", words.join(" "));
                    still.push(running);
                }
            }
        }
        self.running = still;
    }

    /// Waits until all have ended.
    pub(crate) fn rest(&mut self) {
        while !self.running.is_empty() {
            self.look();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Running {
    fn ended(&self, status: ExitStatus) {
        let errors = std::fs::read_to_string(&self.errors).unwrap_or_default();
        let words = self.words.join(" ");
        assert!(!errors.contains("panicked"), "prezero {words}:\n{errors}");
        let is_late = LATE.contains(&self.words[0].as_str()) && status.code() == Some(2);
        let known = status.code().is_some_and(|code| EXPECTED.contains(&code));
        let expected = self.is_program || is_late || known;
        assert!(expected, "prezero {words} ended with {status}:\n{errors}");
        std::fs::remove_file(&self.errors).expect("a file of ours");
    }
}

impl Drop for Operators {
    fn drop(&mut self) {
        for running in &mut self.running {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

fn a_lease(daemon: &Daemon, random: &mut StdRng) -> Option<u64> {
    let status = client::Client::connect(daemon.socket()).and_then(|mut client| client.status());
    let Status { loans, .. } = status.ok()?;
    (!loans.is_empty()).then(|| loans[random.random_range(0..loans.len())].lease.0)
}

/// One of the verbs, with words that are good.
fn verb(daemon: &Daemon, random: &mut StdRng) -> Vec<String> {
    let agents = daemon.agent_socket();
    let agents = agents.to_str().expect("a plain path");
    let name = format!("soak/{}", random.random_range(0..6));
    let pages = random.random_range(1..40).to_string();
    let size = format!("{}M", 2 * random.random_range(1..=12));
    let words: Vec<&str> = match random.random_range(0..27) {
        0 => vec!["status"],
        1 => vec!["status", "--json"],
        2 => vec!["zero"],
        3 => vec!["zero", "-j", "2", &pages],
        4 => vec!["zero", "--sched-idle", "--nice", "10", &pages],
        5 => vec!["release", &pages],
        6 => vec!["release", "--json"],
        7 => vec!["drain"],
        8 | 9 => vec!["drain", "--end"],
        10 => vec!["watch", "--once", "--json"],
        11 => vec!["wait", "--ready", &size, "--timeout", "2s"],
        12 | 13 => vec!["lend", "--name", &name, "--agent-socket", agents, "--whole", &size],
        14 => vec!["lend", "--name", &name, "--agent-socket", agents, &size],
        15 | 16 => vec!["return", "--agent-socket", agents, &name],
        17 => vec!["loans", "--agent-socket", agents, "--json"],
        18 => vec!["lend", &size, "--", "sleep", "0.1"],
        19 => vec!["lend", "--wait", "2s", &size, "--", "head", "-c", "100", "{path}"],
        20 => vec!["lend", "--owner", "o", "--keep", "2s", &size, "--", "true"],
        21 => vec!["holders"],
        22 | 23 => {
            let owner = ["--owner", "soak/o", "--keep", "5s"];
            let by_name = ["lend", "--name", &name, "--agent-socket", agents];
            [&by_name[..], &owner, &[&size]].concat()
        }
        24 => vec!["return", "--discard", "--agent-socket", agents, &name],
        25 => vec!["set", "--pages-per-block", "1", "ready_low=20", "ready_high=40"],
        _ => {
            let Some(lease) = a_lease(daemon, random) else { return vec!["status".to_owned()] };
            return vec!["revoke".to_owned(), lease.to_string()];
        }
    };
    words.into_iter().map(ToOwned::to_owned).collect()
}
