// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one way in which attacks are run, so that each is judged by the same questions:
//!
//! - *What does the attacker get?* The error that it says it got; harm fails the test.
//! - *What does a victim notice?* No error, only its own bytes, and the time of its calls: the 99th
//!   percentile of calls timed in a window without and one with the attack.
//! - *What is left?* No descriptor, memory, file, page or promised page, by the counts of the
//!   kernel before and after.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::panic::Location;
use std::time::{Duration, Instant};

use prezero_tests::Daemon;
use testkit::child::{Child, fork};

use crate::groups::Throttled;
use crate::scene::{Got, Scene};
use crate::stage::Stage;
use crate::table;
use crate::users::User;
use crate::victim::{LEND, STATUS, Victim};

/// How long one look lasts, quiet or attacked.
const WINDOW_PERIOD: Duration = Duration::from_millis(250);
/// The bound for a call with an attack, as a multiple of the time without.
const TIMES: f64 = 5.0;
/// Below this nothing is judged: what the kernel does for attackers, it does in its own time.
const MIN_JUDGED_PERIOD: Duration = Duration::from_millis(20);
/// Slow calls are measured again: an attack is slow each time, the machine's other work only
/// sometimes.
const MAX_TRIES: usize = 4;
/// An attacker has to end so soon after it is over.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The pool that most attacks are about: its own workers make pages ready as fast as they can.
pub(crate) const POOL: &str =
    "[[pool]]\npage_size = \"2M\"\nmax = 8\nready_low = 6\nready_high = 8\n";
/// ... so that the load of the machine cannot decide how many pages are ready.
pub(crate) const WORKERS: &str = "[workers]\nsched_idle = false\nnice = 0\n";

/// What an attacker does.
type Act<'a> = dyn Fn(&mut Scene<'_>) -> Got + 'a;

/// One attack; [`Attack::run`] runs it.
pub(crate) struct Attack<'a> {
    name: String,
    by: User,
    attackers: usize,
    victims: Vec<Victim>,
    window: Duration,
    throttled: Option<&'a Throttled>,
    act: Box<Act<'a>>,
    control: Option<(f64, Box<Act<'a>>)>,
    /// Where it is made.
    place: &'static Location<'static>,
}

