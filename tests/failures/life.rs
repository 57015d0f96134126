// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon's life with a failure in it, and its remains.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use client::{Client, LendRequest, Loan};
use nix::sys::signal::Signal;
use prezero_tests::MapAlone as _;
use prezero_tests::memory::{first_dirty, soil};
use prezero_tests::{Daemon, Page};
use testkit::skip;
use units::Pages;
use wire::PoolStatus;

const PAGE: Page = Page::Mib2;
const PAGES: u64 = 6;
/// How long a call may take before it is hung. A loan waits 2 s for its owner's former self.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Where the standard library panics because its new thread finds no memory for its signals' stack:
/// as if the daemon had been killed then.
const SIGNAL_STACK: &str = "sys/pal/unix/stack_overflow.rs";
/// How long is waited for what a failure may well have prevented.
const EFFECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// The nth call of one kind, in each thread that makes enough of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) error: &'static str,
    pub(crate) nth: u32,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.error, self.nth, self.call)
    }
}

/// What came of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// That call was not made this time.
    Missed,
    /// Nobody noticed.
    Unfelt,
    /// A client was refused something, or the daemon did not start or ended, and said why.
    Felt,
}

/// A daemon and its pages.
#[derive(Debug)]
pub(crate) struct Life {
    daemon: Daemon,
    /// Where the log of this life begins.
    log_from: usize,
}

fn config(high: u64) -> String {
    let keys = format!("ready_low = {high}\nready_high = {high}\nrecycle = \"in-place\"");
    PAGE.pool(&keys)
}

impl Life {
    /// Whether there is what it takes. Otherwise a skip was counted.
    pub(crate) fn can_be() -> bool {
        let there = Command::new("strace").arg("--version").output();
        let there = there.is_ok_and(|output| output.status.success());
        if !there {
            skip("strace is not installed: apt-get install strace");
        }
        there
    }

    pub(crate) fn new() -> Option<Self> {
        let mut daemon = Daemon::start(PAGE, PAGES, &config(4))?;
        daemon.terminate();
        let mut life = Self { daemon, log_from: 0 };
        life.start_again().expect("a daemon without failures");
        Some(life)
    }

    fn trace(&self) -> PathBuf {
        self.daemon.scratch().join("trace")
    }

