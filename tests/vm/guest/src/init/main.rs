// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PID 1 of a test VM: mounts, reads the plan, runs the programs one after
//! another, reports, powers off.
//!
//! It runs from an initramfs, statically linked. Errors are reported on the event channel. The
//! machine always goes down in the end, so the host never waits for a timeout.

mod machine;
mod mounts;
mod program;
mod report;

use std::{fs, io, time::Duration};

use rustix::system::{RebootCommand, reboot};
use vm_guest::{Event, PLAN, Plan, Setting};

use crate::report::GuestReport;

fn main() {
    // Without /dev there is no channel to complain on; the console shows it.
    if let Err(error) = mounts::mount_all() {
        eprintln!("vm-init: {error}");
    }
    mounts::keep_a_cpuset();
    match GuestReport::open() {
        Ok(mut report) => {
            let last = match carry_out(&mut report) {
                Ok(()) => Event::Off,
                Err(error) => Event::Failed { reason: error.to_string() },
            };
            report.send(&last);
            report.drain();
        }
        Err(error) => eprintln!("vm-init: cannot open {}: {error}", vm_guest::EVENTS),
    }
    // QEMU runs with -no-reboot: a restart ends it.
    let error = reboot(RebootCommand::Restart);
    eprintln!("vm-init: reboot: {error:?}");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn carry_out(report: &mut GuestReport) -> io::Result<()> {
    report.send(&machine::booted()?);
    let plan = fs::read(PLAN).map_err(|e| reported(PLAN, &e))?;
    let plan: Plan = serde_json::from_slice(&plan)?;
    for module in &plan.modules {
        program::load_module(module)?;
    }
    for setting in &plan.settings {
        make(setting)?;
    }
    report.send(&Event::Ready { pools: machine::pools()? });
    for program in &plan.programs {
        report.send(&Event::Begin { name: program.name.clone() });
        report.mark("begin", &program.name);
        let (outcome, elapsed) = program::run(program, |line| {
            report.send(&Event::Output { name: program.name.clone(), line });
        });
        report.mark("end", &program.name);
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        report.send(&Event::End { name: program.name.clone(), outcome, elapsed_ms });
    }
    Ok(())
}

fn make(setting: &Setting) -> io::Result<()> {
    fs::write(&setting.path, &setting.value)
        .map_err(|e| reported(&format!("write {} to {}", setting.value, setting.path), &e))?;
    if setting.verify {
        let now = fs::read_to_string(&setting.path).map_err(|e| reported(&setting.path, &e))?;
        if now.trim() != setting.value {
            let short = format!(
                "{} is {} after writing {}: not enough memory on that node?",
                setting.path,
                now.trim(),
                setting.value
            );
            return Err(io::Error::other(short));
        }
    }
    Ok(())
}

fn reported(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
