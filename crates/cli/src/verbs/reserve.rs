// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero reserve`: the kernel's pool as large as the configuration says, at boot.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use book::config::{Config, Reserve};
use linux::{Roots, hugetlb, numa};
use serde::Serialize;
use worker::Stop;

use crate::config_files;
use crate::exit::{Exit, Failure, Outcome};
use crate::machine::boot::{self, ReserveProgress};
use crate::output::{Form, Record, count, note, seconds, terminal};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Grow the kernel's pool of huge pages, early in the boot
///
/// Takes pages from free memory until each pool has the requested size: those of the [[reserve]]
/// tables of a configuration file, and those named here. Pools are never made smaller, and pages
/// stay unzeroed. It needs no daemon, and reports its progress every two seconds. At SIGTERM and
/// Ctrl-C it ends within a GiB, and reserved pages stay. The same holds if the kernel finds fewer
/// pages, which is exit code 5.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero reserve 1G=16                 on node 0
  prezero reserve 0:2M=8G 1:2M=4096
  prezero reserve --config /etc/prezero/prezero.toml")]
pub(crate) struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where free memory is too scattered, drop caches and move memory together, once
    #[arg(long)]
    make_room: bool,
    /// How much the pool of a node and page size shall have: a number of pages, or a size
    #[arg(value_name = "[NODE:]SIZE=AMOUNT", required_unless_present = "config")]
    pools: Vec<Reserve>,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut wanted = match &args.config {
        None => Vec::new(),
        Some(path) => {
            let text = config_files::read(path)?;
            Config::from_toml(&text).map_err(|error| config_files::in_file(path, &error))?.reserve
        }
    };
    wanted.extend(&args.pools);
    check(&wanted, &Roots::default())?;
    let stop = Stop::on_signals()?;
    terminal::stop_at_end_of_output(&stop);
    let mut report = ReserveReport { pools: Vec::new() };
    for one in &wanted {
        report.pools.push(reserve(args, one, &stop)?);
    }
    args.form.print(&report)?;
    Ok(match () {
        () if stop.is_set() => Exit::after(&stop),
        () if report.pools.iter().any(Reserved::is_short) => Exit::NotEnough,
        () => Exit::Done,
    })
}

/// That this machine has the nodes and page sizes, before any page is taken.
fn check(wanted: &[Reserve], roots: &Roots) -> Result<(), Failure> {
    let (nodes, sizes) = (numa::nodes(roots)?, hugetlb::page_sizes(roots)?);
    let list = |all: &[String]| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
    for Reserve { node, page_size, .. } in wanted {
        if !nodes.contains(node) {
            let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
            let known = list(&nodes);
            return Err(Failure::usage(format!(
                "no node {node}: this machine has memory on nodes {known}"
            )));
        }
        if !sizes.contains(page_size) {
            let sizes: Vec<_> = sizes.iter().map(ToString::to_string).collect();
            let known = list(&sizes);
            return Err(Failure::usage(format!("no {page_size} pages: this kernel has {known}")));
        }
    }
    Ok(())
}

fn reserve(args: &Args, wanted: &Reserve, stop: &Stop) -> Result<Reserved, Failure> {
    let (roots, begin) = (Roots::default(), Instant::now());
    let mut reported = begin;
    let mut go_on = |progress: ReserveProgress| {
        if reported.elapsed() >= PROGRESS_INTERVAL {
            reported = Instant::now();
            let Reserve { node, page_size, pages } = wanted;
            note(&format!("node {node} {page_size}: {} of {pages} pages reserved", progress.pages));
        }
        !stop.is_set()
    };
    let mut progress = boot::grow(&roots, wanted, &mut go_on)?;
    if progress.is_short && args.make_room && !stop.is_set() {
        hugetlb::make_room(&roots)?;
        progress = boot::grow(&roots, wanted, &mut go_on)?;
    }
    Ok(Reserved {
        node: wanted.node.0,
        page_bytes: wanted.page_size.bytes(),
        wanted_pages: wanted.pages.0,
        pages: progress.pages.0,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

#[derive(Debug, Serialize)]
struct ReserveReport {
    pools: Vec<Reserved>,
}

#[derive(Debug, Serialize)]
struct Reserved {
    node: u32,
    page_bytes: u64,
    wanted_pages: u64,
    pages: u64,
    seconds: f64,
}

impl Reserved {
    fn is_short(&self) -> bool {
        self.pages < self.wanted_pages
    }
}

impl Record for ReserveReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.pools.is_empty() {
            return writeln!(out, "nothing is to be reserved");
        }
        for pool in &self.pools {
            let page = units::Bytes(pool.page_bytes);
            let time = seconds(Duration::from_secs_f64(pool.seconds));
            let pages = count(pool.pages, "page");
            write!(out, "node {} {page}: {pages} in {time}", pool.node)?;
            if pool.is_short() {
                let missing = pool.wanted_pages - pool.pages;
                write!(
                    out,
                    ", {missing} fewer than wanted: reserve them on the kernel's command line, or try --make-room"
                )?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text;

    #[test]
    fn a_pool_that_is_too_small_says_by_how_much_and_what_to_do() {
        let pool =
            |pages| Reserved { node: 1, page_bytes: 1 << 30, wanted_pages: 4, pages, seconds: 0.5 };
        assert_eq!(text(&ReserveReport { pools: vec![pool(4)] }), "node 1 1G: 4 pages in 500 ms\n");
        let short = text(&ReserveReport { pools: vec![pool(1)] });
        assert!(short.starts_with("node 1 1G: 1 page in 500 ms, 3 fewer than wanted"), "{short}");
        assert_eq!(text(&ReserveReport { pools: vec![] }), "nothing is to be reserved\n");
    }
}
