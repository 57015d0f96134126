// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero zero`: this process as a worker.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clear::{Chunk, Method};
use client::Client;
use linux::Roots;
use linux::hugepagectl::ALL;
use linux::kernel::Device;
use units::{Bytes, Domain, Node, PageSize, Pages};
use wire::PoolStatus;
use worker::context::allowed_cpus;
use worker::{
    Engine, Exit as Ended, Invocation, PageLimit, Stop, Summary, Unfinished, WorkDone, Worker,
};

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{self, Form, Record, count, progress, rate, seconds, terminal};
use crate::shared::{Daemon, Limit, WhichPages, in_pages};

/// Zero pages now, in this process's own scheduling and cgroup context
///
/// Takes blocks from the daemon and zeroes them, AMOUNT of the selected pages: more than there are
/// zeroable ones zeroes all of those. --node and --page-size select; other pages are left
/// alone. Ctrl-C and SIGTERM stop it within one page where the kernel allocates, within 256 KiB
/// where memory is cleared in place, within some 10 ms where the kernel zeroes its own pool.
/// Finished work is kept. A second Ctrl-C ends it at once.
///
/// Members of zero_group that root does not trust with lent memory get no blocks in their hands:
/// theirs is done by the control tree, in one thread.
///
/// The caller pays for the work: put it under `nice`, `taskset` or `systemd-run --scope` as you
/// like.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  prezero zero                              everything, with all CPUs
  prezero zero 16G
  prezero zero --page-size 1G -j1 4         4 pages of 1 GiB with one thread
  nice prezero zero --node 1 max"
)]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    work: Asked,
    #[command(flatten)]
    form: Form,
}

/// What becomes an [`Invocation`].
#[derive(Debug, clap::Args)]
struct Asked {
    #[command(flatten)]
    which: WhichPages,
    /// Threads (default: as many as this process may use CPUs)
    #[arg(short = 'j', long = "threads", value_name = "N")]
    threads: Option<usize>,
    /// How much: a size, a number of pages, or `max`
    #[arg(value_name = "AMOUNT|max", default_value = "max", value_parser = limit)]
    amount: Limit,
    /// Only what the pools' thresholds ask for, silently, with one thread: as the daemon's workers
    #[arg(long)]
    background: bool,
    /// Wait this many seconds for more pages once there are none
    #[arg(long, value_name = "SECONDS", hide = true)]
    idle_timeout: Option<u32>,
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
    /// Look for a signal after this many bytes of clearing in place, as in 256KiB
    #[arg(long, value_name = "BYTES")]
    chunk: Option<Chunk>,
    /// Run where and as this process or thread runs: its cgroups, CPUs, policy and nice value
    #[arg(long, value_name = "PID", hide = true,
          conflicts_with_all = ["cpus", "nice", "sched_idle", "cgroup"])]
    like: Option<u32>,
    /// Stop at the end of standard input as at a signal, but do a first page in any case where the
    /// kernel allocates
    #[arg(long, hide = true)]
    until_eof: bool,
}

fn limit(text: &str) -> Result<Limit, String> {
    Limit::parse(text, "max")
}

impl Asked {
    /// As a worker understands it; `pools` are asked for where that takes their page size.
    fn invocation(
        self,
        pools: impl FnOnce() -> Result<Vec<PoolStatus>, Failure>,
    ) -> Result<Invocation, Failure> {
        let pages = match self.amount {
            Limit::All => None,
            Limit::Some(amount) => Some(in_pages(amount, self.which, pools)?.0),
        };
        let Self { which, threads, background, cpus, nice, sched_idle, .. } = self;
        let Self { idle_timeout, cgroup, method, chunk, like, until_eof, .. } = self;
        let (which, pages) = (which.get(), PageLimit::new(pages));
        Ok(Invocation {
            which,
            threads,
            pages,
            background,
            idle_timeout,
            cpus,
            nice,
            sched_idle,
            cgroup,
            method,
            chunk,
            like,
            until_eof,
        })
    }
}

