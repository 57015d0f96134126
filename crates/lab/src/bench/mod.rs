// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero bench`: prezero, the kernel and the incumbents side by side.
//!
//! # The walk
//!
//! 1. The machine is described, and prezero's choice of method and chunk measured ([`calibrate`]).
//! 2. Each part is one file with one `measure`: it returns a [`Part`](crate::figure::Part), rows of
//!    figures with their labels, and sets its fields of [`evidence::Evidence`], from which the
//!    ratios are made.
//! 3. [`clock`] has the two clocks and the rounds that take turns; [`crate::figure`] medians and
//!    quartiles.
//! 4. [`reach`] puts each ratio beside what memory and kernel made possible in the same run.
//! 5. [`answers`] says in a sentence each what readers came for.
//! 6. [`report`] prints tables or JSON of the parts; [`page`] makes one HTML file of them, with the
//!    charts of [`crate::chart`].
//!
//! Parts that need huge pages reserve them on the demo's [`crate::rig`] and put them back.
//!
//! *Locality*, *interference* and *scale* answer questions of this repository. They are parts of
//! the feature `developer`, which packages are built without.

mod answers;
mod calibrate;
mod cancel;
mod churn;
mod clear;
mod clock;
mod evidence;
#[cfg(feature = "developer")]
mod interference;
mod jvm;
mod lend;
#[cfg(feature = "developer")]
mod locality;
mod page;
mod populate;
mod postgres;
mod reach;
mod report;
#[cfg(feature = "developer")]
mod scale;
mod start;
#[cfg(feature = "developer")]
mod throttle;

use std::path::PathBuf;

use crate::machine;
use ::clear::calibrate::{Choice, Cpu};
use clap::ValueEnum;
use linux::Roots;
use units::{Bytes, PageSize};

use crate::rig::{Backing, Plan, Pool, Rig, Scene};
use cli::exit::{Exit, Failure, Outcome};
use cli::output::{self, Form};
use clock::Others;
use evidence::Evidence;
use report::BenchReport;
use worker::Stop;
use worker::context::allowed_cpus;

/// How much memory each part works on unless --size says so.
const DEFAULT_SIZE: Bytes = Bytes(2 << 30);
const QUICK_SIZE: Bytes = Bytes(256 << 20);
/// The least: chunks and caches must fit in.
const MIN_SIZE: Bytes = Bytes(64 << 20);

/// Measure prezero, the kernel and the incumbents side by side on this machine
///
/// Every figure is the median of several rounds after a warm-up, in which everything takes turns,
/// with half the distance of the quartiles as its spread. Ratios are made of figures of the same
/// run. On a machine with other work the CPU clock is the one to trust, and the ratios use it.
///
/// Parts that need huge pages need root, reserve them from free memory and put them back, also at
/// Ctrl-C; without them those parts are skipped, said and counted. Run it on an idle machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sudo prezero bench
  prezero bench clear --json | jq .ratios
  sudo prezero bench populate cancel --size 4G --report bench.html")]
pub(crate) struct Args {
    /// Which parts (default: all)
    #[arg(value_name = "WHAT", value_enum)]
    what: Vec<What>,
    /// Write one self-contained HTML page with charts
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How much memory each part works on (default: 2G, with --quick 256M)
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,
    /// How often everything is measured; the medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Less memory and shorter runs: shows that it works, not how fast
    #[arg(long)]
    quick: bool,
    /// Threads where all are meant (default: the CPUs it may use)
    #[arg(short = 'j', long = "threads", value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    form: Form,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// The races that prezero's choice of method and chunk comes from
    Calibrate,
    /// Every clearing method and chunk, and prezero's choice among them
    Clear,
    /// The kernel's ways to populate memory, clearing in place, and lending
    Populate,
    /// QEMU, a JVM and PostgreSQL cold, preallocated, and with lent memory
    Start,
    #[cfg(feature = "developer")]
    /// What the first accesses cost after a page was cleared in different orders
    Locality,
    #[cfg(feature = "developer")]
    /// What zeroing takes from its neighbours
    Interference,
    /// From a signal to the end of zeroing
    Cancel,
    /// Loans back to back: how many are ready, and what they cost altogether
    Churn,
    /// Latency of loans with 64 clients at once
    Lend,
    #[cfg(feature = "developer")]
    /// Latency of loans beside more and more blocks, loans and connections
    Scale,
}

/// What all parts share.
#[derive(Debug)]
struct Bench {
    roots: Roots,
    plan: Plan,
    size: Bytes,
    quick: bool,
    /// What prezero clears with here.
    choice: Choice,
    /// `None` before the first part that needs it.
    rig: Option<Rig>,
    evidence: Evidence,
}

