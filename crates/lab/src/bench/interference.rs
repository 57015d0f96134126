// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What zeroing takes from its neighbours.
//!
//! A neighbour runs on every CPU; it counts its own steps. Beside it, a zeroing thread on every CPU
//! runs in short slices, in one of several contexts and with one of two methods. Slices with and
//! without zeroing alternate, and a slowdown compares each slice with the one before it: other work
//! of the machine meets both.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::throttle::Throttle;
use crate::prefault::Anonymous;
use ::clear::{Clearer, Extent};
use units::Bytes;

use super::Bench;
use super::clock::thread_cpu;
use super::evidence::Slowdown;
use crate::figure::{Chart, Part, Row, Shape, Stats};
use cli::exit::Failure;
use worker::Context;

const SLICE_PERIOD: Duration = Duration::from_millis(250);
const QUICK_SLICE_PERIOD: Duration = Duration::from_millis(60);
/// Pairs of slices for each round that was asked for.
const PAIRS: usize = 2;
/// Of each zeroing thread: four times a last-level cache of 32 MiB.
const ZEROED: Bytes = Bytes(128 << 20);
/// Of each neighbour bound by bandwidth: no cache holds it.
const STREAMED: usize = 128 << 20;
/// Of each neighbour bound by the last-level cache: too much for the second level, and two of them
/// fit into 32 MiB.
const CHASED: usize = 8 << 20;
const LINE: usize = 64;
/// Percent of each CPU.
const QUOTAS: [u32; 3] = [50, 25, 10];
/// Of a quota.
const THROTTLE_PERIOD: Duration = Duration::from_millis(10);

/// What the neighbour is bound by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neighbour {
    /// Reads a large array from end to end.
    Bandwidth,
    /// Follows a random cycle through lines that the last-level cache holds.
    Cache,
}

/// In which context zeroing runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// As everybody else.
    Normal,
    /// Nice 19.
    Nice,
    /// `SCHED_IDLE`.
    Idle,
    /// In a cgroup that gets this many percent of each CPU, in periods of 10 ms; where no cgroup
    /// can limit CPU time, by the thread's own pauses.
    Quota(u32),
}

impl How {
    fn name(self) -> String {
        match self {
            Self::Normal => "normal".into(),
            Self::Nice => "nice 19".into(),
            Self::Idle => "SCHED_IDLE".into(),
            Self::Quota(percent) => format!("quota {percent}%"),
        }
    }

    fn context(self, cpu: usize) -> Context {
        Context {
            cpus: Some(cpu.to_string()),
            nice: (self == Self::Nice).then_some(19),
            sched_idle: self == Self::Idle,
            cgroup: None::<PathBuf>,
            ..Context::default()
        }
    }
}

struct Candidate<'a> {
    neighbour: Neighbour,
    how: How,
    /// The cgroup of a quota.
    throttle: Option<&'a Throttle>,
    name: String,
    clearer: Clearer,
    slowdowns: Vec<f64>,
    /// The same for each CPU second that the neighbour got: what caches and bandwidth cost it.
    per_cpu: Vec<f64>,
    rates: Vec<f64>,
}

/// Shared by the threads of one slice.
#[derive(Default)]
struct Slice {
    stop: AtomicBool,
    steps: AtomicU64,
    zeroed: AtomicU64,
    /// CPU time of the neighbours, ns.
    cpu: AtomicU64,
}

/// What a slice came to.
struct Counted {
    /// Steps of the neighbours a second.
    steps: f64,
    /// ... and a CPU second.
    per_cpu: f64,
    /// GB/s.
    zeroed: f64,
}

