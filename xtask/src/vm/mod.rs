// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask vm`: tests in virtual machines.
//!
//! `table` reads `tests/vm/*.toml`: which machine a test needs and which
//! programs it runs there. `programs` makes those programs on this host,
//! `initramfs` packs them with their libraries and the init, `machine` runs QEMU
//! and turns its two serial ports into one stream of events, `verdict` counts
//! passes, failures and skips and reads the kernel's log.

mod image;
mod initramfs;
mod machine;
mod programs;
mod requirements;
mod table;
mod verdict;

use std::{collections::BTreeMap, path::Path, process::ExitCode};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use self::{
    machine::Vm,
    programs::Workshop,
    table::Case,
    verdict::{Count, Verdict},
};
use crate::{cache, say};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run tests.
    Test(TestArgs),
    /// List tests, their sets and what they are for.
    List,
    /// Run a program of this host in a VM, with everything it prints.
    Run(RunArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// `fast`, `all`, another set, or the name of a test; may be repeated.
    #[arg(long = "set", value_name = "SET|NAME", default_value = "fast")]
    sets: Vec<String>,
    /// Print what the programs print, not only what fails.
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Take machine and kernel from this test of the table.
    #[arg(long, value_name = "NAME")]
    like: String,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    argv: Vec<String>,
}

pub(crate) fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Test(arguments) => test(&arguments),
        Verb::List => {
            for case in table::read()? {
                let sets = case.sets.join(",");
                say::result(format_args!("{:24} {sets:12} {}", case.name, case.why));
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Run(RunArgs { like, argv }) => {
            let Some(mut case) = table::read()?.into_iter().find(|case| case.name == like) else {
                bail!("no test {like}: `cargo xtask vm list` shows all");
            };
            case.programs = vec![table::Program::of_host(&argv)];
            finish(&[case], true)
        }
    }
}

fn test(arguments: &TestArgs) -> Result<ExitCode> {
    let mut chosen = Vec::new();
    for case in table::read()? {
        let named = |set: &String| set == "all" || *set == case.name || case.sets.contains(set);
        if arguments.sets.iter().any(named) {
            chosen.push(case);
        }
    }
    if chosen.is_empty() {
        bail!("no test in {}: `cargo xtask vm list` shows all", arguments.sets.join(", "));
    }
    finish(&chosen, arguments.verbose)
}

/// Runs the cases and ends with the line `N passed, M failed, K skipped`.
fn finish(cases: &[Case], verbose: bool) -> Result<ExitCode> {
    let mut workshop = Workshop::open()?;
    let mut images = BTreeMap::new();
    let logs = cache::target("vm/logs")?;
    let mut total = Count::default();
    for case in cases {
        let kernel = &case.requirements.kernel;
        if !images.contains_key(kernel) {
            images.insert(kernel.clone(), image::of(kernel)?);
        }
        total += run_case(case, &images[kernel], &mut workshop, &logs.join(&case.name), verbose)?;
    }
    say::result(format_args!("logs are in {}", logs.display()));
    say::result(total);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_case(
    case: &Case,
    kernel: &image::Image,
    workshop: &mut Workshop,
    logs: &Path,
    verbose: bool,
) -> Result<Count> {
    let mut vm = Vm::new(case.requirements.clone());
    for program in &case.programs {
        for made in workshop.make(program)? {
            vm = vm.with_program(made);
        }
    }
    let mut verdict = Verdict::new(&case.name, &case.requirements.expect_log, verbose);
    vm.run(kernel, &workshop.init, logs, |event| verdict.see(event))?;
    Ok(verdict.finish())
}
