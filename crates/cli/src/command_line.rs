// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line: the verbs.

use std::io::Write;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::exit::{self, Failure, Outcome};
use crate::verbs::{
    bench, completions, demo, doctor, give_back, lend, man, reserve, run, serve, set, status, top,
    watch, zero,
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
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Serve(serve::Args),
    Reserve(reserve::Args),
    Status(status::Args),
    Top(top::Args),
    Zero(zero::Args),
    Watch(watch::Args),
    Lend(lend::Args),
    Run(run::Args),
    Set(set::Args),
    GiveBack(give_back::Args),
    Doctor(doctor::Args),
    Demo(demo::Args),
    Bench(bench::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Man(man::Args),
}

impl Verb {
    pub(crate) fn run(self) -> Outcome {
        match self {
            Self::Serve(args) => serve::run(args),
            Self::Reserve(args) => reserve::run(&args),
            Self::Status(args) => status::run(&args),
            Self::Top(args) => top::run(&args),
            Self::Zero(args) => zero::run(&args),
            Self::Watch(args) => watch::run(&args),
            Self::Lend(args) => lend::run(&args),
            Self::Run(args) => run::run(&args),
            Self::Set(args) => set::run(&args),
            Self::GiveBack(args) => give_back::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Demo(args) => demo::run(&args),
            Self::Bench(args) => bench::run(&args),
            Self::Completions(args) => completions::run(&args),
            Self::Man(args) => man::run(&args),
        }
    }
}

/// The command line's own description, for completions and manual pages.
pub(crate) fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// The verb on the command line; `None` if it asked for help or the version, which are printed.
pub(crate) fn parse() -> Result<Option<Verb>, Failure> {
    let error = match Cli::try_parse() {
        Ok(cli) => return Ok(Some(cli.verb)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            write!(std::io::stdout().lock(), "{}", error.render())?;
            Ok(None)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Asked for nothing: the help is the error.
            let _ = write!(std::io::stderr().lock(), "{}", error.render());
            Err(Failure::usage("name a verb"))
        }
        _ => Err(Failure::usage(one_line(&error.render().to_string()))),
    }
}

/// Clap explains an error in paragraphs: the first says what is wrong, tips what is allowed.
fn one_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim);
    let first: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let first = first.join(" ");
    let mut line = first.strip_prefix("error: ").unwrap_or(&first).to_owned();
    for tip in lines.filter_map(|line| line.strip_prefix("tip: ")) {
        line = format!("{line}; {tip}");
    }
    line
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

    #[test]
    fn errors_are_one_line_with_what_is_allowed() {
        let error = |line: &str| {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            one_line(&error.render().to_string())
        };
        let page_size = error("prezero zero --page-size 3M");
        assert!(page_size.contains("`3M` is not a page size"), "{page_size}");
        let size = error("prezero lend 1.5G -- true");
        assert!(size.contains("write a number with K, M, G or T"), "{size}");
        let missing = error("prezero lend");
        assert!(missing.contains("<SIZE>") && missing.contains("<CMD>"), "{missing}");
        assert!(!missing.contains('\n'));
    }
}
