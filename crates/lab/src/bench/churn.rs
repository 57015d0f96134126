// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans back to back: does prezero only move the cost?

use std::thread;
use std::time::{Duration, Instant};

use crate::prefault::Anonymous;
use client::{Client, LendRequest};
use units::{Bytes, PageSize, Pages};

use super::Bench;
use super::clock::{process_cpu, thread_cpu};
use crate::figure::{Chart, Part, Row, Shape, quantile};
use crate::rig::{Plan, Pool, Scene};
use cli::exit::Failure;
use worker::{Engine, Stop, Worker};

const PAGE: PageSize = PageSize::MIB_2;
/// A loan: 64 MiB.
const PAGES_PER_LOAN: Pages = Pages(32);
const LENGTH: Duration = Duration::from_secs(60);
const QUICK_LENGTH: Duration = Duration::from_secs(2);
/// How long the background worker sleeps when nothing is to be zeroed.
const IDLE: Duration = Duration::from_millis(2);
/// Between two calls when the first was refused.
const RETRY: Duration = Duration::from_millis(1);
/// Loans a second in parts of what one thread of the kernel can zero.
const LOADS: [f64; 3] = [0.25, 0.5, 2.0];

/// What came out of one run.
#[derive(Default)]
struct Run {
    latencies: Vec<f64>,
    ready: u64,
    /// Calls that were refused for want of pages, and repeated.
    refused: u64,
    bytes: u64,
    foreground: Duration,
    all: Duration,
}

pub(super) fn measure(bench: &mut Bench) -> Result<Part, Failure> {
    let length = if bench.quick { QUICK_LENGTH } else { LENGTH };
    let mut part = Part::new(
        "churn",
        "With loans back to back, how many are ready, and what do they cost altogether?",
        format!(
            "Loans of 64 MiB in 2 MiB pages, mapped, every page touched, given back; {} s at each rate, given in parts \
             of the rate at which one thread of the kernel zeroes. One background thread zeroes what comes back. CPU \
             seconds per GB, of the borrower and of all threads together (worker and daemon included), against \
             MAP_POPULATE of the same.",
            length.as_secs()
        ),
    );
    let loan = PAGES_PER_LOAN.bytes(PAGE);
    let done = bench.with_huge(
        Pool::of(PAGE, bench.size).in_blocks_of(PAGES_PER_LOAN),
        |plan, scene| {
            // One that warms up, and one that sets the rate.
            let most = without(plan, loan, 0.0, Duration::from_millis(300))
                .and_then(|_| without(plan, loan, 0.0, Duration::from_secs(1)))?;
            #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
            let most = most.latencies.len() as f64 / most.foreground.as_secs_f64();
            let mut runs = Vec::new();
            for load in LOADS {
                let rate = most * load;
                runs.push((load, rate, "MAP_POPULATE", without(plan, loan, rate, length)?));
                scene.fill(plan)?;
                runs.push((load, rate, "prezero", with(plan, scene, loan, rate, length)?));
                scene.give_back(&plan.stop)?;
            }
            Ok(runs)
        },
    )?;
    let runs = match done {
        Ok(runs) => runs,
        Err(why) => {
            part.skip(why);
            return Ok(part);
        }
    };
    for (load, rate, way, run) in &runs {
        let at = |part| [quantile(&run.latencies, part)];
        #[expect(clippy::cast_precision_loss, reason = "figures of three digits")]
        let (ready, giga) = (run.ready as f64 / run.bytes as f64 * 100.0, run.bytes as f64 / 1e9);
        let labels = vec![("load", format!("{load}")), ("way", (*way).to_owned())];
        part.rows.push(
            Row::new(labels)
                .with("wanted", "1/s", &[*rate])
                .with("ready", "%", &[ready])
                .with(
                    "refused",
                    "calls",
                    &[f64::from(u32::try_from(run.refused).unwrap_or(u32::MAX))],
                )
                .with("p50", "ms", &at(0.5))
                .with("p90", "ms", &at(0.9))
                .with("p99", "ms", &at(0.99))
                .with("borrower", "s/GB", &[run.foreground.as_secs_f64() / giga])
                .with("together", "s/GB", &[run.all.as_secs_f64() / giga]),
        );
    }
    for (title, what) in
        [("Median latency, ms", "p50"), ("CPU seconds per GB, all threads together", "together")]
    {
        part.charts.push(Chart {
            title,
            shape: Shape::Bars,
            what,
            x: &["way", "load"],
            series: &[],
            only: Vec::new(),
        });
    }
    Ok(part)
}

/// Calls `one` at `rate` a second, as fast as it goes for 0, and adds up.
fn paced(
    plan: &Plan,
    rate: f64,
    length: Duration,
    mut one: impl FnMut(&mut Run) -> Result<(), Failure>,
) -> Result<Run, Failure> {
    let gap = if rate > 0.0 { Duration::from_secs_f64(1.0 / rate) } else { Duration::ZERO };
    let mut run = Run::default();
    let (begin, before, all) = (Instant::now(), thread_cpu(), process_cpu());
    let mut next = begin;
    while begin.elapsed() < length {
        plan.go_on()?;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        // Who is late does not catch up: a borrower waits for its memory.
        next = (next + gap).max(Instant::now());
        one(&mut run)?;
    }
    run.foreground = thread_cpu().saturating_sub(before);
    run.all = process_cpu().saturating_sub(all);
    Ok(run)
}

fn without(plan: &Plan, loan: Bytes, rate: f64, length: Duration) -> Result<Run, Failure> {
    paced(plan, rate, length, |run| {
        let begin = Instant::now();
        let memory = Anonymous::map_populated(loan, PAGE)?;
        run.latencies.push(begin.elapsed().as_secs_f64() * 1e3);
        drop(memory);
        run.bytes += loan.0;
        Ok(())
    })
}

fn with(
    plan: &Plan,
    scene: &Scene<'_>,
    loan: Bytes,
    rate: f64,
    length: Duration,
) -> Result<Run, Failure> {
    let socket = scene.socket().to_owned();
    let ended = Stop::default();
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let worker = Worker {
                socket: &socket,
                which: scene.which(),
                background: false,
                threads: 1,
                limit: None,
                engine: Engine::default(),
                at_least_one: false,
                stop: &ended,
            };
            while !ended.is_set() {
                if worker.run(&|_| {})?.pages == 0 {
                    thread::sleep(IDLE);
                }
            }
            Ok::<_, Failure>(())
        });
        let run = borrow(plan, &socket, loan, rate, length);
        ended.set();
        worker.join().expect("a worker does not panic")?;
        run
    })
}

fn borrow(
    plan: &Plan,
    socket: &std::path::Path,
    bytes: Bytes,
    rate: f64,
    length: Duration,
) -> Result<Run, Failure> {
    let mut client = Client::connect(socket)?;
    let mut request = LendRequest::new(bytes);
    request.page_size = Some(PAGE);
    paced(plan, rate, length, |run| {
        let begin = Instant::now();
        let loan = loop {
            match client.lend(&request) {
                Err(client::Error::Refused(wire::Error::NotEnough { .. })) => {
                    // Every page is being zeroed or on its way back: what waiting costs counts.
                    run.refused += 1;
                    plan.go_on()?;
                    thread::sleep(RETRY);
                }
                other => break other?,
            }
        };
        let memory = loan.map()?;
        for page in (0..memory.len()).step_by(2 << 20) {
            memory.fill(page..page + 1, 1);
        }
        run.latencies.push(begin.elapsed().as_secs_f64() * 1e3);
        run.ready += loan.ready_bytes().0;
        run.bytes += bytes.0;
        Ok(())
    })
}
