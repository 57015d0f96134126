// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero run`: a command that asks the kernel for huge pages and gets lent ones.
//!
//! The command takes this process's place with the preload shim in `LD_PRELOAD`; so do the dynamic
//! programs that it starts. Nothing is borrowed here: the shim does, when the program asks.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::ValueEnum;

use crate::exit::Outcome;
use crate::inherited::become_command;
use crate::installed;
use crate::program;
use crate::shared::Daemon;

/// What becomes of private memory when the program forks
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Private {
    /// The child gets a copy, made before `fork` returns
    Copy,
    /// The child does not have it, and ends by SIGSEGV if it touches it: for programs that fork
    /// only to start others
    Drop,
    /// Private memory is left to the kernel
    No,
}

/// Run a program that asks the kernel for huge pages on ready ones
///
/// Runs CMD in this process's place with the preload shim, which answers mmap(MAP_HUGETLB),
/// memfd_create(MFD_HUGETLB) and, on request, shmget(SHM_HUGETLB) with loans. The kernel answers
/// calls with semantics that the shim cannot keep and calls without ready memory, as it does
/// without the shim, and all calls while no daemon answers within 100 ms. Programs that CMD starts
/// are served as well.
///
/// Static programs, Go programs and others that make system calls past the C library are not
/// served; where CMD is one, a line on standard error says so.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero run -- qemu-system-x86_64 -m 8G -machine q35,memory-backend=ram \\
      -object memory-backend-memfd,id=ram,size=8G,hugetlb=on ...
  prezero run --only postgres -- pg_ctl start -D /var/lib/postgresql/data
  prezero run --private drop --log stderr -- java -XX:+UseLargePages -Xmx8g ...")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    /// Serve only programs of these names (those of their executable files), separated by commas
    #[arg(long, value_name = "NAMES", env = "PREZERO_ONLY")]
    only: Option<OsString>,
    /// What becomes of private memory when the program forks
    #[arg(long, value_enum, default_value = "copy", env = "PREZERO_PRIVATE")]
    private: Private,
    /// Serve System V segments without a key: the program and its forks alone can attach them
    #[arg(long)]
    shm: bool,
    /// Say for each call whether it was served and why not: `stderr`, or a file to append to
    #[arg(long, value_name = "WHERE", env = "PREZERO_SHIM_LOG")]
    log: Option<OsString>,
    /// The shim, if it lies neither beside this binary nor where packages put it
    #[arg(long, value_name = "PATH", env = "PREZERO_PRELOAD")]
    preload: Option<PathBuf>,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let shim = match &args.preload {
        Some(path) => path.clone(),
        None => installed::shim()?,
    };
    let socket = std::path::absolute(&args.daemon.socket)?;
    let private = args.private.to_possible_value();
    let mut command = Command::new(&args.command[0]);
    command
        .args(&args.command[1..])
        .env("LD_PRELOAD", before(shim.as_os_str(), std::env::var_os("LD_PRELOAD")))
        .env("PREZERO_SOCKET", socket)
        .env("PREZERO_PRIVATE", private.as_ref().map_or("copy", |value| value.get_name()));
    if args.shm {
        command.env("PREZERO_SHM", "1");
    }
    for (name, value) in [("PREZERO_ONLY", &args.only), ("PREZERO_SHIM_LOG", &args.log)] {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    if let Some(why) = program::why_not_served(&args.command[0]) {
        // Without a writable standard error there is no place for it.
        let _ = writeln!(std::io::stderr(), "prezero: {why}: it gets no lent memory");
    }
    let tunables = std::env::var_os("GLIBC_TUNABLES").unwrap_or_default();
    if tunables.as_bytes().split(|byte| *byte == b':').any(has_own_pages) {
        let what = "GLIBC_TUNABLES has malloc take huge pages by itself";
        // The same.
        let _ = writeln!(std::io::stderr(), "prezero: {what}: those are not lent");
    }
    Err(become_command(&mut command))
}

/// Whether a tunable of the C library's says so: by 2, or by a page size in bytes.
fn has_own_pages(tunable: &[u8]) -> bool {
    let value = tunable.strip_prefix(b"glibc.malloc.hugetlb=");
    value.is_some_and(|value| !matches!(value, b"" | b"0" | b"1"))
}

/// First of the libraries to preload: an earlier library would get the calls first.
fn before(shim: &OsStr, others: Option<OsString>) -> OsString {
    let mut all = shim.to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}
