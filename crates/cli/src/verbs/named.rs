// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero lend --name` and `prezero return`: loans that last by a name.

use std::io::{self, Write};

use client::{Hold, LendRequest, Loan, LoanName};
use serde::Serialize;
use units::{Bytes, PageSize, Uid};

use crate::exit::{Exit, Outcome};
use crate::output::{Form, Record};
use crate::shared::{AgentDaemon, Daemon};

/// What only a loan by name has.
#[derive(Debug, clap::Args)]
pub(crate) struct NamedArgs {
    /// Lend by this name, until `prezero return NAME`; for root and members of agent.group
    #[arg(long, value_name = "NAME", conflicts_with = "command")]
    pub(crate) name: Option<LoanName>,
    /// With --name: every page is there, or the loan is refused; the daemon zeroes the rest
    #[arg(long, requires = "name")]
    pub(crate) whole: bool,
    /// With --name: the user that owns its file
    #[arg(long, value_name = "UID", requires = "name")]
    uid: Option<u32>,
    /// With --name: the file's group
    #[arg(long, value_name = "GID", requires = "name")]
    gid: Option<u32>,
    #[command(flatten)]
    agents: AgentDaemon,
    #[command(flatten)]
    form: Form,
}

impl NamedArgs {
    /// How the loan is held: by its name, if it is to have one.
    pub(crate) fn hold(&self) -> Hold {
        let Self { name, uid, gid, .. } = self;
        name.clone().map_or(Hold::Descriptor, |name| Hold::Name {
            name,
            uid: uid.map(Uid),
            gid: *gid,
        })
    }

    pub(crate) fn lend(&self, daemon: &Daemon, request: &LendRequest) -> Outcome {
        let loan = self.agents.connect(daemon)?.lend(request)?;
        self.form.print(&Lent::from(&loan))?;
        Ok(Exit::Done)
    }
}

#[derive(Debug, Serialize)]
struct Lent<'a> {
    path: &'a str,
    bytes: Bytes,
    page_bytes: PageSize,
    ready_bytes: Bytes,
    kept: bool,
    found: bool,
}

impl<'a> From<&'a Loan> for Lent<'a> {
    fn from(loan: &'a Loan) -> Self {
        Self {
            path: loan.path().unwrap_or_default(),
            bytes: loan.bytes(),
            page_bytes: loan.page_size(),
            ready_bytes: loan.ready_bytes(),
            kept: loan.is_kept(),
            found: loan.was_found(),
        }
    }
}

impl Record for Lent<'_> {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.path)
    }
}

/// End a loan that was lent by a name
///
/// Processes that have its file open or mapped keep it; the memory is lent again only after they
/// let go.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero return team-a/job-7
  prezero return team-a/job-7 --discard")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    agents: AgentDaemon,
    /// The name that it was lent by
    #[arg(value_name = "NAME")]
    name: LoanName,
    /// Keep nothing of it for its owner
    #[arg(long)]
    discard: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    args.agents.connect(&args.daemon)?.return_loan(args.name.clone(), args.discard)?;
    Ok(Exit::Done)
}
