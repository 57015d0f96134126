// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first process of the cluster's namespaces, and the one that runs the tests.

use std::{
    env,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use clap::Args as Arguments;
use rustix::process::{Pid, WaitOptions};

use super::{bed::Bed, cases, programs::Programs};
use crate::{say, tap::Ending, vm::Count};

/// Not for people: `cargo xtask cluster` says it to itself.
#[derive(Debug, Arguments)]
pub(crate) struct Args {
    #[arg(long)]
    logs: PathBuf,
    #[arg(long)]
    kube: Option<String>,
    only: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if std::process::id() == 1 { first() } else { second(args) }
}

/// Reaps orphans, as a machine's first process must, until the tests end.
fn first() -> Result<ExitCode> {
    let mut child = Command::new(env::current_exe()?);
    let tests = child.args(env::args_os().skip(1)).spawn()?;
    let tests = i32::try_from(tests.id()).ok().and_then(Pid::from_raw).context("a process")?;
    loop {
        let ended = rustix::io::retry_on_intr(|| rustix::process::wait(WaitOptions::empty()))?;
        if let Some((pid, status)) = ended
            && pid == tests
        {
            let is_good = status.exit_status() == Some(0);
            return Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
}

fn second(args: &Args) -> Result<ExitCode> {
    let wanted: Vec<_> = cases::ALL
        .iter()
        .filter(|(name, _)| {
            args.only.is_empty() || args.only.iter().any(|part| name.contains(part.as_str()))
        })
        .collect();
    if wanted.is_empty() {
        bail!("no test has a name with any of {:?}", args.only);
    }
    let begun = Instant::now();
    let mut bed = Bed::new(&Programs::build(args.kube.as_deref())?, &args.logs)?;
    say::result(format_args!(
        "# ready after {:.1} s: {}",
        begun.elapsed().as_secs_f64(),
        bed.machine
    ));
    let mut count = Count::default();
    for (number, (name, test)) in (1..).zip(&wanted) {
        let begun = Instant::now();
        let done = test(&mut bed).and_then(|note| bed.tidy().map(|()| note));
        let seconds = begun.elapsed().as_secs_f64();
        match done {
            Ok(note) => {
                say::result(format_args!("ok {number} {name}"));
                say::result(format_args!(
                    "# {seconds:.1} s{}{note}",
                    if note.is_empty() { "" } else { ": " }
                ));
                count.add(Ending::Ok);
            }
            Err(error) => {
                say::result(format_args!("not ok {number} {name}"));
                say::result(format_args!("# {seconds:.1} s: {error:#}"));
                bed.explain();
                count.add(Ending::Failed);
            }
        }
    }
    say::result(format_args!("1..{}", wanted.len()));
    say::result(count);
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
