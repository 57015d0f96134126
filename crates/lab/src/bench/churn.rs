// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans back to back: does prezero only move the cost?
//!
//! The borrower, the worker and the daemon are threads of this process, so that what they take
//! together is what the process takes; MAP_POPULATE and MADV_POPULATE_WRITE take turns with them.

use std::thread;
use std::time::{Duration, Instant};

use crate::prefault::Anonymous;
use client::{Client, Hold, LendRequest};
use pins::PinProbe;
use units::{Bytes, PageSize, Pages};

use super::Bench;
use super::clock::{daemon_cpu, process_cpu, thread_cpu};
use super::evidence::{Churning, Found};
use crate::figure::{Chart, Part, Row, Shape, quantile};
use crate::rig::{Plan, Pool, Scene};
use cli::exit::Failure;
use worker::{Engine, Stop, Worker};

const PAGE: PageSize = PageSize::MIB_2;
/// A loan: 64 MiB.
const PAGES_PER_LOAN: Pages = Pages(32);
/// At each load, each way: 1200 loans and more at the rates seen, and four minutes in all.
const RUN_PERIOD: Duration = Duration::from_secs(20);
const QUICK_RUN_PERIOD: Duration = Duration::from_millis(300);
/// For how long the worker waits for pages, as the daemon's own do.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two calls when the first was refused.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Loans a second in parts of what one thread of the kernel can zero.
const LOADS: [f64; 3] = [0.25, 0.5, 2.0];

/// What came out of one run.
#[derive(Default)]
struct Run {
    latencies: Vec<f64>,
    ready: u64,
    /// Calls that were refused because pages were missing, and repeated.
    refused: u64,
    bytes: u64,
    foreground: Duration,
    daemon: Duration,
    all: Duration,
}

/// A way to get memory that is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Map,
    Advise,
    /// Borrowed; how its blocks become zero again.
    Lent(&'static str),
}

impl Way {
    const ALL: [Self; 4] = [Self::Map, Self::Advise, Self::Lent("fresh"), Self::Lent("auto")];

    fn name(self) -> String {
        match self {
            Self::Map => "MAP_POPULATE".to_owned(),
            Self::Advise => "MADV_POPULATE_WRITE".to_owned(),
            Self::Lent(recycle) => format!("prezero, {recycle}"),
        }
    }
}

impl Run {
    #[expect(clippy::cast_precision_loss, reason = "figures of three digits")]
    fn per_giga(&self, time: Duration) -> f64 {
        time.as_secs_f64() / (self.bytes as f64 / 1e9)
    }

    #[expect(clippy::cast_precision_loss, reason = "figures of three digits")]
    fn ready(&self) -> f64 {
        self.ready as f64 / self.bytes as f64
    }
}

