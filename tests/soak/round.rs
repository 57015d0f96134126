// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Both daemons, all that happens to them in one round, and that it leaves nothing.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use prezero_tests::scrape::ASK;
use prezero_tests::storm::{Crowd, LEND_GROUP, Seen};
use prezero_tests::{Daemon, Page, process};
use rand::Rng;
use rand::rngs::StdRng;
use serde::Serialize;
use testkit::hugepages::Guard;

use crate::machine::{Doing, Machine};
use crate::operators::Operators;

/// Borrowers of each daemon that live at a time.
const BORROWERS: usize = 12;
/// The time limit for pages on their way back, on a machine with two CPUs and workers of the idle
/// class.
const RETURN_TIMEOUT: Duration = Duration::from_secs(30);
const STEP_PERIOD: Duration = Duration::from_millis(35);

/// The events and their targets, since the beginning.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(crate) struct Done {
    borrowers_died: u64,
    verbs: u64,
    programs: u64,
    daemon_killed: u64,
    daemon_restarted: u64,
    upgraded: u64,
    log_full: u64,
    reloaded: u64,
    workers_killed: u64,
    pool_resized: u64,
    cpus_taken: u64,
    clock_stepped: u64,
    scrapes: u64,
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(self).expect("numbers"))
    }
}

/// Everything, in the order in which it has to end: the elder has the machine's pages and puts the
/// pool back, and after that the pool must stay the same.
#[derive(Debug)]
pub(crate) struct Soak {
    crowds: [Crowd; 2],
    operators: Operators,
    machine: Machine,
    mortal: Daemon,
    elder: Daemon,
    builds: Vec<PathBuf>,
    build: usize,
    random: StdRng,
    done: Done,
}

/// Where a daemon of that variant serves metrics.
fn metrics(dir: &Path, variant: u32) -> PathBuf {
    dir.join(format!("metrics-{}", variant % 2))
}

/// Two fixed shapes, or blocks of all sizes; what a reload changes is by `variant`.
fn config(elder: bool, variant: u32, dir: Option<&Path>) -> String {
    let ready = 40 + variant % 3 * 10;
    let pools = if elder {
        let small = format!("pages_per_block = 1\nmax = 100\nready_low = {ready}\nready_high = 80");
        let large = format!("pages_per_block = 4\nmax = 120\nready_high = {}", 2 * ready);
        Page::Mib2.pool(&small) + &Page::Mib2.pool(&large)
    } else {
        Page::Mib2.pool(&format!("max = 220\nready = \"{}M\"", 4 * ready))
    };
    let workers = ["max = 1", "max = 2\nsched_idle = false", "max = 2\npause_above_pressure = 60"];
    let workers = workers[(variant / 3 % 3) as usize];
    let served = dir.map(|dir| metrics(dir, variant).display().to_string());
    let metrics = served.map(|path| format!("[metrics]\nlisten = \"{path}\"\n"));
    let metrics = metrics.unwrap_or_default();
    format!("lend_group = \"{LEND_GROUP}\"\n{pools}[workers]\n{workers}\n{metrics}")
}

/// The same command for another build.
fn with_build(command: &Command, build: &Path) -> Command {
    let mut other = Command::new(build);
    other.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    other
}

impl Soak {
    pub(crate) fn start(pages: Guard, builds: Vec<PathBuf>, random: StdRng) -> Self {
        let mut elder = Daemon::start_with(Some(pages), &config(true, 0, None), &[]);
        let mortal = Daemon::start_with(None, &config(false, 0, None), &[]);
        let machine = Machine::new(elder.scratch());
        elder.terminate();
        elder.spawn_as(|command| machine.on_its_clock(command));
        elder.wait_until_up();
        let operators = Operators::new(elder.scratch());
        let crowds = [Crowd::new(1), Crowd::new(2)];
        let done = Done::default();
        Self { crowds, operators, machine, mortal, elder, builds, build: 0, random, done }
    }

    /// The daemon that lives to the end.
    pub(crate) fn elder(&self) -> &Daemon {
        &self.elder
    }

    pub(crate) fn done(&self) -> Done {
        let died = self.crowds.iter().map(|crowd| crowd.died).sum();
        let (verbs, programs) = (self.operators.verbs, self.operators.programs_run);
        Done { borrowers_died: died, verbs, programs, ..self.done }
    }

    /// Lets everything run for this long.
    pub(crate) fn rage(&mut self, lasts: Duration) -> Seen {
        let begun = Instant::now();
        let mut seen = Seen::default();
        let mut next_death = Duration::from_secs(2);
        while begun.elapsed() < lasts {
            for (crowd, daemon) in self.crowds.iter_mut().zip([&self.elder, &self.mortal]) {
                let socket = daemon.socket();
                crowd.fill(BORROWERS, |borrower| {
                    borrower.live(&socket, |_, loan, memory| drop((loan, memory)));
                });
            }
            std::thread::sleep(STEP_PERIOD);
            for crowd in &mut self.crowds {
                seen.add(crowd.gather());
                crowd.thin(&mut self.random);
            }
            let of = if self.random.random_bool(0.5) { &self.elder } else { &self.mortal };
            self.operators.step(of, &mut self.random);
            match self.machine.disturb(&mut self.random) {
                Doing::Resized => self.done.pool_resized += 1,
                Doing::Burdened => self.done.cpus_taken += 1,
                Doing::ClockStepped => self.done.clock_stepped += 1,
                Doing::Nothing => {}
            }
            self.vex();
            if self.random.random_bool(0.2) {
                self.scrape();
            }
            if begun.elapsed() >= next_death {
                self.die();
                let pause = self.random.random_range(500..6000);
                next_death = begun.elapsed() + Duration::from_millis(pause);
            }
        }
        for crowd in &mut self.crowds {
            crowd.end();
            seen.add(crowd.gather());
        }
        seen
    }

