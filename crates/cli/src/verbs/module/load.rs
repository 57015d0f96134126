// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero module load`.

use std::fs;
use std::io::{self, Write};

use client::Client;
use linux::kernel::{Implementation, Origin, module, offer};
use linux::{Roots, cpu};
use serde::Serialize;
use wire::{Provider, Status};

use super::{at_boot, kmod, need_root, refusal};
use crate::exit::{Exit, Failure, Outcome};
use crate::machine::kernel_log::KernelLog;
use crate::machine::ways::{self, Stage};
use crate::output::{Form, Record};
use crate::shared::Daemon;

/// Load the module into the running kernel
///
/// Says why if the kernel does not take it: not built, its signature refused under Secure Boot, or
/// the module's own line of the kernel's log. A daemon that runs uses the module from its next
/// start on, which keeps every loan. A module that is loaded already is left as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero module load
  prezero module load --at-boot && systemctl restart prezero
  prezero module load verify=1        reads each zeroed page again when it is given: slow")]
pub(super) struct Args {
    /// Load it at every boot, too, by /etc/modules-load.d/prezero.conf
    #[arg(long)]
    at_boot: bool,
    /// A parameter for this load; those of every load are for /etc/modprobe.d
    #[arg(value_name = "PARAMETER=VALUE")]
    parameters: Vec<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

pub(super) fn run(args: &Args) -> Outcome {
    let roots = Roots::default();
    need_root("loading")?;
    let already = module::loaded(&roots)?.is_some();
    if already && !args.parameters.is_empty() {
        return Err(Failure::failed(
            "the module is loaded already: its parameters change by `prezero module unload` first",
        ));
    }
    if !already {
        insert(&roots, &args.parameters)?;
    }
    if args.at_boot {
        let text = "# Written by `prezero module load --at-boot`.\nprezero\n";
        fs::write(at_boot(&roots), text)?;
    }
    let release = cpu::release(&roots)?;
    let version = module::loaded(&roots)?.and_then(|module| module.version);
    let report = Loaded {
        version,
        kernel: release,
        already,
        at_boot: at_boot(&roots).exists(),
        daemon: Client::connect(&args.daemon.socket)
            .and_then(|mut client| client.status())
            .ok()
            .map(|status| Use::from_status(&status)),
    };
    args.form.print(&report)?;
    Ok(Exit::Done)
}

fn insert(roots: &Roots, parameters: &[String]) -> Result<(), Failure> {
    let ways = ways::find(roots, &offer::probe(roots)?)?;
    if ways.module != Stage::Built {
        return Err(Failure::failed(ways.why_not()));
    }
    if !parameters.is_empty() {
        let output = kmod("modinfo", &["-F", "parm"], &[])?;
        check(parameters, &String::from_utf8_lossy(&output.stdout))?;
    }
    let mut log = KernelLog::from_now(roots).ok();
    let output = kmod("modprobe", &[], parameters)?;
    if output.status.success() {
        return Ok(());
    }
    let lines = log.as_mut().map(KernelLog::lines).unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::failed(refusal::explain(roots, &ways.kernel, &said, &lines)))
}

/// Refuses a parameter that the module lacks: the kernel would ignore it. `known` has a line
/// `name:text (type)` for each.
fn check(parameters: &[String], known: &str) -> Result<(), Failure> {
    let known: Vec<_> = known.lines().filter_map(|line| Some(line.split_once(':')?.0)).collect();
    for parameter in parameters {
        let name = parameter.split('=').next().unwrap_or_default();
        if !known.contains(&name) {
            let known = known.join(", ");
            return Err(Failure::usage(format!("the module has no parameter {name}: {known}")));
        }
    }
    Ok(())
}

/// What the daemon that runs makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Use {
    /// It takes its pages from the module.
    Uses,
    /// It will from its next start on.
    AfterRestart,
    /// It will not: a pool of it has `size_max`.
    PoolSize,
    /// It runs without huge pages.
    Plain,
}

impl Use {
    fn from_status(status: &Status) -> Self {
        let resizes = status.pools.iter().any(|pool| pool.resize.is_some());
        match status.provider {
            Provider::Kernel => Self::Uses,
            Provider::Plain => Self::Plain,
            Provider::Stock if resizes => Self::PoolSize,
            Provider::Stock => Self::AfterRestart,
        }
    }
}

#[derive(Debug, Serialize)]
struct Loaded {
    version: Option<String>,
    kernel: String,
    /// Whether it was before.
    already: bool,
    at_boot: bool,
    /// Absent if the daemon is silent.
    daemon: Option<Use>,
}

impl Record for Loaded {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let implementation = Implementation::Module(self.version.clone());
        let origin = Origin { implementation, release: self.kernel.clone() };
        let already = if self.already { " was loaded already" } else { " is loaded" };
        let boot = if self.at_boot { ", at every boot, too" } else { "" };
        writeln!(out, "{origin}:{already}{boot}")?;
        match self.daemon {
            None | Some(Use::Plain) => Ok(()),
            Some(Use::Uses) => writeln!(out, "the daemon uses it"),
            Some(Use::AfterRestart) => writeln!(
                out,
                "the daemon uses it from its next start on, which keeps every loan: systemctl restart prezero"
            ),
            Some(Use::PoolSize) => writeln!(
                out,
                "the daemon keeps provider stock: a pool has size_max, which the module's pool lacks"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text;

    #[test]
    fn parameter_that_the_module_lacks_is_refused() {
        let known = "verify:read each page (bool)\nranges:clear by ranges (bool)\n";
        let check = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
            check(&words, known).map_err(|failure| failure.to_string())
        };
        assert_eq!(check(&["verify=1", "ranges"]), Ok(()));
        let line = "the module has no parameter verfy: verify, ranges".to_owned();
        assert_eq!(check(&["verify=1", "verfy=1"]), Err(line));
    }

    #[test]
    fn load_says_what_the_daemon_makes_of_it() {
        let report = |already, at_boot, daemon| {
            let (version, kernel) = (Some("0.1.0".to_owned()), "6.12.117-amd64".to_owned());
            text(&Loaded { version, kernel, already, at_boot, daemon })
        };
        let first = report(false, true, Some(Use::AfterRestart));
        assert!(
            first.starts_with("module 0.1.0, Linux 6.12.117: is loaded, at every boot, too\n"),
            "{first}"
        );
        assert!(first.contains("keeps every loan: systemctl restart prezero"), "{first}");
        assert_eq!(report(true, false, None), "module 0.1.0, Linux 6.12.117: was loaded already\n");
        let resize = report(false, false, Some(Use::PoolSize));
        assert!(resize.contains("size_max"), "{resize}");
    }
}
