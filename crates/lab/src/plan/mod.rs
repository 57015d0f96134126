// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero plan`: the simulation of [`plan`], run for each combination of the lists that
//! the command line has, on as many threads as there are CPUs.
//!
//! Without a list of amounts it searches for the least that is enough, and shows that one. [`runs`]
//! does both, and [`report`] makes a table, JSON or a page of them, and one sentence of advice.

mod report;
mod runs;

use std::path::PathBuf;

use ::plan::{Ask, Fleet, Format, NodeKind, Placement, ReadyPolicy, Shape, fleet, generate, trace};
use clap::ValueEnum as _;
use cli::exit::{Exit, Failure, Outcome};
use cli::output::{self, Form};
use units::{Bytes, PageSize, Pages};
use worker::Stop;

use self::report::PlanReport;

/// Say how much memory to keep ready, by simulating the daemon over a trace of loans
///
/// Every node runs the daemon's own code for decisions: which loans are granted, which block is
/// zeroed next, when workers run. It searches for the least amount that is enough; --matrix and
/// lists show all of it. Ctrl-C ends it with the results until then. Changes nothing and needs no
/// daemon. Measure --rate and --fault-rate with `prezero bench populate` on the machine that is
/// planned for: the defaults are those of one core of a Skylake.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero plan --nodes 60 --memory 128G
  prezero plan --nodes 60 --matrix
  prezero plan --trace jobs.gz --format sacct --nodes 8 --policy constant,day,oracle
  prezero plan --trace loans.csv --nodes 1 --ready-high 8G,16G,32G --placement packed
  prezero watch --json > day.json; prezero plan --trace day.json --format watch --nodes 1
  prezero plan --seed 7 --write-trace loans.csv --report plan.html")]
pub(crate) struct Args {
    /// The loans: CSV with the heading `arrival,size,lifetime[,node]`, or what --format says, plain
    /// or as gzip makes it (default: from --seed)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How the trace is written
    #[arg(long, value_enum, default_value_t, requires = "trace")]
    format: Format,
    /// Play the trace this many times as fast
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = positive)]
    speed: f64,
    #[command(flatten)]
    generated: Generated,
    /// Write the trace that was played, in prezero's own format
    #[arg(long, value_name = "FILE")]
    write_trace: Option<PathBuf>,
    /// NUMA nodes, each with a pool of its own
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count)]
    nodes: usize,
    /// The huge pages of one node
    #[arg(long, value_name = "SIZE", default_value = "128G")]
    memory: Bytes,
    #[arg(long, value_name = "SIZE", default_value = "2M", help = "Their size")]
    page_size: PageSize,
    /// The size of a pool's blocks (default: learnt from the loans, as `ready` in prezero.toml)
    #[arg(long, value_name = "SIZE")]
    block: Option<Bytes>,
    /// Whether a loan must be one file, as virtual machines want it
    #[arg(long)]
    single: bool,
    /// Give returned blocks back to the kernel, as `recycle = "fresh"` and machines do that hide
    /// pins; otherwise they are cleared where they lie
    #[arg(long)]
    fresh: bool,
    /// How much to keep ready on each node (default: the least that is enough, of seven from a
    /// sixteenth of its memory to all of it)
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    ready_high: Vec<Bytes>,
    /// Show every combination: all seven amounts, all placements
    #[arg(long)]
    matrix: bool,
    /// How the amount to keep ready depends on the time
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ReadyPolicy::Constant])]
    policy: Vec<ReadyPolicy>,
    /// Below how many percent of that workers start; the daemon's default is all of it
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "100",
          requires = "block", value_parser = clap::value_parser!(u8).range(0..=100))]
    ready_low: Vec<u8>,
    /// Workers of each node
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..))]
    workers: Vec<u32>,
    /// Which node a loan goes to (default: packed; with --matrix all three)
    #[arg(long, value_enum, value_delimiter = ',')]
    placement: Vec<Placement>,
    /// Seconds until the placement knows of a change of ready pages
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    delay: f64,
    /// Bytes a second that one worker zeroes by allocating
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    rate: Bytes,
    /// ... and by clearing in place (default: twice that)
    #[arg(long, value_name = "SIZE")]
    rate_in_place: Option<Bytes>,
    /// Bytes a second that a borrower's own faults zero
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    fault_rate: Bytes,
    /// The share of lent bytes that ought to be ready
    #[arg(long, value_name = "PERCENT", default_value_t = 95,
          value_parser = clap::value_parser!(u8).range(1..=100))]
    want: u8,
    /// Write one self-contained HTML page with charts
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    form: Form,
}

