// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero release`: ready and zeroable blocks return to the kernel's pool.

use std::io::{self, Write};

use serde::Serialize;
use units::{Bytes, Pages};
use worker::PageLimit;

use crate::exit::{Exit, Outcome};
use crate::output::{Form, Record};
use crate::shared::{Daemon, WhichPages};

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
  prezero release --page-size 1G 4     4 pages of 1 GiB")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    which: WhichPages,
    /// How many pages: a number, or `all`
    #[arg(value_name = "PAGES|all", default_value = "all", value_parser = pages)]
    pages: PageLimit,
    #[command(flatten)]
    form: Form,
}

fn pages(text: &str) -> Result<PageLimit, String> {
    PageLimit::parse(text, "all")
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut client = args.daemon.connect()?;
    let pages = args.pages.pages().map(Pages);
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
