// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero lend --name` and `prezero return`: loans that last by a name.

use std::io::{self, Write};
use std::path::Path;

use client::{Client, Hold, LendRequest, Loan, LoanName, LoanPaths};
use serde::Serialize;
use units::{Bytes, PageSize, Uid};

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Form, Record};
use crate::placement::{LoanPlace, UserRights};
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
    /// With --name: bind the file at this new path, for its user; for root
    #[arg(long, value_name = "PATH", requires = "name", value_parser = absolute)]
    bind: Option<String>,
    /// With --name: make a link to the file at this new path
    #[arg(long, value_name = "PATH", requires = "name", value_parser = absolute)]
    link: Option<String>,
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
            paths: self.paths(),
        })
    }

    /// The user that the memory is for.
    fn user(&self) -> u32 {
        self.uid.unwrap_or(rustix::process::geteuid().as_raw())
    }

    fn paths(&self) -> LoanPaths {
        let Self { bind, link, .. } = self;
        // Root follows the daemon's own path.
        let reachable = self.user() != 0 && bind.is_none();
        LoanPaths { reachable, bind: bind.clone(), link: link.clone() }
    }

    pub(crate) fn lend(&self, daemon: &Daemon, request: &LendRequest) -> Outcome {
        let (mut agent, paths) = (self.agents.connect(daemon)?, self.paths());
        // Root lends to a user with that user's rights, another caller with its own.
        let rights = match rustix::process::geteuid().as_raw() {
            0 => UserRights::new(self.user(), self.gid),
            own => UserRights::new(own, None),
        };
        let places = LoanPlace::all(&paths, rights);
        for place in &places {
            place.check(false).or_else(|failure| match self.is_lent(&mut agent)? {
                true => place.check(true),
                false => Err(failure),
            })?;
        }
        let loan = agent.lend(request)?;
        let memory = Path::new(loan.path().unwrap_or_default());
        for place in &places {
            if let Err(failure) = place.make(memory, loan.was_found()) {
                if let (Some(name), false) = (&self.name, loan.was_found()) {
                    agent.return_loan(name.clone(), true)?;
                }
                return Err(failure);
            }
        }
        let path = paths.made_by_caller().next().map(|(_, path)| path);
        let own = Lent::from(&loan);
        self.form.print(&Lent { path: path.unwrap_or(own.path), ..own })?;
        Ok(Exit::Done)
    }

    /// Whether a loan of that name is there.
    fn is_lent(&self, agent: &mut Client) -> Result<bool, Failure> {
        let Some(name) = &self.name else { return Ok(false) };
        Ok(agent.loans(name.as_str())?.iter().any(|loan| loan.name == name.as_str()))
    }
}

/// An absolute path, as the daemon records it.
fn absolute(text: &str) -> Result<String, String> {
    let path = std::path::absolute(text).map_err(|error| error.to_string())?;
    path.into_os_string().into_string().map_err(|_| "is no text of UTF-8".to_owned())
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