/// A trace that is not read from a file.
#[derive(Debug, clap::Args)]
struct Generated {
    /// Make the loans from this seed: bursts, with lognormal sizes and lifetimes
    #[arg(long, value_name = "NUMBER", default_value_t = 1, conflicts_with = "trace")]
    seed: u64,
    /// How many loans
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count,
          conflicts_with = "trace")]
    loans: usize,
    /// The median of their sizes
    #[arg(long, value_name = "SIZE", default_value = "16G", conflicts_with = "trace")]
    size: Bytes,
    /// The median of their lifetimes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, value_parser = positive,
          conflicts_with = "trace")]
    lifetime: f64,
    /// The mean number of loans in a burst
    #[arg(long, value_name = "N", default_value_t = 8.0, value_parser = at_least_one,
          conflicts_with = "trace")]
    burst: f64,
    /// How much of all nodes' memory is lent in the long run
    #[arg(long, value_name = "PERCENT", default_value_t = 60,
          value_parser = clap::value_parser!(u8).range(1..=95), conflicts_with = "trace")]
    used: u8,
}

fn number(text: &str, least: f64, says: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= least);
    value.ok_or_else(|| format!("`{text}` is not {says}"))
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, f64::MIN_POSITIVE, "a number above 0")
}

fn at_least_one(text: &str) -> Result<f64, String> {
    number(text, 1.0, "a number of at least 1")
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.0, "a number of seconds")
}

fn count(text: &str) -> Result<usize, String> {
    let value = text.parse().ok().filter(|count| *count > 0);
    value.ok_or_else(|| format!("`{text}` is not a number of at least 1"))
}

pub(crate) fn run(args: &Args) -> Outcome {
    let stop = Stop::on_signals()?;
    let mut asks = loans(args)?;
    if let Some(path) = &args.write_trace {
        let wrong =
            |error: &dyn std::fmt::Display| Failure::failed(format!("{}: {error}", path.display()));
        let file = std::fs::File::create(path).map_err(|error| wrong(&error))?;
        trace::write(&asks, std::io::BufWriter::new(file)).map_err(|error| wrong(&error))?;
    }
    let tasks = tasks(args)?;
    if args.policy.contains(&ReadyPolicy::Oracle) && args.nodes > 1 {
        fix_nodes(&mut asks, &tasks)?;
    }
    let cells = runs::all(&tasks, &asks, f64::from(args.want) / 100.0, &stop)?;
    let report = PlanReport::new(
        &asks,
        args.nodes,
        args.memory,
        args.want,
        (args.page_size, args.block),
        cells,
    );
    if let Some(path) = &args.report {
        let html = report.html().map_err(Failure::failed)?;
        std::fs::write(path, html)
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    }
    args.form.print(&report)?;
    Ok(if report.is_complete() { Exit::Done } else { Exit::after(&stop) })
}

/// Has every loan go to the node of one run with all memory ready. The oracle has to know where
/// loans will go, and policies are compared on the same loans of each node then.
fn fix_nodes(asks: &mut [Ask], tasks: &[Vec<Fleet>]) -> Result<(), Failure> {
    let Some(first) = tasks.iter().flatten().next() else { return Ok(()) };
    let (ready_high, policy) = (first.kind.memory, ReadyPolicy::Constant);
    let kind = NodeKind { ready_high, ready_low: ready_high, policy, ..first.kind };
    let placed = fleet::run(&Fleet { kind, ..*first }, asks).map_err(Failure::usage)?.placed;
    output::note("loans stay on the nodes of a first run, so that the oracle can know them");
    for (ask, node) in asks.iter_mut().zip(placed) {
        ask.node = ask.node.or(node);
    }
    Ok(())
}

/// The loans, in whole pages and at their speed.
fn loans(args: &Args) -> Result<Vec<Ask>, Failure> {
    let mut asks = match &args.trace {
        Some(path) => {
            let file = path.display();
            let read = trace::read(path, args.format)
                .map_err(|why| Failure::failed(format!("{file}: {why}")))?;
            if let Some(left_out) = &read.left_out {
                output::note(&format!("{file}: {left_out}"));
            }
            read.asks
        }
        None => generate::trace(&shape(args), args.generated.seed),
    };
    let beyond = asks.iter().enumerate().find_map(|(at, ask)| {
        let node = ask.node.filter(|node| *node >= args.nodes)?;
        Some((at + 1, node))
    });
    if let Some((loan, node)) = beyond {
        let nodes = args.nodes;
        let text = format!(
            "loan {loan} of the trace is of node {node}, and there are {nodes}, from 0 on: raise \
             --nodes, or leave the node out"
        );
        return Err(Failure::usage(text));
    }
    let page = args.page_size.bytes();
    for ask in &mut asks {
        ask.bytes = Bytes(ask.bytes.0.div_ceil(page).max(1).saturating_mul(page));
        ask.arrival /= args.speed;
        ask.lifetime /= args.speed;
    }
    Ok(asks)
}

