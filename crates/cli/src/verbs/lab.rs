// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero bench`, `demo` and `plan`: a program of their own does them, the laboratory, which
//! takes this process's place. It is a package of its own, because who lends memory need not draw
//! charts.

use std::ffi::OsString;
use std::process::Command;

use crate::exit::Outcome;
use crate::inherited::become_command;
use crate::installed;

/// Measure prezero, the kernel and the incumbents side by side on this machine
///
/// Runs prezero-lab, which is in the package of that name: `prezero bench --help` says more once it
/// is installed.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  sudo prezero bench
  prezero bench clear --json | jq .ratios"
)]
pub(crate) struct Bench {
    #[command(flatten)]
    all: Everything,
}

/// Show on this machine what prezero saves, with real programs
///
/// Runs prezero-lab, which is in the package of that name: `prezero demo --help` says more once it
/// is installed.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  sudo prezero demo
  sudo prezero demo --size 8G --json | jq .ratios
  prezero demo --in-vm"
)]
pub(crate) struct Demo {
    #[command(flatten)]
    all: Everything,
}

/// Say how much memory to keep ready, by simulating the daemon over a trace of loans
///
/// Runs prezero-lab, which is in the package of that name: `prezero plan --help` says more once it
/// is installed.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  prezero plan --nodes 60 --memory 128G
  prezero plan --trace loans.csv --nodes 1 --json | jq .advice"
)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    all: Everything,
}

#[derive(Debug, clap::Args)]
struct Everything {
    /// What prezero-lab is given
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn bench(args: &Bench) -> Outcome {
    run("bench", &args.all)
}

pub(crate) fn demo(args: &Demo) -> Outcome {
    run("demo", &args.all)
}

pub(crate) fn plan(args: &PlanArgs) -> Outcome {
    run("plan", &args.all)
}

fn run(verb: &str, all: &Everything) -> Outcome {
    let mut command = Command::new(installed::lab()?);
    Err(become_command(command.arg(verb).args(&all.arguments)))
}