pub(super) fn measure(bench: &mut Bench) -> Result<Part, Failure> {
    let slice = if bench.quick { QUICK_SLICE_PERIOD } else { SLICE_PERIOD };
    let pairs = PAIRS * bench.plan.rounds as usize;
    let throttles = throttles(bench)?;
    let mut part = Part::new(
        "interference",
        "How much slower is a neighbour while zeroing runs on the same CPUs?",
        format!(
            "A neighbour on each of {} CPUs, bound by memory bandwidth (reads 128 MiB from end to end) or by the \
             last-level cache (follows a random cycle through 8 MiB), and a zeroing thread on each of the same CPUs. \
             Slices of {} ms with and without zeroing alternate; the slowdown is the median over {pairs} pairs, by the \
             wall clock, and per CPU second that the neighbour got. Quotas are of a CPU, in periods of 10 ms, by {}.",
            bench.plan.threads,
            slice.as_millis(),
            throttles[0].1.as_ref().map_or("the thread's own pauses".to_owned(), Throttle::kind),
        ),
    );
    let chosen = bench.choice.setting.clearer().map_err(Failure::failed)?;
    let cached = Clearer::new(super::cached(), chosen.chunk()).map_err(Failure::failed)?;
    let [most, half, least] = QUOTAS.map(How::Quota);
    let hows = [How::Normal, most, half, least, How::Nice, How::Idle];
    let mut candidates = Vec::new();
    for neighbour in [Neighbour::Bandwidth, Neighbour::Cache] {
        for (kind, clearer) in [("non-temporal", chosen), ("cached", cached)] {
            let name = if clearer.method().bypasses_cache() || kind == "cached" {
                format!("{kind} ({})", clearer.method())
            } else {
                format!("prezero's choice ({})", clearer.method())
            };
            candidates.extend(hows.map(|how| {
                Candidate {
                    neighbour,
                    how,
                    throttle: throttles
                        .iter()
                        .find(|(quota, _)| *quota == how)
                        .and_then(|(_, throttle)| throttle.as_ref()),
                    name: name.clone(),
                    clearer,
                    slowdowns: Vec::new(),
                    per_cpu: Vec::new(),
                    rates: Vec::new(),
                }
            }));
        }
    }
    let mut memories = Vec::new();
    for _ in 0..bench.plan.threads {
        let mut memory = Anonymous::map_transparent(ZEROED, true)?;
        memory.as_mut_slice().fill(1);
        memories.push(memory);
    }
    let arrays: Vec<_> = (0..bench.plan.threads).map(|_| vec![1_u64; STREAMED / 8]).collect();
    let cycles: Vec<_> = (0..bench.plan.threads).map(|_| cycle(CHASED / LINE)).collect();
    for pair in 0..=pairs {
        for turn in 0..candidates.len() {
            bench.plan.go_on()?;
            let count = candidates.len();
            let candidate = &mut candidates[(turn + pair) % count];
            let alone = run(candidate, slice, None, &arrays, &cycles)?;
            let beside = run(candidate, slice, Some(&mut memories), &arrays, &cycles)?;
            if pair > 0 {
                candidate.slowdowns.push(100.0 * (1.0 - beside.steps / alone.steps));
                candidate.per_cpu.push(100.0 * (1.0 - beside.per_cpu / alone.per_cpu));
                candidate.rates.push(beside.zeroed);
            }
        }
    }
    for candidate in &candidates {
        let bound = match candidate.neighbour {
            Neighbour::Bandwidth => "bandwidth",
            Neighbour::Cache => "last-level cache",
        };
        let labels = vec![
            ("neighbour", bound.to_owned()),
            ("stores", candidate.name.clone()),
            ("zeroing", candidate.how.name()),
        ];
        let row = Row::new(labels).with("slowdown", "%", &candidate.slowdowns).with(
            "per cpu second",
            "%",
            &candidate.per_cpu,
        );
        part.rows.push(row.with("zeroed", "GB/s", &candidate.rates));
    }
    let wanted = candidates.iter().find(|candidate| {
        candidate.neighbour == Neighbour::Bandwidth
            && candidate.how == How::Idle
            && candidate.clearer.method() == chosen.method()
    });
    bench.evidence.neighbour =
        wanted.ok_or_else(|| "no such candidate".to_owned()).map(|candidate| Slowdown {
            wall: Stats::from_samples(&candidate.slowdowns),
            per_cpu_second: Stats::from_samples(&candidate.per_cpu),
            zeroed: Stats::from_samples(&candidate.rates),
        });
    for (title, bound) in [
        ("Slowdown of a neighbour bound by bandwidth, %", "bandwidth"),
        ("Slowdown of a neighbour bound by the last-level cache, %", "last-level cache"),
    ] {
        part.charts.push(Chart {
            title,
            shape: Shape::Lines,
            what: "slowdown",
            x: &["zeroing"],
            series: &["stores"],
            only: vec![("neighbour", bound.to_owned())],
        });
    }
    part.charts.push(Chart {
        title: "What zeroing gets meanwhile, GB/s",
        shape: Shape::Lines,
        what: "zeroed",
        x: &["zeroing"],
        series: &["stores"],
        only: vec![("neighbour", "bandwidth".to_owned())],
    });
    Ok(part)
}

/// A cgroup for each quota, where the machine has them.
fn throttles(bench: &Bench) -> Result<Vec<(How, Option<Throttle>)>, Failure> {
    let throttle = |percent| {
        let cpus = u32::try_from(bench.plan.threads).unwrap_or(1);
        let name = format!("prezero-bench-{}-{percent}", std::process::id());
        let throttle = Throttle::new(
            &bench.roots,
            &name,
            THROTTLE_PERIOD * cpus * percent / 100,
            THROTTLE_PERIOD,
        )?;
        Ok((How::Quota(percent), throttle))
    };
    QUOTAS.into_iter().map(throttle).collect()
}

