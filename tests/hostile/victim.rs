// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The victims, which must notice no attack. One is a user that borrows a page, looks at all of it,
//! and has it to itself until it returns it. Another is root, that asks for the status. The others
//! are callers that an attack may stop. Each in a process of its own, which times its calls.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use client::{Client, LendRequest, Loan};
use prezero_tests::MapAlone as _;
use prezero_tests::{Daemon, Page};
use testkit::child::{Child, fork};

use crate::users::User;

/// What a victim writes all over its memory.
pub(crate) const SECRET: u8 = 0x5E;

/// Between two calls: 250 a second are a busy client.
const CALL_INTERVAL: Duration = Duration::from_millis(4);
/// A call that takes longer is hung.
const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// Something that a victim does again and again; its error is harm.
pub(crate) type Act = fn(&Daemon) -> Result<Duration, String>;

/// Who does what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Victim {
    /// In the table.
    pub what: &'static str,
    /// As whom.
    pub(crate) user: User,
    /// The call: returns how long it took.
    pub act: Act,
}

/// A user that borrows.
pub(crate) const LEND: Victim = Victim { what: "Lend", user: User::Victim, act: borrow };
/// Root that looks.
pub(crate) const STATUS: Victim = Victim { what: "GetStatus", user: User::Root, act: status };

/// The daemon's one thread that serves calls, for [`SERVING_LOOK_PERIOD`].
pub(crate) const SERVING_THREAD: Victim =
    Victim { what: "CPU time of the serving thread", user: User::Root, act: serving_thread };

/// How long one look at the serving thread lasts.
const SERVING_LOOK_PERIOD: Duration = Duration::from_secs(1);

/// What the serving thread has had of a CPU meanwhile: the first number of its `schedstat`.
fn serving_thread(daemon: &Daemon) -> Result<Duration, String> {
    let pid = daemon.pid();
    let path = format!("/proc/{pid}/task/{pid}/schedstat");
    let used = || {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let nanos = text.split(' ').next().and_then(|number| number.parse().ok());
        nanos.map(Duration::from_nanos).ok_or_else(|| format!("{path}: {text}"))
    };
    let before = used()?;
    std::thread::sleep(SERVING_LOOK_PERIOD);
    Ok(used()?.saturating_sub(before))
}

/// Times a call, without the time for which its caller, or a thread of the daemon's that serves
/// calls, was ready to run and had no CPU. That is the scheduler's doing, which gives every process
/// its turn. The rest is the daemon's work and its waits: locks, leases, queues, other users'
/// calls.
#[derive(Debug)]
pub(crate) struct Clock {
    begun: Instant,
    waited: Vec<(PathBuf, Duration)>,
}