pub(super) fn measure(bench: &mut Bench) -> Result<Part, Failure> {
    let length = if bench.quick { QUICK_RUN_PERIOD } else { RUN_PERIOD };
    let mut part = Part::new(
        "churn",
        "With loans back to back, how many are ready, and what do they cost altogether?",
        format!(
            "Loans of 64 MiB in 2 MiB pages, mapped, every page touched, given back; {length:?} at each rate, given in parts \
             of the rate at which one thread of the kernel zeroes. One background thread waits for what comes back and \
             zeroes it, by allocating new pages (fresh), or where they lie once nobody has them (auto). \
             CPU seconds per GB, of the borrower, the worker, the daemon and all of them together, against \
             MAP_POPULATE and MADV_POPULATE_WRITE of the same."
        ),
    );
    let loan = PAGES_PER_LOAN.bytes(PAGE);
    let bench_is_quick = bench.quick;
    let done = bench.with_huge(
        Pool::new(PAGE, bench.size).in_blocks_of(PAGES_PER_LOAN),
        |plan, scene| {
            // One that warms up, and one that sets the rate.
            let most = without(plan, Way::Map, loan, 0.0, Duration::from_millis(300))
                .and_then(|_| without(plan, Way::Map, loan, 0.0, Duration::from_secs(1)))?;
            #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
            let most = most.latencies.len() as f64 / most.foreground.as_secs_f64();
            let mut runs = Vec::new();
            for load in LOADS {
                let rate = most * load;
                for way in Way::ALL {
                    let Way::Lent(recycle) = way else {
                        runs.push((load, rate, way, without(plan, way, loan, rate, length)?));
                        continue;
                    };
                    scene.recycle(recycle)?;
                    scene.fill(plan)?;
                    runs.push((load, rate, way, with(plan, scene, loan, rate, length)?));
                    scene.release(&plan.stop)?;
                }
            }
            let ends = ends_of_loans(plan, scene, loan, if bench_is_quick { 20 } else { 200 })?;
            let fresh_reason = scene.fresh_reason()?;
            scene.release(&plan.stop)?;
            Ok((runs, ends, fresh_reason, look(scene)?))
        },
    )?;
    let (runs, ends, fresh_reason, look) = match done {
        Ok(done) => done,
        Err(why) => {
            part.skip(why);
            return Ok(part);
        }
    };
    for (load, rate, way, run) in &runs {
        let at = |part| [quantile(&run.latencies, part)];
        let ready = run.ready() * 100.0;
        let worker = run.all.saturating_sub(run.foreground + run.daemon);
        let labels = vec![("load", format!("{load}")), ("way", way.name())];
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
                .with("borrower", "s/GB", &[run.per_giga(run.foreground)])
                .with("worker", "s/GB", &[run.per_giga(worker)])
                .with("daemon", "s/GB", &[run.per_giga(run.daemon)])
                .with("together", "s/GB", &[run.per_giga(run.all)]),
        );
    }
    let labels = vec![("way", "end of a loan held by its memory".to_owned())];
    let at = |part| [quantile(&ends, part)];
    part.rows.push(Row::new(labels).with("p50", "ms", &at(0.5)).with("p90", "ms", &at(0.9)).with(
        "p99",
        "ms",
        &at(0.99),
    ));
    let of = |load: f64, way| {
        let found = runs.iter().find(|(at, _, by, _)| (*at - load).abs() < 1e-9 && *by == way);
        found.map(|(_, _, _, run)| run)
    };
    let over = |load| {
        let (prezero, kernel) = (of(load, Way::Lent("auto"))?, of(load, Way::Map)?);
        Some((kernel.per_giga(kernel.all), prezero.per_giga(prezero.all)))
    };
    let worse =
        [0.25, 0.5].into_iter().filter_map(over).max_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let missing = || "no run of part churn came to its end".to_owned();
    bench.evidence.churn = match (worse, of(2.0, Way::Lent("auto"))) {
        (Some((kernel, prezero)), Some(twice)) => Ok(Churning {
            kernel,
            prezero,
            ready_at_twice: twice.ready(),
            end_of_loan_p99: quantile(&ends, 0.99),
            fresh_reason,
        }),
        _ => Err(missing()),
    };
    bench.evidence.pin_check = look;
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
    let daemon = daemon_cpu();
    let mut next = begin;
    while begin.elapsed() < length {
        plan.go_on()?;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        // A late borrower stays late, because it waits for its memory.
        next = (next + gap).max(Instant::now());
        one(&mut run)?;
    }
    run.foreground = thread_cpu().saturating_sub(before);
    run.all = process_cpu().saturating_sub(all);
    run.daemon = daemon_cpu().saturating_sub(daemon);
    Ok(run)
}

fn without(
    plan: &Plan,
    way: Way,
    loan: Bytes,
    rate: f64,
    length: Duration,
) -> Result<Run, Failure> {
    paced(plan, rate, length, |run| {
        let begin = Instant::now();
        let memory = if way == Way::Advise {
            let memory = Anonymous::map(loan, PAGE)?;
            memory.populate(0..usize::try_from(loan.0).unwrap_or(usize::MAX))?;
            memory
        } else {
            Anonymous::map_populated(loan, PAGE)?
        };
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
                idle_timeout: IDLE_TIMEOUT,
                threads: 1,
                limit: None,
                engine: Engine::default(),
                at_least_one: false,
                stop: &ended,
            };
            while !ended.is_set() {
                worker.run(&|_| {})?;
            }
            Ok::<_, Failure>(())
        });
        let run = borrow(plan, &socket, loan, rate, length);
        ended.set();
        worker.join().expect("a worker does not panic")?;
        run
    })
}

