// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line: the verbs.

use clap::{Parser, Subcommand};

use crate::exit::{self, Outcome};
use crate::manual;
use crate::placement;
use crate::verbs::{
    complete, completions, doctor, drain, holders, lab, lend, loans, module, named, release,
    reserve, revoke, run, serve, set, status, top, wait, watch, zero,
};

/// Huge pages that are zero before anyone asks.
///
/// A huge page is zeroed when it is first touched, and programs with gigabytes of them wait for it
/// at every start. The daemon (`prezero serve`) keeps huge pages zeroed and lends them: to any
/// program that takes memory by path or descriptor (`prezero lend`), and to programs that use the
/// library. `prezero demo` shows on this machine what that saves.
#[derive(Debug, Parser)]
#[command(name = "prezero", version, after_help = exit::TABLE, max_term_width = 100)]
#[command(arg_required_else_help = true, help_template = help_template())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs, by what they are for.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run the service", &["serve", "reserve", "set", "release", "drain", "module"]),
    ("Borrow", &["lend", "run", "return", "loans"]),
    ("Zero", &["zero"]),
    ("Look", &["status", "top", "watch", "wait", "doctor", "holders", "revoke"]),
    ("Study, and set up", &["demo", "bench", "plan", "completions", "help"]),
];

/// clap's own, with the verbs in groups.
fn help_template() -> String {
    let verbs = Verb::augment_subcommands(clap::Command::new("prezero"));
    let about = |name: &str| {
        let about = verbs.find_subcommand(name).and_then(clap::Command::get_about);
        about.map_or("Print this, or the help of a verb".to_owned(), ToString::to_string)
    };
    let mut template = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        template += &format!("\n{heading}:\n");
        for name in names {
            template += &format!("  {name:<12} {}\n", about(name));
        }
    }
    template + "\nOptions:\n{options}{after-help}"
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
    Complete(complete::Args),
    #[command(hide = true)]
    Unlend(placement::Args),
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
            Self::Complete(args) => complete::run(&args),
            Self::Unlend(args) => placement::run(&args),
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
    fn help_has_every_verb_in_one_group() {
        let help = Cli::command().render_help().to_string();
        let (help, _) = help.split_once("\nOptions:\n").expect("options behind the verbs");
        for verb in Cli::command().get_subcommands() {
            let name = verb.get_name();
            let lines = help.lines().filter(|line| line.starts_with(&format!("  {name} ")));
            assert_eq!(lines.count(), usize::from(!verb.is_hide_set()), "{name}: {help}");
        }
        for (heading, _) in GROUPS {
            assert!(help.contains(&format!("\n{heading}:\n")), "{heading}");
        }
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