impl Bench {
    /// Reserves huge pages of one size and calls `work` with them in a daemon's reach. `Err` with
    /// why not where there are none.
    fn with_huge<T>(
        &mut self,
        pool: Pool,
        work: impl FnOnce(&Plan, &mut Scene<'_>) -> Result<T, Failure>,
    ) -> Result<Result<T, String>, Failure> {
        if let Backing::Plain { why } = Backing::choose(&self.roots) {
            return Ok(Err(format!("no huge pages: {why}")));
        }
        let (plan, roots) = (self.plan.clone(), self.roots.clone());
        if self.rig.is_none() {
            self.rig = Some(Rig::open(roots.clone(), Backing::choose(&roots))?);
        }
        let rig = self.rig.as_mut().expect("opened above");
        let page = pool.page();
        if !rig.page_sizes()?.contains(&page) {
            return Ok(Err(format!("this kernel has no {page} pages")));
        }
        let Some(mut scene) = rig.set(&plan, pool.of_a_page_or_more())? else {
            return Ok(Err(format!("no {page} pages could be reserved")));
        };
        let done = work(&plan, &mut scene)?;
        scene.clear_away()?;
        Ok(Ok(done))
    }
}

/// Most parts have what prezero zeroes beside what the kernel does. *Scale* has blocks alone.
fn needed(parts: &[What], size: Bytes) -> Bytes {
    #[cfg(feature = "developer")]
    let is_once = parts.iter().all(|what| matches!(what, What::Scale));
    #[cfg(not(feature = "developer"))]
    let is_once = parts.is_empty();
    Bytes(if is_once { size.0.saturating_add(size.0 / 16) } else { size.0.saturating_mul(2) })
}

pub(crate) fn run(args: &Args) -> Outcome {
    if cfg!(debug_assertions) {
        output::note("a debug build: it shows that the benchmark works, its figures mean nothing");
    }
    let roots = Roots::default();
    let stop = Stop::on_signals()?;
    let threads = args.threads.unwrap_or_else(allowed_cpus).max(1);
    let size = args.size.unwrap_or(if args.quick { QUICK_SIZE } else { DEFAULT_SIZE });
    PageSize::MIB_2.pages_in(size).map_err(Failure::usage)?;
    if size < MIN_SIZE {
        return Err(Failure::usage(format!("--size {size} is less than {MIN_SIZE}")));
    }
    let all = What::value_variants();
    let parts = if args.what.is_empty() { all } else { &args.what[..] };
    let (needed, available) = (needed(parts, size), machine::available(&roots)?);
    if needed > available {
        let text = format!(
            "{needed} are needed and {available} are free: give a smaller --size than {size}"
        );
        return Err(Failure::new(Exit::NotEnough, text));
    }
    let load = machine::load_average(&roots)?;
    let choice = measured_choice(&roots)?;
    let mut bench = Bench {
        plan: Plan { rounds: args.rounds, threads, stop },
        size,
        quick: args.quick,
        choice,
        rig: None,
        evidence: Evidence::none(&choice),
        roots,
    };
    let others = Others::look(&bench.roots);
    let mut report = BenchReport::new(cli::machine::describe(&bench.roots)?, load, &bench);
    for what in parts {
        bench.plan.go_on()?;
        if output::is_watched() {
            output::note(&format!("measuring: {}", name(*what)));
        }
        report.parts.push(match what {
            What::Calibrate => calibrate::measure(&bench)?,
            What::Start => start::measure(&mut bench)?,
            #[cfg(feature = "developer")]
            What::Locality => locality::measure(&bench)?,
            What::Clear => clear::measure(&mut bench)?,
            What::Populate => populate::measure(&mut bench)?,
            What::Cancel => cancel::measure(&mut bench)?,
            #[cfg(feature = "developer")]
            What::Interference => interference::measure(&mut bench)?,
            What::Churn => churn::measure(&mut bench)?,
            What::Lend => lend::measure(&mut bench)?,
            #[cfg(feature = "developer")]
            What::Scale => scale::measure(&mut bench)?,
        });
    }
    if let Some(rig) = bench.rig.take() {
        rig.close()?;
    }
    report.conclude(&bench.evidence, others.and_then(|others| others.cpus(&bench.roots)));
    if let Some(path) = &args.report {
        let html = page::html(&report).map_err(Failure::failed)?;
        std::fs::write(path, html)
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    }
    args.form.print(&report)?;
    Ok(Exit::Done)
}

fn name(what: What) -> String {
    what.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Measured anew, and not put into the cache: a benchmark changes nothing.
fn measured_choice(roots: &Roots) -> Result<Choice, Failure> {
    use ::clear::calibrate::{DEFAULT_RACE_PERIOD, Race, Scratch, defaults};
    let fallback = defaults::choice(&Cpu::read(&roots.proc)?);
    let Ok(mut scratch) = Scratch::new(Scratch::default_bytes()) else { return Ok(fallback) };
    let race = Race::run(&mut scratch.extent(), DEFAULT_RACE_PERIOD);
    Ok(race.conclude(fallback.setting))
}

/// What leaves the bytes in the cache, as the kernel and the C library do.
#[cfg(feature = "developer")]
fn cached() -> ::clear::Method {
    use ::clear::Method;
    let usual = [Method::RepStosb, Method::Stp];
    usual.into_iter().find(|method| method.is_available()).unwrap_or(Method::Portable)
}
