// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a signal to the end of zeroing.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use crate::prefault::Anonymous;
use ::clear::{Chunk, Clearer, Extent};
use rustix::process::{Signal, getpid, kill_process};
use units::PageSize;

use super::Bench;
use super::evidence::Cancelling;
use crate::figure::{Chart, Part, Row, Shape, quantile};
use crate::rig::{Pool, Scene};
use cli::exit::Failure;
use worker::{Engine, Stop, Worker};

/// Chunks to compare, and prezero's own.
const CHUNK_KIB: [usize; 5] = [64, 256, 4 << 10, 64 << 10, 512 << 10];
/// Enough for a 99th percentile with two samples above it.
const SAMPLES: usize = 200;
const QUICK_SAMPLES: usize = 20;
/// The signal comes at another time in each sample: this many steps of [`STEP_INTERVAL`] after its
/// start.
const STEPS: usize = 17;
const STEP_INTERVAL: Duration = Duration::from_micros(190);

pub(super) fn measure(bench: &mut Bench) -> Result<Part, Failure> {
    let samples = if bench.quick { QUICK_SAMPLES } else { SAMPLES };
    let mut part = Part::new(
        "cancel",
        "How long after a signal does zeroing end?",
        format!(
            "A real signal to this process while a thread zeroes, {samples} times at different moments: from the call \
             of kill to the return of the clearing call, on the wall clock. In place it looks at the signal after \
             every chunk; where the kernel zeroes, after every page (2 MiB: every batch of pages).",
        ),
    );
    let wish = Stop::on_user_signal()?;
    let chosen = bench.choice.setting.clearer().map_err(Failure::failed)?;
    let mut clearers = vec![("prezero's choice", chosen)];
    for kib in CHUNK_KIB {
        let chunk = Chunk::from_bytes(kib << 10).map_err(Failure::failed)?;
        clearers.push(("in place", Clearer::new(chosen.method(), chunk).map_err(Failure::failed)?));
    }
    let mut memory = Anonymous::map_transparent(bench.size, true)?;
    let memory = memory.as_mut_slice();
    memory.fill(1);
    let mut times = vec![Vec::new(); clearers.len()];
    for sample in 0..samples {
        for ((_, clearer), times) in clearers.iter().zip(&mut times) {
            bench.plan.go_on()?;
            times.push(in_place(clearer, memory, &wish, sample)?);
        }
    }
    for ((way, clearer), times) in clearers.iter().zip(&times) {
        let labels = vec![("way", (*way).to_owned()), ("looks every", clearer.chunk().to_string())];
        part.rows.push(row(labels, times));
    }
    bench.evidence.cancel = Ok(Cancelling {
        chunk: chosen.chunk(),
        samples: times[0].len(),
        median: quantile(&times[0], 0.5),
        p99: quantile(&times[0], 0.99),
        worst: quantile(&times[0], 1.0),
    });
    let done = bench.with_huge(Pool::new(PageSize::MIB_2, bench.size), |plan, scene| {
        scene.recycle("in-place")?;
        scene.fill(plan)?;
        let mut times = Vec::new();
        for sample in 0..samples.div_ceil(5) {
            plan.go_on()?;
            // Lent and returned, it is dirty again, whole.
            drop(scene.lend(true)?);
            scene.settle(&plan.stop)?;
            times.push(worker(scene, Engine::from_clearer(chosen), &wish, sample)?);
            // Finished pages are kept; a loan takes all of them.
            wish.reset();
            over_all(scene, Engine::from_clearer(chosen), &plan.stop).run(&|_| {})?;
        }
        Ok(times)
    })?;
    match done {
        Ok(times) => {
            let labels = vec![
                ("way", "worker, in place".to_owned()),
                ("looks every", chosen.chunk().to_string()),
            ];
            part.rows.push(row(labels, &times));
        }
        Err(why) => part.skip(format!("a worker in place: {why}")),
    }
    for page in [PageSize::GIB_1, PageSize::MIB_2] {
        let done = bench.with_huge(Pool::new(page, bench.size), |plan, scene| {
            let mut times = Vec::new();
            // Each takes pages of the kernel and gives them back: fewer do.
            for sample in 0..samples.div_ceil(5) {
                plan.go_on()?;
                times.push(worker(scene, Engine::default(), &wish, sample)?);
                scene.release(&plan.stop)?;
            }
            Ok(times)
        })?;
        match done {
            Ok(times) => {
                let labels = vec![
                    ("way", "kernel, fallocate".to_owned()),
                    ("looks every", page.to_string()),
                ];
                part.rows.push(row(labels, &times));
            }
            Err(why) => part.skip(format!("{page} pages: {why}")),
        }
    }
    part.charts.push(Chart {
        title: "99th percentile, ms",
        shape: Shape::Bars,
        what: "p99",
        x: &["way", "looks every"],
        series: &[],
        only: Vec::new(),
    });
    Ok(part)
}

fn row(labels: crate::figure::Labels, times: &[f64]) -> Row {
    let at = |part| [quantile(times, part)];
    Row::new(labels)
        .with("median", "ms", times)
        .with("p90", "ms", &at(0.9))
        .with("p99", "ms", &at(0.99))
        .with("worst", "ms", &at(1.0))
}

/// Milliseconds from the signal to the return.
fn in_place(
    clearer: &Clearer,
    memory: &mut [u8],
    wish: &Stop,
    sample: usize,
) -> Result<f64, Failure> {
    wish.reset();
    let (sent, ended) = thread::scope(|scope| {
        let clearing = scope.spawn(|| {
            while !wish.is_set() {
                let _ = clearer.clear(Extent::from(&mut *memory), |_| {
                    if wish.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
            }
            Instant::now()
        });
        let sent = signal_later(sample);
        (sent, clearing.join().expect("clearing does not panic"))
    });
    Ok(ended.saturating_duration_since(sent?).as_secs_f64() * 1e3)
}

fn over_all<'a>(scene: &'a Scene<'_>, engine: Engine, stop: &'a Stop) -> Worker<'a> {
    let socket = scene.socket();
    Worker {
        socket,
        which: scene.which(),
        background: false,
        idle_timeout: Duration::ZERO,
        threads: 1,
        limit: None,
        engine,
        at_least_one: false,
        stop,
    }
}

/// The same for a worker, its report to the daemon included.
fn worker(
    scene: &mut Scene<'_>,
    engine: Engine,
    wish: &Stop,
    sample: usize,
) -> Result<f64, Failure> {
    wish.reset();
    let worker = over_all(scene, engine, wish);
    let (sent, ended) = thread::scope(|scope| {
        let working = scope.spawn(|| {
            let work = worker.run(&|_| {});
            work.map(|_| Instant::now())
        });
        let sent = signal_later(sample);
        (sent, working.join().expect("a worker does not panic"))
    });
    Ok(ended?.saturating_duration_since(sent?).as_secs_f64() * 1e3)
}

/// Waits a while, another one in each sample, and raises the signal.
fn signal_later(sample: usize) -> Result<Instant, Failure> {
    let steps = u32::try_from(1 + sample % STEPS).unwrap_or(1);
    thread::sleep(STEP_INTERVAL * steps);
    let sent = Instant::now();
    kill_process(getpid(), Signal::USR1)
        .map_err(|errno| Failure::failed(format!("kill(getpid(), SIGUSR1): {errno}")))?;
    Ok(sent)
}
