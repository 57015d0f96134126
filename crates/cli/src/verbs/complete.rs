// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero complete`: the objects that a shell completes, one a line. Shells ask it while a person
//! types, so that it is silent where no daemon answers.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use client::Client;
use linux::{Roots, hugetlb, numa};
use wire::Status;

use crate::exit::{Exit, Outcome};
use crate::shared::{AgentDaemon, Daemon};
use crate::verbs::set;

/// A person waits for the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Print the objects of a kind, for a shell's completions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero complete leases")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    agents: AgentDaemon,
    kind: Kind,
}

/// What there is to complete.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// Loans by number.
    Leases,
    /// Loans by name.
    Names,
    /// Keys that `prezero set` takes.
    Keys,
    /// Nodes with memory.
    Nodes,
    /// Sizes of huge pages.
    PageSizes,
    /// Pools, as `prezero serve` takes them.
    Pools,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let words: BTreeSet<String> = match args.kind {
        Kind::Leases => of_status(args, |status| {
            status.loans.iter().map(|loan| loan.lease.0.to_string()).collect()
        }),
        Kind::Names => {
            let loans = args.agents.connect(&args.daemon).ok();
            let loans = loans.and_then(|mut agent| agent.loans("").ok());
            loans.into_iter().flatten().map(|loan| loan.name).collect()
        }
        Kind::Keys => set::KEYS.iter().map(|key| format!("{key}=")).collect(),
        Kind::Nodes => {
            let nodes = numa::nodes(&Roots::default()).unwrap_or_default();
            nodes.iter().map(ToString::to_string).collect()
        }
        Kind::PageSizes => {
            let sizes = hugetlb::page_sizes(&Roots::default()).unwrap_or_default();
            sizes.iter().map(ToString::to_string).collect()
        }
        Kind::Pools => {
            let sizes = hugetlb::page_sizes(&Roots::default()).unwrap_or_default();
            sizes.iter().map(|size| format!("page_size={size},ready=")).collect()
        }
    };
    let mut out = std::io::stdout().lock();
    for word in words {
        writeln!(out, "{word}")?;
    }
    Ok(Exit::Done)
}

fn of_status(args: &Args, words: impl FnOnce(&Status) -> BTreeSet<String>) -> BTreeSet<String> {
    let status = Client::connect_within(&args.daemon.socket, ANSWER_TIMEOUT)
        .and_then(|mut client| client.status());
    status.map(|status| words(&status)).unwrap_or_default()
}