    /// What happens to both daemons.
    fn vex(&mut self) {
        for elder in [true, false] {
            let daemon = if elder { &self.elder } else { &self.mortal };
            match self.random.random_range(0..400) {
                0 | 1 => {
                    let variant = self.random.random_range(0..9);
                    daemon.write_config(&config(elder, variant, Some(daemon.scratch())));
                    daemon.signal(Signal::SIGHUP);
                    self.done.reloaded += 1;
                }
                2 | 3 => {
                    for worker in process::children(daemon.pid()) {
                        self.done.workers_killed +=
                            u64::from(kill(worker, Signal::SIGKILL).is_ok());
                    }
                }
                _ => {}
            }
        }
    }

    /// Scrapes the daemon that serves metrics just now, or only begins to.
    fn scrape(&mut self) {
        let daemon = if self.random.random_bool(0.5) { &self.elder } else { &self.mortal };
        let at = metrics(daemon.scratch(), self.random.random_range(0..2));
        // None is there before the first reload, and after one elsewhere.
        let Ok(mut stream) = UnixStream::connect(at) else { return };
        stream.set_read_timeout(Some(RETURN_TIMEOUT)).expect("a good time");
        let asked = if self.random.random_bool(0.8) { ASK } else { &ASK[..20] };
        let mut text = String::new();
        let answered = stream
            .write_all(asked)
            .and_then(|()| if asked == ASK { stream.read_to_string(&mut text) } else { Ok(0) });
        match answered {
            Ok(0) => {}
            Ok(_) => {
                assert!(text.starts_with("HTTP/1.1 200"), "{text}");
                // Else it ended, or went elsewhere, in the midst of it.
                self.done.scrapes += u64::from(text.ends_with("# EOF\n"));
            }
            // It was killed, or serves elsewhere now.
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "a scrape hangs"),
        }
    }

    /// What happens to the one that is not to live: an end, and the next of either build.
    fn die(&mut self) {
        if self.random.random_bool(0.7) {
            self.mortal.kill();
            self.done.daemon_killed += 1;
        } else {
            self.mortal.terminate();
            self.done.daemon_restarted += 1;
        }
        if self.random.random_bool(0.4) {
            self.build = (self.build + 1) % self.builds.len();
            self.done.upgraded += 1;
        }
        let log_full = self.random.random_bool(0.1);
        self.done.log_full += u64::from(log_full);
        self.spawn(log_full);
        if self.random.random_bool(0.2) {
            std::thread::sleep(Duration::from_micros(self.random.random_range(0..20_000)));
            self.mortal.kill();
            self.done.daemon_killed += 1;
            self.spawn(false);
        }
        self.mortal.wait_until_up();
    }

    fn spawn(&mut self, log_full: bool) {
        let (build, machine) = (&self.builds[self.build], &self.machine);
        let log = self.mortal.scratch().join("log");
        self.mortal.spawn_as(|command| {
            let path = if log_full { Path::new("/dev/full") } else { &log };
            let log = File::options().append(true).open(path).expect("a log");
            let mut command = machine.on_its_clock(with_build(&command, build));
            command.stderr(log);
            command
        });
    }

    /// Waits until all memory is unused, and both daemons have given everything back.
    pub(crate) fn settle(&mut self) {
        self.operators.rest();
        self.machine.calm();
        for (elder, daemon) in [(true, &self.elder), (false, &self.mortal)] {
            let mut agent = daemon.agent();
            for loan in agent.loans("").expect("a list") {
                let name = loan.name.parse().expect("a name");
                agent.return_loan(name, false).expect("it was lent");
            }
            daemon.client().drain(true).expect("root drains");
            let begun = Instant::now();
            loop {
                let status = daemon.status();
                let has = status.pools.iter().map(|pool| pool.blocks).sum::<u64>();
                if has == 0 && status.workers == 0 && status.unknown_files == 0 {
                    break;
                }
                let log = daemon.log();
                let tail = &log[log.len().saturating_sub(4000)..];
                assert!(begun.elapsed() < RETURN_TIMEOUT, "it still has {status:#?}\n{tail}");
                std::thread::sleep(Duration::from_millis(10));
            }
            let log = daemon.log();
            assert!(!log.contains("panicked"), "a daemon panicked:\n{log}");
            // A log of a day is larger than its disk.
            File::options()
                .write(true)
                .truncate(true)
                .open(daemon.scratch().join("log"))
                .expect("a log");
            daemon.write_config(&config(elder, 0, Some(daemon.scratch())));
            daemon.signal(Signal::SIGHUP);
        }
    }

    /// Loans of the surviving daemon, one after the other. It takes again the pages that it gave
    /// back.
    pub(crate) fn time_loans(&mut self, loans: usize) -> Vec<Duration> {
        for daemon in [&self.elder, &self.mortal] {
            daemon.client().drain(false).expect("root ends it");
        }
        self.elder.zero("max");
        let one = |_| {
            let begun = Instant::now();
            let loan = self.elder.lend(Page::Mib2, 1);
            (begun.elapsed(), drop(loan)).0
        };
        (0..loans).map(one).collect()
    }

    /// Both end as services do.
    pub(crate) fn end(mut self) {
        self.settle();
        self.mortal.terminate();
        self.elder.terminate();
    }
}
