// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero drain`: everything back to the kernel, and kept so; works while the daemon is stopped,
//! too.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use linux::Roots;
use serde::Serialize;
use wire::Drained;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Form, Record};
use crate::shared::Daemon;

/// Give all back to the kernel and keep nothing ready
///
/// Ready and zeroable pages go back at once, lent ones when they are returned, kept content when
/// its time is over. Zeroing stops until --end, whatever the thresholds say, also after a restart
/// of the daemon; a boot of the machine ends it, too. Loans are served meanwhile, from the
/// kernel's free pages. Without a daemon this gives back the pages that an earlier one has left,
/// and takes from the kernel's pools the pages that it added to them (size_max), as root.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero drain && systemctl stop prezero
  prezero drain                       also when no daemon runs
  prezero drain --end                 as configured again
  prezero drain --taint \"$(hostname)\"  and let Kubernetes place no pod here meanwhile")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    /// Go on as configured
    #[arg(long)]
    end: bool,
    /// Taint this node of Kubernetes as prezero.io/drained:NoSchedule, by the kubectl and
    /// kubeconfig of the caller; with --end remove the taint
    #[arg(long, value_name = "NODE")]
    taint: Option<String>,
    /// Without a daemon: the directory of its mounts [default: /run/prezero, if --socket is the
    /// default, too]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    #[command(flatten)]
    form: Form,
}

/// What keeps pods away.
const TAINT: &str = "prezero.io/drained";

pub(crate) fn run(args: &Args) -> Outcome {
    // No pod comes to a node that is being drained, and none before it is filled again.
    if let Some(node) = args.taint.as_ref().filter(|_| !args.end) {
        taint(node, &format!("{TAINT}=:NoSchedule"))?;
    }
    let drained = match client::Client::connect(&args.daemon.socket) {
        Ok(mut client) => client.drain(!args.end)?,
        // The input has ended.
        Err(error) if args.end => return Err(error.into()),
        Err(client::Error::NoDaemon { .. }) => daemon::drain(left_in(args)?, &Roots::default())?,
        Err(error) => return Err(error.into()),
    };
    args.form.print(&DrainReport { end: args.end, drained })?;
    if let Some(node) = args.taint.as_ref().filter(|_| args.end) {
        taint(node, &format!("{TAINT}-"))?;
    }
    Ok(Exit::Done)
}

fn taint(node: &str, taint: &str) -> Result<(), Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::failed(format!("kubectl taint node {node} {taint}: {why}"))
    };
    let mut kubectl = Command::new("kubectl");
    kubectl.args(["taint", "--overwrite", "node", node, taint]);
    let output = kubectl.output().map_err(|error| failed(&error))?;
    let said = String::from_utf8_lossy(&output.stderr);
    // A taint that is gone is what --end is for.
    if output.status.success() || taint.ends_with('-') && said.contains("not found") {
        return Ok(());
    }
    Err(failed(&said.trim()))
}

/// The place where the requested daemon has left its pages. Another daemon's socket says nothing
/// about it, and the usual place belongs to another daemon.
fn left_in(args: &Args) -> Result<&Path, Failure> {
    let socket = &args.daemon.socket;
    match &args.run_dir {
        Some(dir) => Ok(dir),
        None if socket == Path::new(client::DEFAULT_SOCKET) => {
            Ok(Path::new(daemon::DEFAULT_RUN_DIR))
        }
        None => Err(Failure::new(
            Exit::NoDaemon,
            format!("no daemon at {}: give --run-dir to drain what it left", socket.display()),
        )),
    }
}

#[derive(Debug, Serialize)]
struct DrainReport {
    #[serde(skip)]
    end: bool,
    #[serde(flatten)]
    drained: Drained,
}

impl Record for DrainReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.end {
            return writeln!(out, "is filled again as configured");
        }
        let Drained { released_bytes, lent_bytes, kept_bytes, draining_bytes } = self.drained;
        writeln!(
            out,
            "gave {} back to the kernel; {} lent, {} kept and {} draining go back when they are returned",
            released_bytes, lent_bytes, kept_bytes, draining_bytes
        )
    }
}
