// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero loans`: the loans by name.

use std::io::{self, Write};

use client::NamedLoan;
use serde::Serialize;

use crate::exit::{Exit, Outcome};
use crate::output::table::Align::{Left, Right};
use crate::output::{Form, Record, table};
use crate::shared::{AgentDaemon, Daemon};

/// List the loans that last by a name
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero loans               all of them
  prezero loans team-a/       those of one scope
  prezero loans --json | jq -r '.loans[].path'")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    agents: AgentDaemon,
    /// Only names with this beginning
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let loans = args.agents.connect(&args.daemon)?.loans(&args.prefix)?;
    args.form.print(&Loans { loans })?;
    Ok(Exit::Done)
}

#[derive(Debug, Serialize)]
struct Loans {
    loans: Vec<NamedLoan>,
}

impl Record for Loans {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = [
            ("NAME", Left),
            ("SIZE", Right),
            ("PAGE", Right),
            ("NODE", Right),
            ("USER", Right),
            ("PATH", Left),
        ];
        let row = |loan: &NamedLoan| {
            vec![
                loan.name.clone(),
                loan.bytes.to_string(),
                loan.page_size.to_string(),
                loan.node.to_string(),
                loan.uid.to_string(),
                if loan.pending { "(being made)".to_owned() } else { loan.path.clone() },
            ]
        };
        let rows: Vec<_> = self.loans.iter().map(row).collect();
        table::write(out, &columns, &rows)
    }
}
