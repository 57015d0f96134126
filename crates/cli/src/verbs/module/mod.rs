// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero module`: the kernel module that gives a stock kernel's own pool its zeroed pages.

mod load;
mod refusal;
mod status;
mod unload;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use clap::Subcommand;
use linux::Roots;
use linux::kernel::module;

use crate::exit::{Failure, Outcome};
use crate::machine;

/// Load the kernel module, unload it, or show what it does
///
/// With the module a stock kernel's own pool of huge pages knows its zero pages: ready pages are
/// free pages, for every program, and `prezero serve` takes provider kernel. The package
/// prezero-dkms brings it and has DKMS build it for each kernel; `prezero doctor` names missing
/// parts, /usr/share/doc/prezero-dkms/kernel-module.md the changes in the kernel.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero module load --at-boot
  prezero module status
  prezero module unload --at-boot")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Load(load::Args),
    Unload(unload::Args),
    Status(status::Args),
}

pub(crate) fn run(args: &Args) -> Outcome {
    match &args.verb {
        Verb::Load(args) => load::run(args),
        Verb::Unload(args) => unload::run(args),
        Verb::Status(args) => status::run(args),
    }
}

/// Makes systemd load it at every boot.
fn at_boot(roots: &Roots) -> PathBuf {
    roots.root.join("etc/modules-load.d/prezero.conf")
}

/// # Errors
/// [`Failure`] for every user but root.
fn need_root(doing: &str) -> Result<(), Failure> {
    if machine::is_root() {
        return Ok(());
    }
    Err(Failure::failed(format!("{doing} a kernel module needs root: use sudo")))
}

/// Runs `modprobe` or `modinfo` with words before and behind the module's name. Both may be outside
/// of a user's PATH.
fn kmod(program: &str, before: &[&str], behind: &[String]) -> Result<Output, Failure> {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new(program)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .args(before)
        .arg(module::NAME)
        .args(behind)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::failed(format!("cannot run {program}: {error}")))
}
