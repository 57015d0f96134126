// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero zero`: this process as a worker.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::worker::context::{Context, allowed_cpus};
use clear::{Chunk, Method};
use client::Client;
use linux::Roots;
use serde::Serialize;
use units::Bytes;
use wire::PoolStatus;

use crate::exit::{Exit, Outcome};
use crate::output::{Form, Record, bytes_per_second, count, rate, seconds};
use crate::shared::{Daemon, Which};
use crate::signals::Stop;
use crate::worker::engine::{Engine, Forced};
use crate::worker::{self, Crew, Work, progress};

/// Zero pages now, in this process's own scheduling and cgroup context
///
/// Takes blocks from the daemon and zeroes them, PAGES pages of the sizes meant or as many as there
/// are: a number above that zeroes what there is. What is not meant by --node and --page-size is
/// left alone. Ctrl-C and SIGTERM stop it within one page where the kernel allocates, within 256
/// KiB where memory is cleared in place, within some 10 ms where the kernel zeroes its own pool,
/// and what was done is kept; a second Ctrl-C ends it at once.
///
/// The work is charged to whoever runs this: put it under `nice`, `taskset` or `systemd-run
/// --scope` as you like.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  prezero zero                              everything, with all CPUs
  prezero zero --page-size 1G -j1 4         4 pages of 1 GiB with one thread
  nice prezero zero --node 1 max"
)]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    which: Which,
    /// Threads (default: as many as this process may use CPUs)
    #[arg(short = 'j', long = "threads", value_name = "N")]
    threads: Option<usize>,
    /// How many pages: a number, or `max`
    #[arg(value_name = "PAGES|max", default_value = "max", value_parser = pages)]
    pages: Count,
    /// Only what the pools' thresholds ask for, silently, with one thread: as the daemon's workers
    #[arg(long)]
    background: bool,
    /// Run on these CPUs only, as in 0-3,8 (--background: those of --node)
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Run with this nice value
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-20..=19))]
    nice: Option<i32>,
    /// Run only when nobody else wants the CPU (SCHED_IDLE)
    #[arg(long)]
    sched_idle: bool,
    /// Run in this cgroup, made if it is missing
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Clear blocks in place with this method (default: the best as measured on this CPU)
    #[arg(long, value_name = "NAME")]
    method: Option<Method>,
    /// Look for a signal after so many bytes of clearing in place, as in 256KiB
    #[arg(long, value_name = "BYTES")]
    chunk: Option<Chunk>,
    /// Run where and as this process or thread runs: its cgroups, CPUs, policy and nice value
    #[arg(long, value_name = "PID", hide = true, conflicts_with_all = ["cpus", "nice", "sched_idle", "cgroup"])]
    like: Option<u32>,
    /// Stop at the end of standard input as at a signal, but do a first page in any case where the
    /// kernel allocates
    #[arg(long, hide = true)]
    until_eof: bool,
    #[command(flatten)]
    form: Form,
}

/// A number of pages, or no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count(Option<u64>);

impl Count {
    /// Reads a number of at least 1, or the `word` that means no bound.
    pub(crate) fn parse(text: &str, word: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == word => Ok(Self(None)),
            Ok(0) => Err(format!("zero pages are nothing: write a number from 1 on, or `{word}`")),
            Ok(pages) => Ok(Self(Some(pages))),
            Err(_) => Err(format!("`{text}` is neither a number of pages nor `{word}`")),
        }
    }

    /// The number, if there is one.
    pub(crate) fn limit(self) -> Option<u64> {
        self.0
    }
}

fn pages(text: &str) -> Result<Count, String> {
    Count::parse(text, "max")
}

pub(crate) fn run(args: &Args) -> Outcome {
    let context = Context {
        cpus: args.cpus.clone(),
        near: args.which.node().filter(|_| args.background),
        nice: args.nice,
        sched_idle: args.sched_idle,
        cgroup: args.cgroup.clone(),
        like: args.like,
    };
    let forced = Forced { method: args.method, chunk: args.chunk };
    let engine = Engine::new(forced, !args.background && !args.until_eof)?;
    context.apply(&Roots::default())?;
    let stop = Stop::on_signals()?;
    let mut crew = Crew {
        socket: &args.daemon.socket,
        which: args.which,
        background: args.background,
        threads: 1,
        limit: args.pages.limit(),
        engine,
        at_least_one: args.until_eof,
        stop: &stop,
    };
    if args.until_eof {
        stop.at_end_of_input();
    }
    if args.background {
        worker::run(&crew, &|_| ())?;
        return Ok(Exit::Done);
    }
    crew.threads = args.threads.unwrap_or_else(allowed_cpus).max(1);
    // Nobody looks at a bar of a worker that the daemon has started.
    let pools = match args.until_eof {
        true => Vec::new(),
        false => Client::connect(&args.daemon.socket)?.status()?.pools,
    };
    let bar = progress::bytes(total(&pools, args), "zeroing");
    let work = worker::run(&crew, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let interrupted = stop.is_set();
    let work = match work {
        Ok(work) => work,
        Err(unfinished) => {
            if args.until_eof {
                // Who waits for it is told how far it got.
                args.form.print(&Zeroed::new(&unfinished.work, interrupted))?;
            }
            return Err(unfinished.into());
        }
    };
    args.form.print(&Zeroed::new(&work, interrupted))?;
    Ok(if interrupted { Exit::Interrupted } else { Exit::Done })
}

/// The bytes that the bar counts to: what is there, or what was asked for if that is less.
fn total(pools: &[PoolStatus], args: &Args) -> u64 {
    let mut left = args.pages.limit().unwrap_or(u64::MAX);
    let meant = pools.iter().filter(|pool| args.which.fits(pool.node, pool.page_bytes));
    meant
        .map(|pool| {
            let pages = pool.zeroable_pages.min(left);
            left -= pages;
            pages.saturating_mul(pool.page_bytes)
        })
        .sum()
}

#[derive(Debug, Serialize)]
struct Zeroed {
    pages: u64,
    bytes: u64,
    blocks: u64,
    seconds: f64,
    bytes_per_second: f64,
    threads: usize,
    interrupted: bool,
}

impl Zeroed {
    fn new(work: &Work, interrupted: bool) -> Self {
        Self {
            pages: work.pages,
            bytes: work.bytes,
            blocks: work.blocks,
            seconds: work.took.as_secs_f64(),
            bytes_per_second: bytes_per_second(work.bytes, work.took),
            threads: work.threads,
            interrupted,
        }
    }
}

impl Record for Zeroed {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{}zeroed {} ({}) in {} with {}: {}",
            if self.interrupted { "interrupted: " } else { "" },
            count(self.pages, "page"),
            Bytes(self.bytes),
            seconds(std::time::Duration::from_secs_f64(self.seconds)),
            count(self.threads as u64, "thread"),
            rate(self.bytes_per_second),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn counts_are_numbers_or_the_word() {
        assert_eq!(Count::parse("max", "max"), Ok(Count(None)));
        assert_eq!(Count::parse("7", "max"), Ok(Count(Some(7))));
        for text in ["0", "-1", "", "all", "1G"] {
            assert!(Count::parse(text, "max").unwrap_err().contains("`max`"), "{text}");
        }
    }

    #[test]
    fn one_line_says_what_was_done() {
        let work = Work {
            pages: 8,
            bytes: 8 << 30,
            blocks: 1,
            took: Duration::from_millis(250),
            threads: 2,
        };
        let line = crate::output::text(&Zeroed::new(&work, true));
        assert_eq!(line, "interrupted: zeroed 8 pages (8G) in 250 ms with 2 threads: 34.4 GB/s\n");
    }
}
