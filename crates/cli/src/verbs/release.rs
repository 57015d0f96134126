// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero release`: ready and zeroable blocks return to the kernel's pool.

use std::io::{self, Write};

use serde::Serialize;
use units::Bytes;

use crate::exit::{Exit, Outcome};
use crate::output::{Form, Record};
use crate::shared::{Daemon, Limit, WhichPages, in_pages};

/// Give ready and zeroable blocks back to the kernel's pool, for other programs
///
/// Lent and kept memory stays. Blocks are given back whole, so more pages than asked for may go.
/// Pools with thresholds take pages again as soon as those want them: lower them first. Over the
/// kernel's own pool (provider kernel) there is nothing to give: ready pages are the kernel's
/// already.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero release                      everything that is not lent
  prezero release 8G
  prezero release --page-size 1G 4     4 pages of 1 GiB")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    which: WhichPages,
    /// How much: a size, a number of pages, or `all`
    #[arg(value_name = "AMOUNT|all", default_value = "all", value_parser = limit)]
    amount: Limit,
    #[command(flatten)]
    form: Form,
}

fn limit(text: &str) -> Result<Limit, String> {
    Limit::parse(text, "all")
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut client = args.daemon.connect()?;
    let pages = match args.amount {
        Limit::All => None,
        Limit::Some(amount) => Some(in_pages(amount, args.which, || Ok(client.status()?.pools))?),
    };
    let which = args.which.get();
    let given = client.release(which.node(), which.page_size, pages)?;
    args.form.print(&Released { bytes: given.0 })?;
    Ok(Exit::Done)
}

#[derive(Debug, Serialize)]
struct Released {
    bytes: u64,
}

impl Record for Released {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "gave {} back to the kernel", Bytes(self.bytes))
    }
}