    /// How often each call is made by one thread at most, in a life without failures.
    pub(crate) fn count_calls(&mut self) -> BTreeMap<String, u32> {
        self.spawn(&["-e".to_owned(), "trace=all".to_owned()]);
        let lived = self.session();
        self.end().expect("a daemon without failures ends");
        lived.expect("a life without failures");
        let trace = fs::read_to_string(self.trace()).expect("strace writes it");
        let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for line in trace.lines() {
            let Some((thread, rest)) = line.split_once(' ') else { continue };
            let name = rest.trim_start().split('(').next().unwrap_or_default();
            if name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                *counts.entry((name, thread)).or_default() += 1;
            }
        }
        let mut most = BTreeMap::new();
        for ((name, _), count) in counts {
            let of_all = most.entry(name.to_owned()).or_default();
            *of_all = count.max(*of_all);
        }
        self.start_again().expect("a daemon without failures");
        most
    }

    /// Starts the daemon under strace.
    fn spawn(&mut self, arguments: &[String]) {
        let trace = self.trace();
        let _ = fs::remove_file(&trace);
        self.log_from = self.daemon.log().len();
        self.daemon.write_config(&config(4));
        let log = self.daemon.scratch().join("log");
        let log = fs::File::options().append(true).open(log).expect("its log");
        self.daemon.spawn_as(|command| {
            let mut traced = Command::new("strace");
            // -D: the daemon is our child, and strace is its.
            traced.args(["-D", "-f", "-y", "-qq", "-s0", "-o"]).arg(trace).args(arguments);
            traced.arg(command.get_program()).args(command.get_args());
            for (name, value) in command.get_envs() {
                if let Some(value) = value {
                    traced.env(name, value);
                }
            }
            traced.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            traced
        });
    }

    /// Lives with that failure, and checks the remains.
    ///
    /// # Errors
    /// The harm that was done.
    pub(crate) fn live(&mut self, failure: Failure) -> Result<Outcome, String> {
        let Failure { call, error, nth } = failure;
        let inject = format!("inject={call}:error={error}:when={nth}");
        self.spawn(&["-e".to_owned(), format!("trace={call}"), "-e".to_owned(), inject]);
        let lived = self.session();
        let ended = self.end();
        let log = self.daemon.log()[self.log_from..].to_owned();
        let injected = fs::read_to_string(self.trace()).unwrap_or_default();
        let begin = Instant::now();
        self.start_again().map_err(|what| format!("{what}\n{log}"))?;
        let took = begin.elapsed();
        if took > CALL_TIMEOUT {
            return Err(format!("the next daemon took {took:?} to serve"));
        }
        let injected = match failed_calls(&injected) {
            Ok(injected) => injected,
            Err(Impossible) => return Ok(Outcome::Missed),
        };
        ended?;
        if injected.is_empty() {
            return Ok(Outcome::Missed);
        }
        let log = format!("{}\n{log}", injected.join("\n"));
        let mut panics = log.lines().filter(|line| line.contains("panicked at")).peekable();
        let ends_by_std = panics.peek().is_some() && panics.all(|line| line.contains(SIGNAL_STACK));
        if log.contains("panicked") && !ends_by_std {
            return Err(format!("a panic:\n{log}"));
        }
        match lived {
            Ok(()) => Ok(Outcome::Unfelt),
            Err(Felt::Harm(what)) => Err(format!("{what}\n{log}")),
            Err(Felt::Refused(what)) if says_why(&log, error) || says_why(&what, error) => {
                Ok(Outcome::Felt)
            }
            Err(Felt::Refused(what)) => Err(format!("{what}, and no line says why:\n{log}")),
        }
    }

    /// What clients do in its life.
    fn session(&mut self) -> Result<(), Felt> {
        let begin = Instant::now();
        // Until it serves, or says that it does not.
        while Client::connect(self.daemon.socket()).and_then(|mut c| c.status()).is_err() {
            if self.daemon.has_ended() {
                return Err(Felt::Refused("it did not start".to_owned()));
            }
            if begin.elapsed() > CALL_TIMEOUT {
                return Err(Felt::Harm("it neither serves nor ends".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let (notify, reported) = mpsc::channel();
        std::thread::scope(|scope| {
            let daemon = &self.daemon;
            scope.spawn(move || notify.send(serve(daemon)));
            let result = reported.recv_timeout(CALL_TIMEOUT);
            if result.is_err() {
                // Or the thread would wait for ever.
                daemon.signal(Signal::SIGKILL);
            }
            result.unwrap_or_else(|_| Err(Felt::Harm("a call hangs".to_owned())))
        })
    }

    /// Stops it, if it lives.
    fn end(&mut self) -> Result<(), String> {
        if !self.daemon.has_ended() {
            self.daemon.signal(Signal::SIGTERM);
        }
        let begin = Instant::now();
        while !self.daemon.has_ended() {
            if begin.elapsed() > CALL_TIMEOUT {
                self.daemon.kill();
                return Err("SIGTERM does not end it".to_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.daemon.forget_process();
        Ok(())
    }

    /// The next daemon, without failures: it serves, and knows of every file and page.
    fn start_again(&mut self) -> Result<(), String> {
        self.daemon.write_config(&config(0));
        self.daemon.launch();
        let served = serve_again(&self.daemon);
        self.daemon.terminate();
        served
    }
}

/// What a client saw.
#[derive(Debug)]
enum Felt {
    /// It was refused something.
    Refused(String),
    /// What must never be.
    Harm(String),
}

impl From<client::Error> for Felt {
    fn from(error: client::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

/// A call failed that no kernel refuses, as the write that wakes an event loop: nothing was learnt.
struct Impossible;

/// The calls that failed.
fn failed_calls(trace: &str) -> Result<Vec<String>, Impossible> {
    let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
    let mut failed = Vec::new();
    for line in trace.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        if rest.ends_with("<unfinished ...>") {
            begun.insert(thread, rest);
        }
        if rest.contains("(INJECTED)") {
            let begin = begun.get(thread).filter(|_| rest.contains(" resumed>")).unwrap_or(&"");
            failed.push(format!("{begin}{rest}"));
        }
    }
    if failed.iter().any(|call| call.contains("[eventfd]")) {
        return Err(Impossible);
    }
    // Of the many things that fcntl(2) does, few can fail so.
    let may_fail = ["F_DUPFD", "F_SETLEASE", "F_ADD_SEALS", "F_SETLK", "F_NOTIFY"];
    failed.retain(|call| !call.contains("fcntl(") || may_fail.iter().any(|of| call.contains(of)));
    Ok(failed)
}

/// Whether a line tells of that error.
fn says_why(text: &str, error: &str) -> bool {
    let of = |name| match name {
        "EMFILE" => "Too many open files",
        "ENFILE" => "Too many open files in system",
        "ENOMEM" => "annot allocate memory",
        "ENOSPC" => "No space left",
        "EINTR" => "Interrupted system call",
        "EIO" => "nput/output error",
        "EAGAIN" => "Resource temporarily unavailable",
        "ENOBUFS" => "No buffer space",
        other => unreachable!("{other}"),
    };
    text.contains(of(error)) || text.contains(error)
}

/// Waits for what should come soon; a failure may keep it from coming.
fn soon(daemon: &Daemon, wanted: impl Fn(&PoolStatus) -> bool) -> Result<bool, Felt> {
    let begin = Instant::now();
    let mut client = Client::connect(daemon.socket())?;
    loop {
        let status = client.status()?;
        if status.pools.first().is_some_and(&wanted) {
            return Ok(true);
        }
        if begin.elapsed() > EFFECT_TIMEOUT {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn borrow(daemon: &Daemon, request: &LendRequest) -> Result<Loan, Felt> {
    Ok(Client::connect(daemon.socket())?.lend(request)?)
}

/// A loan has zeros, or its owner's content.
fn use_it(loan: &Loan, byte: u8) -> Result<(), Felt> {
    let memory = loan.map_alone().map_err(|error| Felt::Refused(error.to_string()))?;
    if loan.is_kept() {
        let mut first = [0];
        memory.read(0, &mut first);
        if first != [byte] {
            return Err(Felt::Harm(format!("kept content begins with {first:?}")));
        }
    } else if let Some(at) = first_dirty(&memory) {
        return Err(Felt::Harm(format!("a foreign byte at {at}")));
    }
    soil(&memory, byte);
    Ok(())
}

fn for_owner(seconds: u64) -> LendRequest {
    LendRequest {
        single: true,
        owner: Some("owner".parse().expect("an owner's name")),
        keep: Some(Duration::from_secs(seconds)),
        ..LendRequest::new(PAGE.times(1))
    }
}

/// Everything that a daemon does for its clients, once.
fn serve(daemon: &Daemon) -> Result<(), Felt> {
    soon(daemon, |pool| pool.ready_pages >= Pages(4))?;
    let request = LendRequest::new(PAGE.times(3));
    use_it(&borrow(daemon, &request)?, 0x42)?;
    soon(daemon, |pool| pool.lent_pages + pool.draining_pages == Pages(0))?;
    use_it(&borrow(daemon, &for_owner(300))?, 0x17)?;
    soon(daemon, |pool| pool.kept_pages == Pages(1))?;
    use_it(&borrow(daemon, &for_owner(300))?, 0x17)?;
    daemon.write_config(&config(2));
    daemon.signal(Signal::SIGHUP);
    soon(daemon, |pool| pool.ready_high == Pages(2))?;
    Client::connect(daemon.socket())?.release(None, None, None)?;
    let held = Client::connect(daemon.socket())?.lend(&request)?;
    use_it(&held, 0x23)?;
    Ok(())
}

fn serve_again(daemon: &Daemon) -> Result<(), String> {
    let reported = |felt: Felt| format!("the next daemon: {felt:?}");
    // It keeps nothing ready; what an owner left goes to it, for no longer. It may have left two
    // loans: where one took too long to be seen as returned, it was lent other memory.
    for _ in 0..PAGES {
        let loan = borrow(daemon, &for_owner(0)).map_err(reported)?;
        use_it(&loan, 0x17).map_err(reported)?;
        if !loan.is_kept() {
            break;
        }
    }
    use_it(&borrow(daemon, &LendRequest::new(PAGE.times(2))).map_err(reported)?, 0x42)
        .map_err(reported)?;
    let idle = |p: &PoolStatus| {
        p.lent_pages + p.draining_pages + p.zeroing_pages + p.kept_pages == Pages(0)
    };
    let begin = Instant::now();
    while !soon(daemon, idle).map_err(reported)? {
        if begin.elapsed() > CALL_TIMEOUT {
            return Err(format!("somebody still has pages: {:?}", daemon.pool()));
        }
    }
    let given = daemon.client().release(None, None, None);
    given.map_err(|error| format!("the next daemon: {error}"))?;
    let unknown = daemon.status().unknown_files;
    if unknown != 0 {
        return Err(format!("{unknown} files that the next daemon does not know"));
    }
    let begin = Instant::now();
    loop {
        let (free, pool) = (daemon.kernel_free(PAGE), daemon.pool());
        if free == PAGES && pool.blocks == 0 {
            return Ok(());
        }
        if begin.elapsed() > CALL_TIMEOUT {
            return Err(format!("{free} of {PAGES} pages came back: {pool:?}"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
