// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask vm`: tests in virtual machines.
//!
//! `table` reads `tests/vm/*.toml`: the machine that a test needs and the programs that it runs
//! there. `programs` makes those programs on this host, `initramfs` packs them with their libraries
//! and the init. `machine` runs QEMU and turns its two serial ports into one stream of events.
//! `verdict` counts passes, failures and skips and reads the kernel's log, `matrix` puts the cases
//! of one suite on several providers side by side.

mod disk;
mod hotplug;
mod image;
mod initramfs;
mod machine;
mod matrix;
mod programs;
mod races;
mod requirements;
mod table;
mod verdict;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use self::{
    image::Image, machine::Vm, matrix::Matrix, programs::Builder, requirements::Requirements,
    table::Case, verdict::Verdict,
};
pub(crate) use self::{
    image::of as image_of, initramfs::Initramfs, requirements::Kernel, verdict::Count,
};
use crate::{
    cache,
    kernel::{Arch, Linux},
    say,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run tests.
    Test(TestArgs),
    /// List tests, their sets and what they are for.
    List,
    /// Print the path of a bootable kernel, which is built or downloaded first.
    Kernel {
        /// Which one.
        #[arg(value_enum, default_value = "stock")]
        kernel: Kernel,
        /// Which Linux.
        #[arg(long, value_name = "LINUX", default_value_t)]
        tree: Linux,
        /// What for.
        #[arg(long, default_value_t)]
        arch: Arch,
    },
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
    /// Boot this instead of the built kernel, to see a test fail on an earlier series.
    #[arg(long, value_name = "BZIMAGE")]
    image: Option<PathBuf>,
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
        Verb::Kernel { kernel, tree, arch } => {
            say::result(image::of(&kernel, tree, arch)?.kernel.display());
            Ok(ExitCode::SUCCESS)
        }
        Verb::Run(RunArgs { like, argv }) => {
            let Some(mut case) = table::read()?.into_iter().find(|case| case.name == like) else {
                bail!("no test {like}: `cargo xtask vm list` shows all");
            };
            case.programs = vec![table::Program::from_host(&argv)];
            finish(&[case], true, None)
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
    finish(&chosen, arguments.verbose, arguments.image.clone())
}

/// Runs the cases and ends with the line `N passed, M failed, K skipped`.
fn finish(cases: &[Case], verbose: bool, instead: Option<PathBuf>) -> Result<ExitCode> {
    let mut runner = Runner {
        builder: Builder::open()?,
        images: BTreeMap::new(),
        logs: cache::target("vm/logs")?,
        matrices: BTreeMap::new(),
        verbose,
        instead,
    };
    let mut total = Count::default();
    for case in cases {
        total += match &case.same_as {
            None => runner.run(case, &case.name, &case.requirements)?.0,
            Some(reference) => runner.compare(case, reference)?,
        };
    }
    for (suite, matrix) in &runner.matrices {
        say::result(format_args!("{suite}, case by case\n{matrix}"));
    }
    say::result(format_args!("logs are in {}", runner.logs.display()));
    say::result(total);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What all machines of one run share.
struct Runner {
    builder: Builder,
    images: BTreeMap<(Kernel, Linux, Arch), Image>,
    logs: PathBuf,
    /// By suite.
    matrices: BTreeMap<String, Matrix>,
    verbose: bool,
    /// Boots instead of the built kernel.
    instead: Option<PathBuf>,
}

impl Runner {
    fn run(
        &mut self,
        case: &Case,
        name: &str,
        requirements: &Requirements,
    ) -> Result<(Count, Vec<(String, Count)>)> {
        let &Requirements { kernel, linux, arch, .. } = requirements;
        let kernel = match self.images.entry((kernel, linux, arch)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(match (&self.instead, kernel) {
                (
                    Some(path),
                    Kernel::Patched
                    | Kernel::PatchedDebug
                    | Kernel::PatchedRt
                    | Kernel::PatchedKcsan,
                ) => Image { kernel: path.clone(), modules: None, prezero: None },
                _ => image::of(&kernel, linux, arch)?,
            }),
        };
        let mut vm = Vm::new(requirements.clone());
        let compared = case.same_as.is_some();
        let mut cells = BTreeMap::new();
        for program in &case.programs {
            for made in self.builder.make(program, linux, arch)? {
                if let Some(cell) = &made.matrix {
                    cells.insert(made.program.name.clone(), cell.clone());
                }
                vm = vm.with_program(made);
            }
        }
        let mut verdict = Verdict::new(name, requirements, compared, self.verbose);
        cells.keys().for_each(|program| verdict.keep_output(program));
        let init = self.builder.init(arch)?;
        vm.run(kernel, &init, &self.logs.join(name), |event| verdict.see(event))?;
        for (program, output) in verdict.outputs() {
            let Some(cell) = cells.get(program) else { continue };
            self.matrices.entry(cell.suite.clone()).or_default().add(&cell.provider, output);
        }
        Ok(verdict.finish())
    }

    /// Runs the case on both kernels; what counts is that they agree.
    fn compare(&mut self, case: &Case, reference: &Kernel) -> Result<Count> {
        let mut requirements = case.requirements.clone();
        requirements.kernel = *reference;
        // On the same kernel it is our module that makes the difference.
        requirements.modules.retain(|module| !module.starts_with(image::PREZERO));
        let name = format!("{}-reference", case.name);
        let (_, reference) = self.run(case, &name, &requirements)?;
        let (_, results) = self.run(case, &case.name, &case.requirements)?;
        Ok(verdict::compare(&reference, &results))
    }
}
