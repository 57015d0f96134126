// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero doctor`: the state of this machine and of its parts.

use std::io::{self, Write};

use clear::Method;
use client::Client;
use linux::Roots;
use linux::kernel::offer;
use serde::Serialize;

use crate::exit::{Exit, Outcome};
use crate::machine::doctor::{Finding, Severity, examine};
use crate::machine::ways::{self, Ways};
use crate::machine::{self, Machine};
use crate::output::{Form, Record};
use crate::shared::Daemon;

/// Look at this machine: huge pages, NUMA, mounts, fragmentation, kernel, cgroups
///
/// Each line is `ok`, `warn` (works in part or below its best) or `bad` (must be changed before
/// prezero can work), with advice and the command for it. Changes nothing. As root it also tries
/// whether write leases work on hugetlbfs. Exit code 1 if anything is bad.
///
/// `module` is whether the kernel's own pool can know its zeroed pages: by the module of the
/// package prezero-dkms, or by a kernel with the series. With --json `ways` has the same: `uses` is
/// stock, module or series, `module` how far the module is (loaded, needless, built, unbuilt,
/// possible, impossible), `because` the reason, `command` what leads on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero doctor
  prezero doctor --json | jq .ways
  prezero doctor --json | jq -r '.findings[] | select(.level != \"ok\") | .command'")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let roots = Roots::default();
    let scratch = tempfile::tempdir()?;
    let mut findings = examine(&roots, scratch.path());
    findings.push(methods());
    findings.extend(answering(&args.daemon));
    let ways = offer::probe(&roots).and_then(|offer| ways::find(&roots, &offer));
    let module = match &ways {
        Ok(ways) => ways.finding(),
        Err(error) => Finding::new(Severity::Warn, "module", error.to_string()),
    };
    let provider = findings.iter().position(|finding| finding.subject == "provider");
    findings.insert(provider.map_or(0, |at| at + 1), module);
    let report = DoctorReport { machine: machine::describe(&roots)?, ways: ways.ok(), findings };
    args.form.print(&report)?;
    let worst = report.findings.iter().map(|finding| finding.level).max();
    Ok(if worst == Some(Severity::Bad) { Exit::Failed } else { Exit::Done })
}

fn methods() -> Finding {
    let names: Vec<_> = Method::available().map(|method| method.to_string()).collect();
    let used = clear::Clearer::default().method();
    Finding::new(Severity::Ok, "clearing", format!("{used}; this cpu has {}", names.join(", ")))
}

/// Whether the daemon answers, and what it misses.
fn answering(daemon: &Daemon) -> Vec<Finding> {
    let at = daemon.socket.display();
    let finding = match Client::connect(&daemon.socket).and_then(|mut client| client.status()) {
        Ok(status) => {
            let (version, pools) = (&status.version, status.pools.len());
            let answers = format!("{version} at {at} with {pools} pools");
            let mut findings = vec![Finding::new(Severity::Ok, "daemon", answers)];
            findings.extend(unknown(status.unknown_files));
            return findings;
        }
        Err(error @ client::Error::NoDaemon { .. }) => {
            Finding::new(Severity::Warn, "daemon", error.to_string())
                .change("start it, or look at what it does with `prezero demo`")
                .command("sudo prezero serve --pool page_size=2M,ready_high=512")
        }
        Err(error) => Finding::new(Severity::Warn, "daemon", error.to_string()),
    };
    vec![finding]
}

/// Advice for unknown blocks on the daemon's mounts.
fn unknown(files: u64) -> Option<Finding> {
    let found = format!("{files} on its mounts that the daemon knows nothing of");
    let finding = Finding::new(Severity::Warn, "blocks", found)
        .change("a start takes them over or gives their pages back, and ends no loan")
        .command("sudo systemctl restart prezero");
    (files > 0).then_some(finding)
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    machine: Machine,
    /// Absent if the kernel's release was unreadable.
    ways: Option<Ways>,
    findings: Vec<Finding>,
}

impl Record for DoctorReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let machine = &self.machine;
        let gib = machine.total_bytes >> 30;
        let kind = if machine.is_virtual { ", virtual" } else { "" };
        writeln!(out, "{}, {} cpus, {gib} GiB{kind}", machine.cpu, machine.cpus)?;
        for Finding { level, subject, found, change, command } in &self.findings {
            let level = match level {
                Severity::Ok => "ok",
                Severity::Warn => "warn",
                Severity::Bad => "BAD",
            };
            writeln!(out, "{level:<4}  {subject:<13}  {found}")?;
            if let Some(change) = change {
                writeln!(out, "{:21}  -> {change}", "")?;
            }
            if let Some(command) = command {
                writeln!(out, "{:21}     {command}", "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text;

    #[test]
    fn a_finding_shows_what_to_change_and_the_command() {
        let machine = Machine {
            vendor: "V".into(),
            cpu: "Model".into(),
            cpus: 2,
            is_virtual: true,
            governor: None,
            kernel: "6.18".into(),
            total_bytes: 24 << 30,
            available_bytes: 1,
            page_bytes: vec![],
            nodes: vec![0],
        };
        let findings = vec![
            Finding::new(Severity::Ok, "kernel", "6.18"),
            Finding::new(Severity::Bad, "huge pages", "none")
                .change("reserve some")
                .command("echo 1"),
        ];
        assert_eq!(
            text(&DoctorReport { machine, ways: None, findings }),
            "\
Model, 2 cpus, 24 GiB, virtual
ok    kernel         6.18
BAD   huge pages     none
                       -> reserve some
                          echo 1
"
        );
    }
}
