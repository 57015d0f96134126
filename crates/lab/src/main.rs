// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero-lab`, the laboratory: what `prezero bench`, `prezero demo` and `prezero plan` run.
//!
//! [`mod@bench`] measures the shipping worker, daemon and library beside the kernel and the ways of
//! other programs. [`demo`] shows the effect with real programs. [`plan`] says how much to keep
//! ready. The first two reserve pages and embed a daemon ([`rig`]); [`prefault`] is memory as it is
//! had without prezero, [`machine`] what a measurement asks of the machine.

mod bench;
mod chart;
mod demo;
mod figure;
mod machine;
mod page;
mod plan;
mod prefault;
mod rig;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use cli::exit::{self, Outcome};

/// What prezero comes to, measured and shown.
///
/// `prezero bench`, `prezero demo` and `prezero plan` run this program.
#[derive(Debug, Parser)]
#[command(name = "prezero", bin_name = "prezero", version, after_help = exit::TABLE)]
#[command(max_term_width = 100, arg_required_else_help = true)]
struct Lab {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Demo(demo::Args),
    Bench(bench::Args),
    Plan(Box<plan::Args>),
    #[command(hide = true)]
    Man(cli::manual::Args),
}

impl Verb {
    fn run(self) -> Outcome {
        match self {
            Self::Demo(args) => demo::run(&args),
            Self::Bench(args) => bench::run(&args),
            Self::Plan(args) => plan::run(&args),
            Self::Man(args) => args.write(Lab::command(), |name| name != "prezero"),
        }
    }
}

fn main() -> ExitCode {
    cli::run(|lab: Lab| lab.verb.run())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent_and_verbs_show_an_example() {
        Lab::command().debug_assert();
        for verb in Lab::command().get_subcommands() {
            let name = verb.get_name();
            let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains(&format!("prezero {name}")), "{name} has no example");
        }
    }
}