/// From the last `munmap` of a loan that is held by its memory until its block is zeroable, in ms.
fn ends_of_loans(
    plan: &Plan,
    scene: &mut Scene<'_>,
    bytes: Bytes,
    samples: usize,
) -> Result<Vec<f64>, Failure> {
    scene.recycle("auto")?;
    scene.fill(plan)?;
    let mut client = Client::connect(scene.socket())?;
    let mut request = LendRequest::new(bytes);
    request.page_size = Some(PAGE);
    request.hold = Hold::Memory;
    let mut ends = Vec::new();
    for _ in 0..samples {
        plan.go_on()?;
        let loan = client.lend(&request)?;
        let row: Vec<_> = loan.parts().map(|(fd, part)| (fd, part.bytes.0)).collect();
        let memory = linux::Mapping::map_row(&row, PAGE)?;
        drop(loan);
        memory.fill(0..1, 1);
        let zeroable = |client: &mut Client| -> Result<bool, Failure> {
            let pools = client.status()?.pools;
            Ok(pools.iter().all(|pool| pool.lent_pages + pool.draining_pages == Pages(0)))
        };
        let begin = Instant::now();
        drop(memory);
        while !zeroable(&mut client)? {
            plan.go_on()?;
        }
        ends.push(begin.elapsed().as_secs_f64() * 1e3);
        scene.fill(plan)?;
    }
    Ok(ends)
}

/// The time of the proof that a GiB of 2 MiB pages is unused, in us.
fn look(scene: &Scene<'_>) -> Result<Found<f64>, Failure> {
    const ROUNDS: usize = 100;
    let probe = match PinProbe::load() {
        Ok(probe) => probe,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let path = scene.run_dir().join("pins");
    std::fs::create_dir_all(&path)
        .map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?;
    let mount = linux::mount::mount(&path, PAGE)?;
    let timed = timed_looks(&mount, &probe, scene.bytes(), ROUNDS);
    mount.detach()?;
    timed
}

fn timed_looks(
    mount: &linux::HugetlbMount,
    probe: &PinProbe,
    bytes: Bytes,
    rounds: usize,
) -> Result<Found<f64>, Failure> {
    let dir = linux::BlockDir::open(&mount.dir, &["try"], 0o700)?;
    let rest = match probe.measure(&dir.create("try", "rest")?, PAGE) {
        Ok(rest) => rest,
        Err(why) => return Ok(Err(why.to_string())),
    };
    dir.unlink("try", "rest")?;
    let file = dir.create("try", "looked-at")?;
    file.allocate(0, bytes.0.min(1 << 30))?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let begin = Instant::now();
        match probe.prove(&file, rest, None, None) {
            Ok(pins::Holder::Nobody(_)) => times.push(begin.elapsed().as_secs_f64() * 1e6),
            Ok(other) => return Ok(Err(format!("a file of its own is held: {other:?}"))),
            Err(why) => return Ok(Err(why.to_string())),
        }
    }
    dir.unlink("try", "looked-at")?;
    #[expect(clippy::cast_precision_loss, reason = "at most a GiB")]
    let gib = bytes.0.min(1 << 30) as f64 / (1_u64 << 30) as f64;
    Ok(Ok(quantile(&times, 0.5) / gib))
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
                    thread::sleep(RETRY_INTERVAL);
                }
                other => break other?,
            }
        };
        let mut memory = loan.map()?;
        for page in (0..memory.len()).step_by(2 << 20) {
            memory[page] = 1;
        }
        run.latencies.push(begin.elapsed().as_secs_f64() * 1e3);
        run.ready += memory.loan().ready_bytes().0;
        run.bytes += bytes.0;
        Ok(())
    })
}
