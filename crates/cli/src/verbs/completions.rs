// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero completions`: what a shell needs to complete this command line.

use std::io::Write;

use clap_complete::Shell;

use crate::exit::{Exit, Outcome};

/// Print a shell's completions of this command line
///
/// Packages install them; this is for other installations.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero completions bash > /etc/bash_completion.d/prezero
  prezero completions zsh > /usr/local/share/zsh/site-functions/_prezero
  prezero completions fish > ~/.config/fish/completions/prezero.fish")]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command_line::command(), "prezero", &mut text);
    std::io::stdout().lock().write_all(&text)?;
    Ok(Exit::Done)
}
