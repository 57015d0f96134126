// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The manual pages of the laboratory's verbs, for packages.

use std::path::PathBuf;

use clap::CommandFactory;
use cli::exit::{Exit, Outcome};

/// Write the manual pages prezero-bench.1, prezero-demo.1 and prezero-plan.1
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero man target/man")]
pub(crate) struct Args {
    /// Where to; made if it is missing
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> Outcome {
    std::fs::create_dir_all(&args.dir)?;
    let mut lab = crate::Lab::command().disable_help_subcommand(true);
    lab.build();
    for verb in lab.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        clap_mangen::Man::new(verb.clone()).generate_to(&args.dir)?;
    }
    Ok(Exit::Done)
}
