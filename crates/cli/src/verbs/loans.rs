// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero loans`: the loans by name.

use std::io::{self, Write};

use client::NamedLoan;
use serde::Serialize;

use crate::exit::{Exit, Outcome};
use crate::output::table::{self, Column};
use crate::output::{Form, Record, loans};
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
            Column::left("NAME").cut(20),
            Column::right("SIZE"),
            Column::right("PAGE").drop(1),
            Column::right("NODE").drop(2),
            Column::left("USER").cut(8),
            Column::left("PATH").cut(24).drop(3),
        ];
        let row = |loan: &NamedLoan| {
            vec![
                loan.name.clone(),
                loan.bytes.to_string(),
                loan.page_size.to_string(),
                loan.node.to_string(),
                loans::user(loan.uid.0),
                if loan.pending { "(being made)".to_owned() } else { loan.path.clone() },
            ]
        };
        let rows: Vec<_> = self.loans.iter().map(row).collect();
        table::write(out, &columns, &rows)
    }
}
