// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero zero`: this process as a worker.

use std::io::{self, Write};
use std::time::Duration;

use client::Client;
use linux::Roots;
use units::Bytes;
use wire::PoolStatus;
use worker::context::allowed_cpus;
use worker::{Engine, Exit as Ended, Invocation, Stop, Summary, Worker};

use crate::exit::Outcome;
use crate::output::{Form, Record, count, progress, rate, seconds};
use crate::shared::Daemon;

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
    invocation: Invocation,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let Args { daemon, invocation, form } = args;
    let engine = Engine::new(invocation.forced(), !invocation.is_quiet())?;
    invocation.context().apply(&Roots::default())?;
    let stop = Stop::on_signals()?;
    let threads = if invocation.background {
        1
    } else {
        invocation.threads.unwrap_or_else(allowed_cpus).max(1)
    };
    let worker = Worker {
        socket: &daemon.socket,
        which: invocation.which,
        background: invocation.background,
        threads,
        limit: invocation.pages.pages(),
        engine,
        at_least_one: invocation.until_eof,
        stop: &stop,
    };
    if invocation.until_eof {
        stop.at_end_of_input();
    }
    if invocation.background {
        worker.run(&|_| ())?;
        return Ok(Ended::Done.into());
    }
    // Nobody looks at a bar of a worker that the daemon has started.
    let pools = match invocation.until_eof {
        true => Vec::new(),
        false => Client::connect(&daemon.socket)?.status()?.pools,
    };
    let bar = progress::bytes(total(&pools, invocation), "zeroing");
    let work = worker.run(&|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let interrupted = stop.is_set();
    let work = match work {
        Ok(work) => work,
        Err(unfinished) => {
            if invocation.until_eof {
                // Who waits for it is told how far it got.
                form.print(&Summary::new(&unfinished.work, interrupted))?;
            }
            return Err(unfinished.into());
        }
    };
    form.print(&Summary::new(&work, interrupted))?;
    Ok(if interrupted { Ended::Interrupted } else { Ended::Done }.into())
}

/// The bytes that the bar counts to: what is there, or what was asked for if that is less.
fn total(pools: &[PoolStatus], invocation: &Invocation) -> u64 {
    let mut left = invocation.pages.pages().unwrap_or(u64::MAX);
    let meant = pools.iter().filter(|pool| invocation.which.fits(pool.node, pool.page_bytes));
    meant
        .map(|pool| {
            let pages = pool.zeroable_pages.min(left);
            left -= pages;
            pages.saturating_mul(pool.page_bytes)
        })
        .sum()
}

impl Record for Summary {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{}zeroed {} ({}) in {} with {}: {}",
            if self.interrupted { "interrupted: " } else { "" },
            count(self.pages, "page"),
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
    use worker::Work;

    #[test]
    fn one_line_says_what_was_done() {
        let work = Work {
            pages: 8,
            bytes: 8 << 30,
            blocks: 1,
            took: Duration::from_millis(250),
            threads: 2,
        };
        let line = crate::output::text(&Summary::new(&work, true));
        assert_eq!(line, "interrupted: zeroed 8 pages (8G) in 250 ms with 2 threads: 34.4 GB/s\n");
    }
}
