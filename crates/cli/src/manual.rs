// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero man`: the manual pages of a command line, for packages. Hidden: who builds a package
//! runs it, through `cargo xtask man`. The laboratory has the same verb for its own.

use std::path::PathBuf;

use clap::Command;
use clap_mangen::Man;

use crate::exit::{Exit, Outcome};

/// Write the manual pages of this command line, prezero.1, prezero-serve.1 and so on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero man target/man")]
pub struct Args {
    /// Where to; made if it is missing
    dir: PathBuf,
}

impl Args {
    /// Writes a page for the command and each of its verbs whose name is `wanted`.
    ///
    /// # Errors
    /// Those of the files.
    pub fn write(&self, command: Command, wanted: impl Fn(&str) -> bool) -> Outcome {
        std::fs::create_dir_all(&self.dir)?;
        let mut command = command.disable_help_subcommand(true);
        command.build();
        for page in std::iter::once(&command).chain(command.get_subcommands()) {
            if !page.is_hide_set() && wanted(page.get_name()) {
                Man::new(page.clone()).generate_to(&self.dir)?;
            }
        }
        Ok(Exit::Done)
    }
}
