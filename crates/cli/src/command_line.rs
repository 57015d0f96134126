// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line: the verbs.

use clap::{Parser, Subcommand};

use crate::exit::{self, Outcome};
use crate::manual;
use crate::verbs::{
    completions, doctor, drain, holders, lab, lend, loans, module, named, release, reserve, revoke,
    run, serve, set, status, top, wait, watch, zero,
};

/// Huge pages that are zero before anyone asks.
///
/// A huge page is zeroed when it is first touched, and programs with gigabytes of them wait for it
/// at every start. The daemon (`prezero serve`) keeps huge pages zeroed and lends them: to any
/// program that takes memory by path or descriptor (`prezero lend`), and to programs that use the
/// library. `prezero demo` shows on this machine what that saves.
#[derive(Debug, Parser)]
#[command(name = "prezero", version, after_help = exit::TABLE, max_term_width = 100)]
#[command(arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Serve(serve::Args),
    Reserve(reserve::Args),
    Status(status::Args),
    Top(top::Args),
    Zero(zero::Args),
    Watch(watch::Args),
    Wait(wait::Args),
    Lend(lend::Args),
    Return(named::Args),
    Loans(loans::Args),
    Run(run::Args),
    Set(set::Args),
    Release(release::Args),
    Drain(drain::Args),
    Holders(holders::Args),
    Revoke(revoke::Args),
    Doctor(doctor::Args),
    Module(module::Args),
    Demo(lab::Demo),
    Bench(lab::Bench),
    Plan(lab::PlanArgs),
    Completions(completions::Args),
    #[command(hide = true)]
    Man(manual::Args),
}

impl Verb {
    pub(crate) fn run(self) -> Outcome {
        match self {
            Self::Serve(args) => serve::run(args),
            Self::Reserve(args) => reserve::run(&args),
            Self::Status(args) => status::run(&args),
            Self::Top(args) => top::run(&args),
            Self::Zero(args) => zero::run(args),
            Self::Wait(args) => wait::run(&args),
            Self::Watch(args) => watch::run(&args),
            Self::Lend(args) => lend::run(&args),
            Self::Return(args) => named::run(&args),
            Self::Loans(args) => loans::run(&args),
            Self::Run(args) => run::run(&args),
            Self::Set(args) => set::run(&args),
            Self::Release(args) => release::run(&args),
            Self::Drain(args) => drain::run(&args),
            Self::Holders(args) => holders::run(&args),
            Self::Revoke(args) => revoke::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Module(args) => module::run(&args),
            Self::Demo(args) => lab::demo(&args),
            Self::Bench(args) => lab::bench(&args),
            Self::Plan(args) => lab::plan(&args),
            Self::Completions(args) => completions::run(&args),
            // The laboratory has the pages of its verbs, and brings them.
            Self::Man(args) => {
                args.write(command(), |name| !["bench", "demo", "plan"].contains(&name))
            }
        }
    }
}

/// The command line's own description, for completions and manual pages.
pub(crate) fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_says_what_it_does_and_shows_an_example() {
        for verb in Cli::command().get_subcommands() {
            let name = verb.get_name();
            assert!(verb.get_about().is_some_and(|about| !about.to_string().is_empty()), "{name}");
            let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains(&format!("prezero {name}")), "{name} has no example");
        }
    }
}
