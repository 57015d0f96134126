// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero watch`: levels as they change, or when they fall.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use book::config::Amount;
use serde::Serialize;
use wire::{Level, WatchReply};

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Form, Record, terminal};
use crate::shared::{Daemon, WhichPages, in_pages};

/// Report how many pages are ready: on every change, or when they fall below a threshold
///
/// Without --below: the levels now, and again whenever a count changes. With --below: a report
/// whenever a node has less than that ready of a page size (at once if it has), each time that it
/// falls anew. Reports come at most once per --interval, and the last state is never lost. The
/// stream ends with the daemon (exit code 3) or at Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero watch
  prezero watch --page-size 1G --below 4 --json
  prezero watch --below 8G --once && prezero zero 8G   zero when it becomes necessary")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    which: WhichPages,
    /// Report only when less than this is ready: a size, or a number of pages
    #[arg(long, value_name = "AMOUNT")]
    below: Option<Amount>,
    /// End after the first report
    #[arg(long)]
    once: bool,
    /// The least time between two reports, as in 100ms or 2s
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = humantime::parse_duration)]
    interval: Duration,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    terminal::end_with_output();
    let (node, page_size) = (args.which.get().node(), args.which.get().page_size);
    let mut client = args.daemon.connect()?;
    let below = match args.below {
        Some(amount) => Some(in_pages(amount, args.which, || Ok(client.status()?.pools))?),
        None => None,
    };
    for reply in client.watch(node, page_size, below, args.interval)? {
        args.form.print_next(&WatchReport { time: now(), reply: reply? })?;
        if args.once {
            return Ok(Exit::Done);
        }
    }
    Err(Failure::new(Exit::NoDaemon, "the daemon has ended"))
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

#[derive(Debug, Serialize)]
struct WatchReport {
    /// When it came, in seconds since 1970: what makes a history that `prezero plan` reads.
    time: f64,
    #[serde(flatten)]
    reply: WatchReply,
}

impl Record for WatchReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        for level in &self.reply.levels {
            let Level { node, page_size, ready_pages, zeroable_pages, zeroing_pages, lent_pages } =
                level;
            let counts = [ready_pages, zeroing_pages, zeroable_pages, lent_pages];
            let [ready, zeroing, zeroable, lent] = counts.map(|pages| pages.bytes(*page_size));
            writeln!(
                out,
                "node {node} {page_size}: {ready} ready, {zeroing} zeroing, {zeroable} zeroable, {lent} lent",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text;
    use units::{Node, PageSize, Pages};

    #[test]
    fn one_line_per_level() {
        let level = |node| Level {
            node,
            page_size: PageSize::MIB_2,
            ready_pages: Pages(3),
            zeroable_pages: Pages(2),
            zeroing_pages: Pages(1),
            lent_pages: Pages(0),
        };
        let reply = WatchReply { levels: vec![level(Node(0)), level(Node(1))] };
        let report = WatchReport { time: 0.0, reply };
        let line = |node| format!("node {node} 2M: 6M ready, 2M zeroing, 4M zeroable, 0 lent\n");
        assert_eq!(text(&report), line(0) + &line(1));
    }
}
