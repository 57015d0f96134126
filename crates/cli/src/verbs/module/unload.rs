// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero module unload`.

use std::fs;
use std::io::{self, Write};

use linux::Roots;
use linux::kernel::{LoadedModule, module};
use serde::Serialize;

use super::{at_boot, kmod, need_root};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Form, Record, count};

/// Unload the module from the running kernel
///
/// Refuses while a process has /dev/hugepagectl open, and names it: the daemon has it open while it
/// runs over the module. It waits for tasks that are inside of the module, and huge pages stay
/// where they are: from then on the kernel clears each page again when it gives it away.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero module unload
  systemctl stop prezero.socket prezero-agent.socket prezero && prezero module unload --at-boot &&
    systemctl start prezero.socket prezero-agent.socket prezero")]
pub(super) struct Args {
    /// Load it at boot no more, either: removes /etc/modules-load.d/prezero.conf
    #[arg(long)]
    at_boot: bool,
    #[command(flatten)]
    form: Form,
}

pub(super) fn run(args: &Args) -> Outcome {
    let roots = Roots::default();
    need_root("unloading")?;
    let loaded = module::loaded(&roots)?;
    if let Some(module) = &loaded {
        if let Some(why) = in_use(module, &holders(&roots)) {
            return Err(Failure::failed(why));
        }
        let output = kmod("modprobe", &["-r"], &[])?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::failed(said.trim().trim_start_matches("modprobe: FATAL: ")));
        }
    }
    if args.at_boot {
        match fs::remove_file(at_boot(&roots)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    let at_boot = at_boot(&roots).exists();
    args.form.print(&Unloaded { was_loaded: loaded.is_some(), at_boot })?;
    Ok(Exit::Done)
}

/// A process that keeps the module loaded, and its command.
type Holder = (u32, String);

fn holders(roots: &Roots) -> Vec<Holder> {
    let name = |pid: u32| {
        let comm = fs::read_to_string(roots.proc.join(pid.to_string()).join("comm"));
        (pid, comm.map_or_else(|_| "?".to_owned(), |text| text.trim().to_owned()))
    };
    module::openers(roots).into_iter().map(name).collect()
}

/// Why the kernel would refuse, in one line.
fn in_use(module: &LoadedModule, holders: &[Holder]) -> Option<String> {
    let names: Vec<_> =
        holders.iter().map(|(pid, name)| format!("{} ({pid})", name.escape_debug())).collect();
    let names = names.join(", ");
    match (holders, module.references) {
        ([], 0) => None,
        ([], open) => Some(format!(
            "the module is in use: {} of /dev/hugepagectl open in processes that are not to be seen here",
            count(open, "descriptor")
        )),
        _ if holders.iter().any(|(_, name)| name == "prezero") => Some(format!(
            "the module is in use: /dev/hugepagectl is open in {names}: stop the daemon first, loans \
             stay: systemctl stop prezero.socket prezero-agent.socket prezero"
        )),
        _ => Some(format!(
            "the module is in use: /dev/hugepagectl is open in {names}: end that first"
        )),
    }
}

#[derive(Debug, Serialize)]
struct Unloaded {
    was_loaded: bool,
    /// Whether it is loaded at the next boot.
    at_boot: bool,
}

impl Record for Unloaded {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let done = if self.was_loaded { "the module is unloaded" } else { "no module is loaded" };
        let boot =
            if self.at_boot { ", until the next boot: --at-boot ends that, too" } else { "" };
        writeln!(out, "{done}{boot}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use testkit::tree;

    // Promise P295.
    #[test]
    fn unload_names_the_processes_that_have_the_device_open() {
        let tree = tree(&[("proc/7/fd/none", ""), ("proc/7/comm", "prezero\n")]);
        let roots = tree.roots();
        symlink("/dev/hugepagectl", roots.proc.join("7/fd/3")).unwrap();
        let module = LoadedModule { references: 1, ..LoadedModule::default() };
        let why = in_use(&module, &holders(&roots)).unwrap();
        assert!(why.contains("is open in prezero (7): stop the daemon first"), "{why}");
        let why = in_use(&module, &[(9, "watch".to_owned())]).unwrap();
        assert!(why.ends_with("is open in watch (9): end that first"), "{why}");
        let why = in_use(&module, &[]).unwrap();
        assert!(why.contains("1 descriptor of /dev/hugepagectl open in processes"), "{why}");
        assert_eq!(in_use(&LoadedModule::default(), &[]), None);
    }
}
