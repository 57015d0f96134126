// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero man`: the manual pages of this command line, for packages. Hidden: who builds a package
//! runs it, through `cargo xtask man`.

use std::path::PathBuf;

use crate::exit::{Exit, Outcome};

/// Write the manual pages of prezero and its verbs, prezero.1, prezero-serve.1 and so on
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
    clap_mangen::generate_to(crate::command_line::command(), &args.dir)?;
    // The laboratory has their pages, and brings them.
    for verb in ["bench", "demo", "plan"] {
        std::fs::remove_file(args.dir.join(format!("prezero-{verb}.1")))?;
    }
    Ok(Exit::Done)
}
