// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two clocks at once, and rounds that take turns.
//!
//! On a machine with other work the clock on the wall measures that work, too. The CPU clock of the
//! thread (or of the process, where several threads share the work) counts only the measured code,
//! the kernel's part included. Ratios are made of it.

use std::time::{Duration, Instant};

use crate::machine;
use linux::Roots;
use rustix::time::{ClockId, clock_gettime};

use crate::figure::{Labels, Row};
use crate::rig::Plan;
use cli::exit::Failure;

/// How long something took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
}

/// The CPU time of the calling thread.
pub(super) fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The CPU time of all threads of this process, the embedded daemon's included.
pub(super) fn process_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// The CPU time of the embedded daemon's threads, by their names. One that ended counts no more:
/// those of users and of freeing live for a second after their last task.
pub(super) fn daemon_cpu() -> Duration {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let of = |task: &std::path::Path| {
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let ours = ["prezero", "tables", "freeing"].contains(&name.trim());
        let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
        let nanos = text.split(' ').next()?.parse().ok()?;
        (ours || name.starts_with("user ")).then(|| Duration::from_nanos(nanos))
    };
    tasks.flatten().filter_map(|task| of(&task.path())).sum()
}

/// Runs `work` against the clock, and the CPU clock of one thread or of all.
pub(super) fn time<T>(threads: usize, work: impl FnOnce() -> T) -> (T, Took) {
    let cpu = || if threads == 1 { thread_cpu() } else { process_cpu() };
    let (begin, cpu_before) = (Instant::now(), cpu());
    let done = work();
    let (spent, wall) = (cpu().saturating_sub(cpu_before), begin.elapsed());
    (done, Took { wall, cpu: spent })
}

/// What others do while something is measured.
#[derive(Debug)]
pub(super) struct Others {
    since: Instant,
    used: Duration,
}

impl Others {
    /// From now on; `None` where the kernel does not say.
    pub(super) fn look(roots: &Roots) -> Option<Self> {
        Some(Self { since: Instant::now(), used: machine::cpu_time_of_others(roots)? })
    }

    /// How many CPUs they have used since, on average.
    pub(super) fn cpus(&self, roots: &Roots) -> Option<f64> {
        let used = machine::cpu_time_of_others(roots)?.saturating_sub(self.used);
        Some(used.as_secs_f64() / self.since.elapsed().as_secs_f64().max(1e-9))
    }
}

/// The rates of one thing in several rounds, by both clocks.
#[derive(Debug, Clone, Default)]
pub(super) struct Rates {
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

/// Names of the two values of [`Rates::row`].
pub(super) const WALL: &str = "wall";
pub(super) const CPU: &str = "cpu";

impl Rates {
    /// `bytes` by `threads` threads. By the CPU clock the rate is what it would be if every thread
    /// had its CPU to itself: bytes over CPU time per thread.
    #[expect(clippy::cast_precision_loss, reason = "a rate needs three digits")]
    pub(super) fn add(&mut self, bytes: u64, threads: usize, took: Took) {
        let giga = bytes as f64 / 1e9;
        self.wall.push(giga / took.wall.as_secs_f64().max(1e-9));
        self.cpu.push(giga * threads as f64 / took.cpu.as_secs_f64().max(1e-9));
    }

    pub(super) fn row(&self, labels: Labels) -> Row {
        Row::new(labels).with(WALL, "GB/s", &self.wall).with(CPU, "GB/s", &self.cpu)
    }
}

/// Calls `one(candidate, counts)` for every candidate in every round. The first round is a warm-up
/// and does not count. Every round begins with another candidate and goes in other strides, so that
/// a disturbance meets all, and the predecessors of a candidate vary. After a slow candidate the
/// next one is slower itself for some 10 ms (Zen 5: non-temporal stores by a fifth, after chunks of
/// 4 KiB).
pub(super) fn rounds(
    plan: &Plan,
    candidates: usize,
    mut one: impl FnMut(usize, bool) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for round in 0..=plan.rounds as usize {
        let stride =
            strides(candidates).nth(round % strides(candidates).count().max(1)).unwrap_or(1);
        for turn in 0..candidates {
            plan.go_on()?;
            one((turn * stride + round) % candidates, round > 0)?;
        }
    }
    Ok(())
}

/// The steps by which one gets everywhere in a circle of `candidates`.
fn strides(candidates: usize) -> impl Iterator<Item = usize> {
    fn common(a: usize, b: usize) -> usize {
        if b == 0 { a } else { common(b, a % b) }
    }
    (1..candidates.max(2)).filter(move |stride| common(*stride, candidates.max(1)) == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker::Stop;

    #[test]
    fn candidates_warm_up_once_and_each_begins_a_round_in_turn() {
        let plan = Plan { rounds: 3, threads: 1, stop: Stop::default() };
        let mut seen = Vec::new();
        rounds(&plan, 3, |candidate, counts| {
            seen.push((candidate, counts));
            Ok(())
        })
        .unwrap();
        assert_eq!(
            seen.iter().map(|(candidate, _)| *candidate).step_by(3).collect::<Vec<_>>(),
            [0, 1, 2, 0]
        );
        assert_eq!(seen.iter().filter(|(candidate, counts)| *candidate == 1 && *counts).count(), 3);
        assert_eq!(seen.iter().filter(|(_, counts)| !counts).count(), 3);
    }

    #[test]
    fn no_candidate_always_follows_the_same_other_one() {
        let plan = Plan { rounds: 3, threads: 1, stop: Stop::default() };
        let mut seen = Vec::new();
        rounds(&plan, 5, |candidate, _| {
            seen.push(candidate);
            Ok(())
        })
        .unwrap();
        let before_2: std::collections::BTreeSet<_> =
            seen.windows(2).filter(|pair| pair[1] == 2).map(|pair| pair[0]).collect();
        assert!(before_2.len() >= 3, "{seen:?}");
    }

    #[test]
    fn two_threads_that_share_the_work_have_the_rate_of_both() {
        let mut rates = Rates::default();
        let second = Duration::from_secs(1);
        rates.add(10_000_000_000, 2, Took { wall: second, cpu: 2 * second });
        let row = rates.row(Vec::new());
        assert_eq!((row.median(WALL), row.median(CPU)), (Some(10.0), Some(10.0)));
    }
}
