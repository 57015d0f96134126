// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero holders`: which processes have blocks that are lent or draining.

use std::io::{self, Write};

use serde::Serialize;
use units::LeaseId;
use wire::{BlockHolder, Held, Holders};

use crate::exit::{Exit, Outcome};
use crate::output::table::{self, Column};
use crate::output::{Form, Record, loans};
use crate::shared::Daemon;

/// Find the processes that have lent or draining memory mapped, open or pinned
///
/// Looks through the mappings and descriptors of all processes, for 5 s at most, without holding up
/// the daemon. A RETURNED loan is draining: its memory stays unused until these processes let go of
/// it. The kernel hides who pinned a page. Named are processes of the borrower and of root that
/// have a means to pin pages: io_uring, VFIO or RDMA (HOW is pins). For root.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero holders
  prezero holders 1764000000123456
  prezero holders --json | jq '.holders[] | select(.draining)'")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    /// Of this loan, as `prezero status` numbers it; default: all
    #[arg(value_name = "LEASE")]
    lease: Option<LeaseId>,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let found = args.daemon.connect()?.find_holders(args.lease)?;
    args.form.print(&HoldersReport(found))?;
    Ok(Exit::Done)
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct HoldersReport(Holders);

impl Record for HoldersReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = [
            Column::right("LEASE"),
            Column::left("LOAN").drop(2),
            Column::left("HOW"),
            Column::right("PID"),
            Column::left("COMMAND").cut(8),
            Column::left("USER").cut(8),
            Column::right("NODE").drop(3),
            Column::right("PAGE").drop(1),
            Column::right("SIZE"),
            Column::left("UNIT").cut(12).drop(4),
        ];
        let row = |holder: &BlockHolder| {
            let how = match holder.how {
                Held::Maps => "maps",
                Held::Opens => "opens",
                Held::Pins => "pins",
            };
            vec![
                loans::or_dash(holder.lease.map(|lease| lease.0)),
                if holder.draining { "returned" } else { "lent" }.to_owned(),
                how.to_owned(),
                holder.pid.to_string(),
                holder.command.clone(),
                loans::user(holder.uid.0),
                holder.node.to_string(),
                holder.page_size.to_string(),
                loans::size(holder.pages.0, holder.page_size.bytes()),
                loans::unit(holder.cgroup.as_deref()),
            ]
        };
        table::write(out, &columns, &self.0.holders.iter().map(row).collect::<Vec<_>>())?;
        if !self.0.complete {
            writeln!(out, "not every process could be looked at in 5 s")?;
        }
        Ok(())
    }
}