/// The unit of generated sizes where blocks have none.
const GENERATED_UNIT: Bytes = Bytes(1 << 30);

/// The rate of arrivals at which as much is lent in the long run as was asked for.
#[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
fn shape(args: &Args) -> Shape {
    let Generated { loans, size, lifetime, burst, used, .. } = args.generated;
    let unit = args.block.unwrap_or(GENERATED_UNIT).max(Bytes(args.page_size.bytes()));
    let mut shape = Shape { loans, size, unit, most: args.memory, rate: 1.0, burst, lifetime };
    let sample = generate::trace(&Shape { loans: loans.clamp(1000, 100_000), ..shape }, 0);
    let each: f64 = sample.iter().map(|ask| ask.bytes.0 as f64 * ask.lifetime).sum::<f64>()
        / sample.len() as f64;
    let all = args.memory.0 as f64 * args.nodes as f64 * f64::from(used) / 100.0;
    shape.rate = all / each;
    shape
}

/// One task for each combination of the lists: a run, or the runs of a search, the least amount
/// first.
fn tasks(args: &Args) -> Result<Vec<Vec<Fleet>>, Failure> {
    let pages_per_block = match args.block {
        Some(block) => args.page_size.pages_in(block).map_err(Failure::usage)?.max(Pages(1)),
        None => Pages::ZERO,
    };
    args.page_size.pages_in(args.memory).map_err(Failure::usage)?;
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
    let per_second = |bytes: Bytes| bytes.0 as f64;
    if args.rate.0 == 0 || args.fault_rate.0 == 0 {
        return Err(Failure::usage("--rate and --fault-rate must be more than 0"));
    }
    if args.block.is_some() && args.policy.contains(&ReadyPolicy::Day) {
        return Err(Failure::usage("--policy day is for pools that learn: leave --block out"));
    }
    let all = [1, 2, 4, 6, 8, 12, 16].map(|part| Bytes(args.memory.0 / 16 * part));
    let highs = if args.ready_high.is_empty() { &all[..] } else { &args.ready_high };
    if let Some(ready_high) = highs.iter().find(|high| **high > args.memory) {
        let memory = args.memory;
        let text = format!("--ready-high {ready_high} is more than a node has: {memory}");
        return Err(Failure::usage(text));
    }
    // Of one node every placement is the same.
    let placements = match args.placement.as_slice() {
        [] if args.matrix && args.nodes > 1 => Placement::value_variants(),
        [] => &[Placement::Packed],
        some => some,
    };
    let whole = |bytes: Bytes| bytes.whole_pages(args.page_size).bytes(args.page_size);
    let of = |high: Bytes, percent: u8, workers, policy, placement| {
        let ready_high = whole(high);
        let percent = u64::from(percent);
        let low = ready_high.0 / 100 * percent + ready_high.0 % 100 * percent / 100;
        let kind = NodeKind {
            page_size: args.page_size,
            memory: args.memory,
            pages_per_block,
            ready_low: whole(Bytes(low)),
            ready_high,
            workers,
            rate: per_second(args.rate),
            rate_in_place: args.rate_in_place.map_or(2.0 * per_second(args.rate), per_second),
            in_place: !args.fresh,
            single: args.single,
            policy,
        };
        let (delay, fault_rate) = (args.delay, per_second(args.fault_rate));
        Fleet { kind, nodes: args.nodes, placement, delay, fault_rate }
    };
    let searches = args.ready_high.is_empty() && !args.matrix;
    let mut tasks = Vec::new();
    for percent in &args.ready_low {
        for workers in &args.workers {
            for policy in &args.policy {
                for placement in placements {
                    let of = |high: &Bytes| of(*high, *percent, *workers, *policy, *placement);
                    match searches {
                        true => tasks.push(highs.iter().map(of).collect()),
                        false => tasks.extend(highs.iter().map(|high| vec![of(high)])),
                    }
                }
            }
        }
    }
    // The amounts of one table stand together.
    tasks.sort_by_key(|runs: &Vec<Fleet>| runs.first().map(|run| run.kind.ready_high));
    Ok(tasks)
}