impl<'a> Attack<'a> {
    /// An attack by one process of that user; `act` sets up, says so by [`Scene::set_up`], and ends
    /// when the scene is over.
    #[track_caller]
    pub(crate) fn new(
        name: impl Into<String>,
        by: User,
        act: impl Fn(&mut Scene<'_>) -> Got + 'a,
    ) -> Self {
        let victims = vec![LEND, STATUS];
        let (name, act, place) = (name.into(), Box::new(act), Location::caller());
        let (throttled, control) = (None, None);
        Self {
            name,
            by,
            attackers: 1,
            victims,
            window: WINDOW_PERIOD,
            throttled,
            act,
            control,
            place,
        }
    }

    /// By this number of processes.
    pub(crate) fn attackers(self, attackers: usize) -> Self {
        Self { attackers, ..self }
    }

    /// Another victim that must notice nothing.
    pub(crate) fn also(mut self, victim: Victim) -> Self {
        self.victims.push(victim);
        self
    }

    /// Only this victim must be served: for attacks that may take all free pages.
    pub(crate) fn only(self, victim: Victim) -> Self {
        Self { victims: vec![victim], ..self }
    }

    /// From a control group that is frozen while it attacks.
    pub(crate) fn throttled(self, group: &'a Throttled) -> Self {
        Self { throttled: Some(group), ..self }
    }

    /// The length of each window.
    pub(crate) fn windows_of(self, window: Duration) -> Self {
        Self { window, ..self }
    }

    /// Judged by calls beside a process of the same user that does this: the harmless part of the
    /// attack, or the harm that a user can do to every process of the machine without a daemon.
    /// A call may take `times` as long as beside that.
    pub(crate) fn beside(self, times: f64, control: impl Fn(&mut Scene<'_>) -> Got + 'a) -> Self {
        Self { control: Some((times, Box::new(control))), ..self }
    }

    /// Runs it, prints its line of the table, and notes any harm that it did.
    pub(crate) fn run(self, stage: &mut Stage) {
        let only = std::env::var("PREZERO_HOSTILE_ONLY").unwrap_or_default();
        if !self.name.contains(&only) {
            return;
        }
        if let Err(harm) = self.judge(stage) {
            stage.record(format!("{}: {harm}", self.name));
        }
    }

    fn judge(&self, stage: &mut Stage) -> Got {
        for victim in self.victims.iter().filter(|victim| stage.quiet(victim).is_none()) {
            // A first use grows the daemon's memory once and for all.
            let first = victim.watch(&stage.daemon, WINDOW_PERIOD / 5).took();
            first.map_err(|harm| format!("before any attack: {harm}"))?;
        }
        stage.remember();
        let mut got = Vec::new();
        let mut look = 1;
        let times = loop {
            let times = self.look(stage, look, &mut got)?;
            if look == MAX_TRIES || times.iter().all(Times::is_fair) {
                break times;
            }
            look += 1;
        };
        let left = stage.left()?;
        let noticed: Vec<_> = (self.victims.iter().zip(&times))
            .map(|(victim, times)| format!("{} {}", victim.what, times.text()))
            .collect();
        let (got, noticed) = (got.join("; "), noticed.join("; "));
        let cells = [&self.name, self.by.name(), &got, &noticed, &left.to_string()];
        table::add(&cells, self.place);
        if times.iter().any(|times| times.attacked.is_empty()) {
            return Err("a victim made no call".to_owned());
        }
        if !times.iter().all(Times::is_fair) {
            return Err(format!("it slowed others down, {MAX_TRIES} times in a row: {noticed}"));
        }
        if left.is_nothing() { Ok(got) } else { Err(format!("it left {left}")) }
    }

    /// What victims notice of one run of the attack.
    fn look(
        &self,
        stage: &mut Stage,
        look: usize,
        got: &mut Vec<String>,
    ) -> Result<Vec<Times>, String> {
        let known = |victim: &Victim| {
            stage.quiet(victim).is_some_and(|q| Times::p99(q) < MIN_JUDGED_PERIOD)
        };
        // A measurement stays true while the machine's other work is the same.
        if look > 1 || !self.victims.iter().all(known) {
            for (victim, took) in self.victims.iter().zip(self.watch(&stage.daemon)) {
                let took = took.map_err(|harm| format!("before the attack: {harm}"))?;
                stage.set_quiet(victim, &took);
            }
        }
        let control = match &self.control {
            None => None,
            Some((times, control)) => {
                let process = self.attack(&stage.daemon, control);
                process.wait_until_set_up();
                let watched = self.watch(&stage.daemon);
                process.got().map_err(|harm| format!("the control: {harm}"))?;
                Some((*times, watched.into_iter().collect::<Result<Vec<_>, _>>()?))
            }
        };
        let attackers: Vec<_> =
            (0..self.attackers).map(|_| self.attack(&stage.daemon, &self.act)).collect();
        attackers.iter().for_each(Attacker::wait_until_set_up);
        let free = |free| self.throttled.iter().for_each(|group| group.release(free));
        free(false);
        let attacked = self.watch(&stage.daemon);
        // An attacker without CPU time cannot end.
        free(true);
        for attacker in attackers {
            let what = attacker.got()?;
            if !got.contains(&what) {
                got.push(what);
            }
        }
        let attacked = attacked.into_iter().collect::<Result<Vec<_>, _>>()?;
        let quiet = |victim: &Victim| stage.quiet(victim).unwrap_or_default().to_vec();
        let times = self.victims.iter().zip(attacked).enumerate();
        let of = |(place, (victim, attacked)): (usize, (&Victim, Vec<Duration>))| match &control {
            None => Times { quiet: quiet(victim), attacked, times: TIMES },
            Some((times, beside)) => {
                Times { quiet: beside[place].clone(), attacked, times: *times }
            }
        };
        Ok(times.map(of).collect())
    }

    fn watch(&self, daemon: &Daemon) -> Vec<Result<Vec<Duration>, String>> {
        let watched: Vec<_> =
            self.victims.iter().map(|victim| victim.watch(daemon, self.window)).collect();
        watched.into_iter().map(crate::victim::Watched::took).collect()
    }

    fn attack(&self, daemon: &Daemon, act: &Act<'_>) -> Attacker {
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (report, answer) = rustix::pipe::pipe_with(flags).expect("a pipe");
        let child = fork(|ready| {
            self.throttled.iter().for_each(|group| group.join());
            self.by.become_it();
            let mut scene = Scene::new(daemon, ready, self.window);
            let (mark, text) = match act(&mut scene) {
                Ok(got) => ('+', got),
                Err(harm) => ('-', harm),
            };
            let text = format!("{mark}{}", text.replace('\n', " "));
            rustix::io::write(&answer, text.as_bytes()).expect("the test reads");
            0
        });
        Attacker { child, report, begun: Instant::now() }
    }
}

/// A row of the table for an attack that [`Attack::run`] does not run: its name, the attacker, its
/// gain, the victims' times, and the remains.
#[track_caller]
pub(crate) fn say(cells: &[&str; 5]) {
    table::add(cells, Location::caller());
}

/// A process that attacks.
struct Attacker {
    child: Child,
    report: OwnedFd,
    begun: Instant,
}

impl Attacker {
    fn wait_until_set_up(&self) {
        self.child.wait_ready();
    }

    fn got(self) -> Got {
        let mut polled = [rustix::event::PollFd::new(&self.report, rustix::event::PollFlags::IN)];
        let left = STOP_TIMEOUT.saturating_sub(self.begun.elapsed());
        let left = rustix::event::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
            tv_nsec: left.subsec_nanos().into(),
        };
        if rustix::event::poll(&mut polled, Some(&left)) != Ok(1) {
            // What it waits for is the daemon's: its own doing, if victims are served.
            self.child.kill();
            return Ok("no answer".to_owned());
        }
        let mut text = String::new();
        std::fs::File::from(self.report).read_to_string(&mut text).expect("text");
        let status = self.child.wait();
        match text.split_at_checked(1) {
            Some(("+", got)) => Ok(got.to_owned()),
            Some((_, harm)) => Err(harm.to_owned()),
            None => Err(format!("the attacker itself failed: {status:?}")),
        }
    }
}

/// How long a victim's calls took.
#[derive(Debug, Clone, Default)]
struct Times {
    quiet: Vec<Duration>,
    attacked: Vec<Duration>,
    times: f64,
}

impl Times {
    fn p99(times: &[Duration]) -> Duration {
        let mut times = times.to_vec();
        times.sort_unstable();
        times.get((times.len() * 99).div_ceil(100).max(1) - 1).copied().unwrap_or_default()
    }

    fn is_fair(&self) -> bool {
        Self::p99(&self.attacked)
            <= Self::p99(&self.quiet).mul_f64(self.times).max(MIN_JUDGED_PERIOD)
    }

    fn text(&self) -> String {
        let ms = |times: &[Duration]| Self::p99(times).as_secs_f64() * 1e3;
        format!("{:.1} / {:.1} ms", ms(&self.quiet), ms(&self.attacked))
    }
}
