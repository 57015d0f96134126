// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero watch`: levels as they change, or when they fall.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use units::Pages;
use wire::{Level, WatchReply};

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Form, Record};
use crate::shared::{Daemon, WhichPages};

/// Report how many pages are ready: on every change, or when they fall below a threshold
///
/// Without --below: the levels now, and again whenever a count changes. With --below N: a report
/// whenever a node has fewer than N ready pages of a size (at once if it has), each time that it
/// falls anew. Reports come at most once per --interval, and the last state is never lost. The
/// stream ends with the daemon (exit code 3) or at Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero watch
  prezero watch --page-size 1G --below 4 --json
  prezero watch --below 4 --once && prezero zero 4     zero when it becomes necessary")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    which: WhichPages,
    /// Report only when fewer pages than this are ready
    #[arg(long, value_name = "PAGES")]
    below: Option<u64>,
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
    let (node, page_size) = (args.which.get().node(), args.which.get().page_size);
    let client = args.daemon.connect()?;
    for reply in client.watch(node, page_size, args.below.map(Pages), args.interval)? {
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
            writeln!(
                out,
                "node {node} {page_size}: {ready_pages} ready, {zeroing_pages} zeroing, {zeroable_pages} zeroable, {lent_pages} lent",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text;
    use units::{Node, PageSize};

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
        let line = |node| format!("node {node} 2M: 3 ready, 1 zeroing, 2 zeroable, 0 lent\n");
        assert_eq!(text(&report), line(0) + &line(1));
    }
}
