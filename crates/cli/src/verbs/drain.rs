// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero drain`: everything back to the kernel, and kept so; with a daemon or without.

use std::io::{self, Write};
use std::path::PathBuf;

use linux::Roots;
use serde::Serialize;
use units::Bytes;
use wire::Drained;

use crate::exit::{Exit, Outcome};
use crate::output::{Form, Record};
use crate::shared::Daemon;

/// Give all back to the kernel and keep nothing ready
///
/// Ready and zeroable pages go back at once, lent ones when they are returned, kept content when
/// its time is over. Nothing is zeroed until --end, whatever the thresholds say, also after a
/// restart of the daemon; a boot of the machine ends it, too. Loans are served meanwhile, from the
/// kernel's free pages. Without a daemon this gives back what an earlier one has left, and
/// takes from the kernel's pools what it has added to them (reserve_max), as root.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero drain && systemctl stop prezero
  prezero drain                       also when no daemon runs
  prezero drain --end                 as configured again")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    /// Go on as configured
    #[arg(long)]
    end: bool,
    /// Without a daemon: the directory of its mounts
    #[arg(long, value_name = "DIR", default_value = "/run/prezero")]
    run_dir: PathBuf,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let drained = match client::Client::connect(&args.daemon.socket) {
        Ok(mut client) => client.drain(!args.end)?,
        // There is nothing to go on with.
        Err(error) if args.end => return Err(error.into()),
        Err(client::Error::NoDaemon { .. }) => daemon::drain(&args.run_dir, &Roots::default())?,
        Err(error) => return Err(error.into()),
    };
    args.form.print(&Report { end: args.end, drained })?;
    Ok(Exit::Done)
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(skip)]
    end: bool,
    #[serde(flatten)]
    drained: Drained,
}

impl Record for Report {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.end {
            return writeln!(out, "is filled again as configured");
        }
        let Drained { given_back_bytes, lent_bytes, kept_bytes, lingering_bytes } = self.drained;
        writeln!(
            out,
            "gave {} back to the kernel; {} lent, {} kept and {} lingering go back when they are returned",
            Bytes(given_back_bytes),
            Bytes(lent_bytes),
            Bytes(kept_bytes),
            Bytes(lingering_bytes)
        )
    }
}