pub(crate) fn run(args: Args) -> Outcome {
    let Args { daemon, work, form } = args;
    let pools = || Ok(Client::connect(&daemon.socket)?.status()?.pools);
    let invocation = &work.invocation(pools)?;
    // A value that cannot be is bad input; what happens to a possible one is another matter.
    invocation.context().check(&Roots::default()).map_err(Failure::usage)?;
    let engine = Engine::new(invocation.forced(), !invocation.is_quiet())?;
    invocation.context().apply(&Roots::default())?;
    let stop = Stop::on_signals()?;
    if !invocation.is_quiet() {
        terminal::stop_at_end_of_output(&stop);
    }
    let threads = if invocation.background {
        1
    } else {
        invocation.threads.unwrap_or_else(allowed_cpus).max(1)
    };
    let worker = Worker {
        socket: &daemon.socket,
        which: invocation.which,
        background: invocation.background,
        idle_timeout: Duration::from_secs(invocation.idle_timeout.unwrap_or(0).into()),
        threads,
        limit: invocation.pages.pages(),
        engine,
        at_least_one: invocation.until_eof,
        stop: &stop,
    };
    if invocation.until_eof {
        stop.stop_at_end_of_input();
    }
    if invocation.background {
        worker.run(&|_| ())?;
        return Ok(Ended::Done.into());
    }
    // A worker that the daemon has started needs no bar.
    let (pools, tree) = match invocation.until_eof {
        true => (Vec::new(), None),
        false => {
            let status = Client::connect(&daemon.socket)?.status()?;
            (status.pools, status.tree)
        }
    };
    let bar = progress::bytes(total(&pools, invocation), "zeroing");
    let work = worker.run(&|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let work = match (work, tree) {
        (Err(unfinished), Some(tree)) if may_not(&unfinished) => {
            by_tree(&tree, &pools, invocation, &stop)?
        }
        (Ok(work), _) => work,
        (Err(unfinished), _) => {
            if invocation.until_eof {
                // Who waits for it is told how far it got.
                form.print(&Summary::new(&unfinished.work, stop.is_set()))?;
            }
            return Err(unfinished.into());
        }
    };
    let interrupted = stop.is_set();
    form.print(&Summary::new(&work, interrupted))?;
    if work.pages == 0 && !interrupted && !invocation.until_eof {
        for line in why_nothing(&Client::connect(&daemon.socket)?.status()?.pools, invocation) {
            output::note(&line);
        }
    }
    Ok(if interrupted { Exit::after(&stop) } else { Ended::Done.into() })
}

/// Whether blocks are not to be in this user's hands: the zeroing group's, unless it is trusted.
fn may_not(unfinished: &Unfinished) -> bool {
    let refused = |error: &client::Error| {
        matches!(error, client::Error::Refused(wire::Error::NotPermitted { .. }))
    };
    matches!(&unfinished.error, worker::Error::Client(error) if refused(error))
}

/// Zeroes by the control tree, node by node: a worker of the daemon's has the blocks in its hands,
/// and runs where and as this process does, charged to it.
fn by_tree(
    tree: &str,
    pools: &[PoolStatus],
    invocation: &Invocation,
    stop: &Stop,
) -> Result<WorkDone, Failure> {
    let begin = Instant::now();
    let device = Device::open_to_zero_at(&Path::new(tree).join("hugepagectl"))?;
    let mut work = WorkDone { threads: 1, ..WorkDone::default() };
    let meant = pools.iter().filter(|pool| invocation.which.fits(pool.node, pool.page_size));
    let domains: BTreeSet<_> = meant.map(|pool| (pool.node, pool.page_size)).collect();
    for (node, page_size) in domains {
        let left = invocation.pages.pages().map_or(ALL, |pages| pages - work.pages);
        if left == 0 || stop.is_set() {
            break;
        }
        let done = device.zero(Domain { node, page_size }, Pages(left))?;
        work.pages += done.pages.0;
        work.bytes += done.pages.bytes(page_size).0;
    }
    work.took = begin.elapsed();
    Ok(work)
}

/// Why there was nothing to zero: a line for each node and page size that is meant.
fn why_nothing(pools: &[PoolStatus], invocation: &Invocation) -> Vec<String> {
    let mut reported = BTreeMap::new();
    for pool in pools.iter().filter(|pool| invocation.which.fits(pool.node, pool.page_size)) {
        let sums: &mut [Pages; 5] = reported.entry((pool.node, pool.page_size)).or_default();
        let (free, promised) = (pool.kernel_free_pages, pool.kernel_reserved_pages);
        let used = pool.lent_pages + pool.kept_pages + pool.draining_pages;
        let leave = sums[2].max(pool.leave_free);
        *sums = [free, promised, leave, sums[3] + pool.ready_pages, sums[4] + used];
    }
    let line = |((node, page), [free, promised, leave, ready, used]): (
        (Node, PageSize),
        [Pages; 5],
    )| {
        let amounts = [free, promised, leave, ready, used].map(|pages| pages.bytes(page));
        let [free, promised, leave, ready, used] = amounts;
        let promised = match promised {
            Bytes(0) => String::new(),
            _ => format!(
                "; {promised} of the free memory is promised to programs that have mapped it"
            ),
        };
        format!(
            "nothing to zero on node {node}, {page}: {ready} ready, {used} lent, kept or draining, \
             {free} free in the kernel, where {leave} stays free{promised}"
        )
    };
    if reported.is_empty() {
        return vec!["no pool has such pages: `prezero status` shows those there are".to_owned()];
    }
    reported.into_iter().map(line).collect()
}

/// The bytes that the bar counts to: the zeroable ones, or the requested ones if they are fewer.
fn total(pools: &[PoolStatus], invocation: &Invocation) -> u64 {
    let mut left = Pages(invocation.pages.pages().unwrap_or(u64::MAX));
    let meant = pools.iter().filter(|pool| invocation.which.fits(pool.node, pool.page_size));
    meant
        .map(|pool| {
            let pages = pool.zeroable_pages.min(left);
            left = left.saturating_sub(pages);
            pages.bytes(pool.page_size)
        })
        .sum::<Bytes>()
        .0
}

impl Record for Summary {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{}zeroed {} in {} with {}: {}",
            if self.interrupted { "interrupted: " } else { "" },
            Bytes(self.bytes),
            seconds(Duration::from_secs_f64(self.seconds)),
            count(self.threads as u64, "thread"),
            rate(self.bytes_per_second),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use proptest::prelude::*;
    use std::ffi::OsString;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        asked: Asked,
    }

    fn read(words: Vec<OsString>) -> Result<Invocation, clap::Error> {
        let line = Line::try_parse_from([OsString::from("zero")].into_iter().chain(words))?;
        Ok(line.asked.invocation(|| Ok(Vec::new())).expect("pages need no pools"))
    }

    fn invocations() -> impl Strategy<Value = Invocation> {
        let size = prop::sample::select(vec![2_u64 << 20, 1 << 30]).prop_map(PageSize::new);
        let chunk = (12_u32..30).prop_map(|bits| Chunk::from_bytes(1 << bits).unwrap());
        let place = (
            prop::option::of("[0-9]{1,2}(-[0-9]{1,2})?(,[0-9]{1,3})?"),
            prop::option::of(-20..=19_i32),
            any::<bool>(),
            prop::option::of("[-/ a-zA-Z0-9.=]{1,20}".prop_map(PathBuf::from)),
            prop::option::of(any::<u32>()),
        );
        let work = (
            prop::option::of(0..64_u32),
            prop::option::of(size),
            prop::option::of(1..64_usize),
            prop::option::of(1..u64::MAX),
            any::<bool>(),
            any::<bool>(),
            prop::option::of(any::<u32>()),
            (prop::option::of(Just(Method::Portable)), prop::option::of(chunk)),
        );
        (place, work).prop_map(|((cpus, nice, sched_idle, cgroup, like), work)| {
            let (node, size, threads, pages, background, until_eof, idle, clear) = work;
            let (idle_timeout, (method, chunk)) = (idle, clear);
            let which = worker::Which::new(node.map(Node), size.flatten());
            let alone = like.is_none();
            Invocation {
                which,
                threads,
                pages: PageLimit::new(pages),
                background,
                idle_timeout,
                cpus: cpus.filter(|_| alone),
                nice: nice.filter(|_| alone),
                sched_idle: sched_idle && alone,
                cgroup: cgroup.filter(|_| alone),
                method,
                chunk,
                like,
                until_eof,
            }
        })
    }

    proptest! {
        #[test]
        fn invocation_survives_its_command_line(invocation in invocations()) {
            let back = read(invocation.arguments());
            prop_assert_eq!(back.map_err(|error| error.to_string()), Ok(invocation));
        }
    }

    #[test]
    fn empty_command_line_zeroes_everything() {
        assert_eq!(read(Vec::new()).unwrap(), Invocation::default());
    }

    #[test]
    fn summary_is_one_line() {
        let work = WorkDone {
            pages: 8,
            bytes: 8 << 30,
            blocks: 1,
            took: Duration::from_millis(250),
            threads: 2,
        };
        let line = crate::output::text(&Summary::new(&work, true));
        assert_eq!(line, "interrupted: zeroed 8G in 250 ms with 2 threads: 34.4 GB/s\n");
    }
}
