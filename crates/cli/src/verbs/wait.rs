// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero wait`: for boot order and scripts that must not begin before memory is ready.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use client::Client;
use serde::Serialize;
use units::Bytes;
use wire::PoolStatus;
use worker::Stop;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Form, Record, pools, seconds, terminal};
use crate::shared::{Daemon, WhichPages};

/// How often is looked: a status costs the daemon 0.1 ms.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Wait until memory is ready
///
/// Without --ready: until every selected pool has at least ready_low ready pages, the threshold
/// below which background zeroing starts. With it: until that much is ready in all of them
/// together. It waits for a daemon that has yet to start, too. Ends with exit code 5 when --timeout
/// is over, and names the shortage.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero wait --ready 64G
  prezero wait --ready 8G --page-size 1G --node 1 --timeout 30s && ./start-guests
  prezero wait --timeout 5min         all pools, as prezero-ready.service does")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    which: WhichPages,
    /// The amount to wait for, as in 64G
    #[arg(long, value_name = "SIZE")]
    ready: Option<Bytes>,
    /// How long to wait, as in 30s or 5min; default: for ever
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let stop = Stop::on_signals()?;
    terminal::stop_at_end_of_output(&stop);
    let begin = Instant::now();
    let mut client: Option<Client> = None;
    while !stop.is_set() {
        let missing = match look(args, &mut client) {
            Ok(pools) => match missing(args, checked(args, &pools)?) {
                None => {
                    let ready_bytes = ready(&pools).0;
                    args.form
                        .print(&Waited { ready_bytes, seconds: begin.elapsed().as_secs_f64() })?;
                    return Ok(Exit::Done);
                }
                Some(missing) => missing,
            },
            // It starts, or starts again.
            Err(client::Error::NoDaemon { .. } | client::Error::Broken { .. }) => {
                format!("no daemon answers at {}", args.daemon.socket.display())
            }
            Err(error) => return Err(error.into()),
        };
        if args.timeout.is_some_and(|timeout| begin.elapsed() >= timeout) {
            return Err(Failure::new(Exit::NotEnough, format!("{missing}: waited long enough")));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Err(Failure::stopped(&stop))
}

/// The pools that are meant.
fn look(args: &Args, kept: &mut Option<Client>) -> Result<Vec<PoolStatus>, client::Error> {
    let mut client = match kept.take() {
        Some(client) => client,
        None => Client::connect(&args.daemon.socket)?,
    };
    let mut pools = client.status()?.pools;
    *kept = Some(client);
    let which = args.which.get();
    pools.retain(|pool| which.fits(pool.node, pool.page_size));
    Ok(pools)
}

/// The same pools, if the amount is one that they can have: some are meant, and it is whole
/// pages.
fn checked<'a>(args: &Args, pools: &'a [PoolStatus]) -> Result<&'a [PoolStatus], Failure> {
    match (args.ready, pools.iter().map(|pool| pool.page_size).min()) {
        (Some(wanted), Some(smallest)) => {
            smallest.pages_in(wanted).map(|_| pools).map_err(Failure::usage)
        }
        (Some(_), None) => {
            Err(Failure::usage("no pool has such pages: `prezero status` lists the pools"))
        }
        (None, _) => Ok(pools),
    }
}

fn ready(pools: &[PoolStatus]) -> Bytes {
    pools.iter().map(|pool| pool.ready_pages.bytes(pool.page_size)).sum()
}

/// The shortage.
fn missing(args: &Args, pools: &[PoolStatus]) -> Option<String> {
    if let Some(wanted) = args.ready {
        let ready = ready(pools);
        return (ready < wanted).then(|| format!("{ready} of {wanted} are ready"));
    }
    let low = pools.iter().find(|pool| pool.ready_pages < pool.ready_low)?;
    let (node, page_size, times) = (low.node, low.page_size, pools::times(low));
    let [ready, wanted] = [low.ready_pages, low.ready_low].map(|pages| pages.bytes(page_size));
    Some(format!("node {node} {page_size}{times}: {ready} of {wanted} are ready"))
}

#[derive(Debug, Serialize)]
struct Waited {
    ready_bytes: u64,
    seconds: f64,
}

impl Record for Waited {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let took = seconds(Duration::from_secs_f64(self.seconds));
        writeln!(out, "{} are ready after {took}", Bytes(self.ready_bytes))
    }
}
