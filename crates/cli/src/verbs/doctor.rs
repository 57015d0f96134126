// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero doctor`: the state of this machine and of its parts.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clear::Method;
use client::Client;
use linux::kernel::offer;
use linux::{Roots, cgroup};
use serde::Serialize;
use units::{Bytes, PageSize};
use wire::{Ailment, Status};

use crate::exit::{Exit, Outcome, words_of};
use crate::installed;
use crate::machine::doctor::{Finding, Severity, examine, hugetlb_limit};
use crate::machine::ways::{self, Ways};
use crate::machine::{self, Machine};
use crate::output::{Form, Record, count, pools, terminal, text};
use crate::shared::Daemon;

/// Look at the service and at this machine: causes, remedies, commands
///
/// Of the service: what keeps it from its best, as it was drained, paused, refused a configuration
/// or a borrower, or lacks pages. Of the machine: huge pages, NUMA, mounts, fragmentation, kernel,
/// cgroups. Each line is `ok`, `warn` (works in part or below its best) or `bad` (must be changed
/// before prezero can work), with advice and the command for it. Changes nothing. As root it also
/// tries whether write leases work on hugetlbfs. Exit code 1 if anything is bad.
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
    let error = match Client::connect(&daemon.socket).and_then(|mut client| client.status()) {
        Ok(status) => {
            let (version, pools) = (&status.version, count(status.pools.len() as u64, "pool"));
            let answers = format!("{version} at {at} with {pools}: {}", status.health);
            let daemon = Finding::new(Severity::Ok, "daemon", answers);
            let limits = limits(&status);
            let learnt = status.pools.iter().filter_map(pools::learnt);
            let learnt: Vec<_> =
                learnt.map(|found| Finding::new(Severity::Ok, "pool", found)).collect();
            let ailing = status.ailments.into_iter().map(ailing);
            return std::iter::once(daemon).chain(ailing).chain(limits).chain(learnt).collect();
        }
        Err(error) => error,
    };
    let found = Finding::new(Severity::Warn, "daemon", words_of(&error));
    let advice = match &error {
        client::Error::NoDaemon { .. } if installed::has_unit(&daemon.socket) => {
            Some(("start it", "sudo systemctl start prezero"))
        }
        client::Error::NoDaemon { .. } => Some((
            "start it, or look at what it does with `prezero demo`",
            "sudo prezero serve --pool page_size=2M,ready=1G",
        )),
        client::Error::Broken { .. } => Some((
            "it hangs, or was stopped by a signal: look at its state and its log; systemd's watchdog \
             replaces it after 30 s",
            "systemctl status prezero; journalctl -u prezero -n 50",
        )),
        client::Error::Refused(wire::Error::NotPermitted { .. }) => Some((
            "become a member of the group that may, and log in anew, or run this as root",
            "sudo prezero doctor",
        )),
        _ => None,
    };
    vec![match advice {
        Some((change, command)) => found.change(change).command(command),
        None => found,
    }]
}

/// Limits of the daemon's control groups below what its pools are for.
fn limits(status: &Status) -> Vec<Finding> {
    let roots = Roots::default();
    let Ok(groups) = cgroup::of_process(&roots, status.pid) else { return Vec::new() };
    let mut wanted: BTreeMap<PageSize, Bytes> = BTreeMap::new();
    for pool in &status.pools {
        *wanted.entry(pool.page_size).or_default() += pool.ready_high.bytes(pool.page_size);
    }
    let limit = |(size, wanted): (PageSize, Bytes)| {
        let (limit, file) = hugetlb_limit(&roots, &groups, size)?;
        let found =
            format!("the daemon may have {limit} in {size} pages, and {wanted} are wanted ready");
        let command = format!("echo max | sudo tee {}", file.display());
        let finding = Finding::new(Severity::Warn, "cgroups", found);
        (limit < wanted)
            .then(|| finding.change("raise the limit of its control group").command(command))
    };
    wanted.into_iter().filter_map(limit).collect()
}

/// What the daemon itself knows to be wrong.
fn ailing(ailment: Ailment) -> Finding {
    let Ailment { cause, found, remedy, command } = ailment;
    let finding = Finding::new(Severity::Warn, cause.word(), found).change(remedy);
    match command {
        Some(command) => finding.command(command),
        None => finding,
    }
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    machine: Machine,
    /// Absent if the kernel's release was unreadable.
    ways: Option<Ways>,
    findings: Vec<Finding>,
}

/// As wide as the terminal; commands stay whole, for copying.
fn write_wrapped(out: &mut dyn Write, line: &str, indent: usize) -> io::Result<()> {
    for line in text::wrap(line, terminal::columns(), indent) {
        writeln!(out, "{line}")?;
    }
    Ok(())
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
            write_wrapped(out, &format!("{level:<4}  {subject:<13}  {found}"), 21)?;
            if let Some(change) = change {
                write_wrapped(out, &format!("{:21}  -> {change}", ""), 26)?;
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