/// One slice.
#[expect(clippy::cast_precision_loss, reason = "rates need three digits")]
fn run(
    candidate: &Candidate<'_>,
    length: Duration,
    memories: Option<&mut Vec<Anonymous>>,
    arrays: &[Vec<u64>],
    cycles: &[Vec<u32>],
) -> Result<Counted, Failure> {
    let slice = Slice::default();
    let mut memories: Vec<_> =
        memories.into_iter().flatten().map(|memory| memory.as_mut_slice()).collect();
    thread::scope(|scope| {
        let slice = &slice;
        let begin = Instant::now();
        let neighbours: Vec<_> = (0..arrays.len())
            .map(|cpu| {
                scope.spawn(move || {
                    How::Normal.context(cpu).apply(&linux::Roots::default())?;
                    let before = thread_cpu();
                    match candidate.neighbour {
                        Neighbour::Bandwidth => stream(&arrays[cpu], slice),
                        Neighbour::Cache => chase(&cycles[cpu], slice),
                    }
                    let spent = thread_cpu().saturating_sub(before).as_nanos();
                    slice.cpu.fetch_add(u64::try_from(spent).unwrap_or(0), Ordering::Relaxed);
                    Ok::<_, Failure>(())
                })
            })
            .collect();
        let zeroers: Vec<_> = memories
            .drain(..)
            .enumerate()
            .map(|(cpu, memory)| {
                scope.spawn(move || {
                    candidate.how.context(cpu).apply(&linux::Roots::default())?;
                    if let Some(throttle) = candidate.throttle {
                        throttle.join()?;
                    }
                    zero(candidate, memory, slice);
                    Ok::<_, Failure>(())
                })
            })
            .collect();
        thread::sleep(length);
        let took = begin.elapsed().as_secs_f64();
        let steps = slice.steps.load(Ordering::Relaxed);
        let zeroed = slice.zeroed.load(Ordering::Relaxed);
        slice.stop.store(true, Ordering::Relaxed);
        for one in neighbours.into_iter().chain(zeroers) {
            one.join().expect("none of them panics")?;
        }
        // Joined: all counts are final, those of the last moments included.
        let (last, cpu) = (slice.steps.load(Ordering::Relaxed), slice.cpu.load(Ordering::Relaxed));
        Ok(Counted {
            steps: steps as f64 / took,
            per_cpu: last as f64 / (cpu.max(1) as f64 / 1e9),
            zeroed: zeroed as f64 / took / 1e9,
        })
    })
}

fn zero(candidate: &Candidate<'_>, memory: &mut [u8], slice: &Slice) {
    let awake = match candidate.how {
        How::Quota(percent) if candidate.throttle.is_none() => THROTTLE_PERIOD * percent / 100,
        _ => THROTTLE_PERIOD,
    };
    let mut period = Instant::now();
    while !slice.stop.load(Ordering::Relaxed) {
        let mut before = 0;
        let _ = candidate.clearer.clear(Extent::from(&mut *memory), |progress| {
            let bytes = progress.cleared_bytes - before;
            before = progress.cleared_bytes;
            slice.zeroed.fetch_add(bytes as u64, Ordering::Relaxed);
            if awake < THROTTLE_PERIOD && period.elapsed() >= awake {
                thread::sleep(THROTTLE_PERIOD.saturating_sub(period.elapsed()));
                period = Instant::now();
            }
            if slice.stop.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
    }
}

/// A step is 1 MiB.
fn stream(array: &[u64], slice: &Slice) {
    while !slice.stop.load(Ordering::Relaxed) {
        for part in array.chunks((1 << 20) / 8) {
            black_box(part.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
            slice.steps.fetch_add(1, Ordering::Relaxed);
            if slice.stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// A step is 1024 lines.
fn chase(cycle: &[u32], slice: &Slice) {
    let mut at = 0;
    while !slice.stop.load(Ordering::Relaxed) {
        for _ in 0..1024 {
            at = cycle[at as usize * (LINE / 4)];
        }
        black_box(at);
        slice.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// One cycle through all lines in an order that no prefetcher guesses: each line's first word is
/// the next line's number.
fn cycle(lines: usize) -> Vec<u32> {
    let lines = lines.next_power_of_two();
    let mut next = vec![0_u32; lines * (LINE / 4)];
    // A full-period generator modulo a power of two: its constant is odd, its factor 1 modulo 4.
    // The low bits are swapped with the high ones, since the low bits of this kind of generator
    // change too regularly.
    let bits = lines.trailing_zeros();
    let mix = |number: usize| number.reverse_bits() >> (usize::BITS - bits);
    let mut number = 0_usize;
    for _ in 0..lines {
        let following = (number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)) % lines;
        next[mix(number) * (LINE / 4)] = u32::try_from(mix(following)).unwrap_or(0);
        number = following;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cycle_visits_every_line_once() {
        let lines = 1 << 10;
        let cycle = cycle(lines);
        let (mut at, mut seen) = (0_usize, 0);
        loop {
            at = cycle[at * (LINE / 4)] as usize;
            seen += 1;
            if at == 0 {
                break;
            }
        }
        assert_eq!(seen, lines);
    }
}