/// For how long a thread has waited for a CPU: the second number of its `schedstat` (the kernel's
/// scheduler/sched-stats.rst). Nothing where the kernel does not count.
fn waited(path: &PathBuf) -> Duration {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let nanos = text.split(' ').nth(1).and_then(|number| number.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

impl Clock {
    /// Begins a call of this thread's.
    pub(crate) fn start(daemon: &Daemon) -> Self {
        let pid = daemon.pid();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        let serves = |thread: &PathBuf| {
            let name = std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
            matches!(name.trim(), "prezero" | "acceptor" | "metrics")
        };
        let serving = threads.flatten().map(|thread| thread.path()).filter(serves);
        let waits = [PathBuf::from("/proc/thread-self")].into_iter().chain(serving);
        let stats = waits.map(|thread| thread.join("schedstat"));
        let waited = stats.map(|path| (path.clone(), waited(&path))).collect();
        Self { begun: Instant::now(), waited }
    }

    /// How long it took.
    pub(crate) fn stop(self) -> Duration {
        let took = self.begun.elapsed();
        let waits = self.waited.iter().map(|(path, before)| waited(path).saturating_sub(*before));
        took.saturating_sub(waits.sum())
    }
}

fn borrow(daemon: &Daemon) -> Result<Duration, String> {
    borrow_pages(daemon, 1)
}

/// Borrows a block of this number of 2 MiB pages, looks at all of it, and returns it.
pub(crate) fn borrow_pages(daemon: &Daemon, pages: u64) -> Result<Duration, String> {
    let clock = Clock::start(daemon);
    let connected = Client::connect(daemon.socket());
    let request = LendRequest { single: true, ..LendRequest::new(Page::Mib2.times(pages)) };
    let loan = connected.and_then(|mut client| client.lend(&request));
    let took = clock.stop();
    let loan = loan.map_err(|error| format!("connect and Lend: {error}"))?;
    look(&loan).map(|()| took)
}

/// Zero at first, then its own bytes at all times.
fn look(loan: &Loan) -> Result<(), String> {
    let memory = loan.map_alone().map_err(|error| format!("mmap: {error}"))?;
    let mut seen = vec![0; memory.len()];
    let all = |seen: &[u8], byte: u8| seen.iter().position(|found| *found != byte);
    memory.read(0, &mut seen);
    if seen != vec![0; seen.len()] {
        return Err(format!("byte {:?} of lent memory is not zero", all(&seen, 0)));
    }
    memory.fill(0..memory.len(), SECRET);
    std::thread::sleep(Duration::from_millis(1));
    memory.read(0, &mut seen);
    if seen != vec![SECRET; seen.len()] {
        return Err(format!("byte {:?} of its memory was changed", all(&seen, SECRET)));
    }
    Ok(())
}

fn status(daemon: &Daemon) -> Result<Duration, String> {
    let clock = Clock::start(daemon);
    let answer = Client::connect(daemon.socket()).and_then(|mut client| client.status());
    let took = clock.stop();
    answer.map(|_| took).map_err(|error| format!("connect and GetStatus: {error}"))
}

/// A victim at work.
#[derive(Debug)]
pub(crate) struct Watched {
    victim: Victim,
    child: Child,
    report: OwnedFd,
    begun: Instant,
}

impl Victim {
    /// Starts it for this long.
    pub(crate) fn watch(self, daemon: &Daemon, lasts: Duration) -> Watched {
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (report, answer) = rustix::pipe::pipe_with(flags).expect("a pipe");
        let child = fork(|_| {
            self.user.become_it();
            let begun = Instant::now();
            let mut text = String::new();
            while begun.elapsed() < lasts {
                match (self.act)(daemon) {
                    Ok(took) => text += &format!("{}\n", took.as_micros()),
                    Err(error) => {
                        text += &format!("{}\n", error.replace('\n', " "));
                        break;
                    }
                }
                std::thread::sleep(CALL_INTERVAL);
            }
            // 16 bytes a call, 250 calls a second: no more than a pipe holds.
            rustix::io::write(&answer, text.as_bytes()).expect("the test reads");
            0
        });
        Watched { victim: self, child, report, begun: Instant::now() }
    }
}

impl Watched {
    /// How long its calls took, or what harm was done to it.
    pub(crate) fn took(self) -> Result<Vec<Duration>, String> {
        let Self { victim, child, report, begun } = self;
        let mut polled = [rustix::event::PollFd::new(&report, rustix::event::PollFlags::IN)];
        let left = CALL_TIMEOUT.saturating_sub(begun.elapsed());
        let left = rustix::event::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
            tv_nsec: left.subsec_nanos().into(),
        };
        let polled = rustix::event::poll(&mut polled, Some(&left));
        if polled != Ok(1) {
            child.kill();
            return Err(format!("{} by {} hung", victim.what, victim.user.name()));
        }
        let mut text = String::new();
        std::fs::File::from(report).read_to_string(&mut text).expect("text");
        if child.wait() != Some(0) {
            return Err(format!("{} by {} died", victim.what, victim.user.name()));
        }
        let number = |line: &str| line.parse().map(Duration::from_micros);
        text.lines().map(|line| number(line).map_err(|_| line.to_owned())).collect()
    }
}
