// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero revoke`: takes a loan's memory from every process that has it.

use std::io::{self, Write};

use serde::Serialize;
use units::{Bytes, LeaseId};

use crate::exit::{Exit, Outcome};
use crate::output::{Form, Record};
use crate::shared::Daemon;

/// Take a loan's memory away from every process that has it
///
/// Ends the loan and cuts its files to nothing: the kernel takes the pages out of every mapping,
/// and a process that touches them again gets SIGBUS, which ends most (QEMU and databases among
/// them). The content is lost. To end a loan in peace end its process: `prezero status` has the
/// PID.
///
/// Pinned pages stay with the kernel (VFIO, RDMA, io_uring): they come back when they are unpinned.
/// A process that has the file open keeps it, and can fill it anew from the kernel's free pages, as
/// any program can without prezero, until it ends. `prezero holders` lists the processes. For root.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero revoke 1764000000123456")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    /// The loan, as `prezero status` or `prezero holders` numbers it
    #[arg(value_name = "LEASE")]
    lease: LeaseId,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let bytes = args.daemon.connect()?.revoke(args.lease)?;
    args.form.print(&RevokeReport { lease: args.lease.0, bytes: bytes.0 })?;
    Ok(Exit::Done)
}

#[derive(Debug, Serialize)]
struct RevokeReport {
    lease: u64,
    bytes: u64,
}

impl Record for RevokeReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { lease, bytes } = self;
        writeln!(out, "took {} of loan {lease} away", Bytes(*bytes))
    }
}
