// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero run`: a command that asks the kernel for huge pages and gets lent ones.
//!
//! The command takes this process's place with the preload shim in `LD_PRELOAD`; so do the dynamic
//! programs that it starts. Nothing is borrowed here: the shim does, when the program asks.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use client::{Bytes, Client};

use crate::exit::{Failure, Outcome, words_within};
use crate::inherited::become_command;
use crate::installed;
use crate::program;
use crate::shared::Daemon;

/// How long the command waits for a daemon that does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

/// Run a program that asks the kernel for huge pages on ready ones
///
/// Runs CMD in this process's place with the preload shim. The shim answers these with loans:
/// shared mmap(MAP_HUGETLB), memfd_create(MFD_HUGETLB), unlinked files in a directory of huge
/// pages, and with --shm shmget(SHM_HUGETLB). Any other call goes to the kernel as without the
/// shim. So do all calls while no daemon answers within 100 ms, and from the moment that the
/// program installs a seccomp filter. Programs that CMD starts are served as well.
///
/// Static programs, Go programs, musl programs and those with GCC's AddressSanitizer are not
/// served. Where CMD is one, a line on standard error says so before it starts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero run -- qemu-system-x86_64 -m 8G -machine q35,memory-backend=ram \\
      -object memory-backend-memfd,id=ram,size=8G,hugetlb=on ...
  prezero run --only postgres -- pg_ctl start -D /var/lib/postgresql/data
  prezero run --private --log stderr -- java -XX:+UseLargePages -Xmx8g ...")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    /// Serve only programs of these names (those of their executable files), separated by commas
    #[arg(long, value_name = "NAMES", env = "PREZERO_ONLY")]
    only: Option<OsString>,
    /// Serve private memory too, for programs that do not need it in forked children
    ///
    /// A forked child does not have the memory, and ends by SIGSEGV if it touches it; the parent
    /// keeps it. Core dumps lack it, and MADV_DONTNEED clears it but keeps its pages, so that a
    /// userfaultfd reports no page missing. Tested with OpenJDK, MariaDB and QEMU's directories.
    #[arg(long)]
    private: bool,
    /// Serve System V segments without a key: the program and its forks alone can attach them
    #[arg(long)]
    shm: bool,
    /// Serve plain shared mappings of at least this size too, as in 1G, where all of it is ready
    ///
    /// These are mmap(MAP_SHARED | MAP_ANONYMOUS) without MAP_HUGETLB, of whole huge pages. The
    /// program must unmap and protect whole huge pages of them only.
    #[arg(long, value_name = "SIZE")]
    anonymous: Option<Bytes>,
    /// Count ready pages in MemAvailable, for programs that look at /proc/meminfo first (SGLang)
    #[arg(long)]
    count_ready: bool,
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
        Some(path) if path.is_file() => path.clone(),
        Some(path) => {
            return Err(Failure::usage(format!("--preload {}: no such file", path.display())));
        }
        None => installed::shim()?,
    };
    program::check_runnable(&args.command[0])?;
    let socket = std::path::absolute(&args.daemon.socket)?;
    note_unserved(&socket);
    let mut command = Command::new(&args.command[0]);
    command
        .args(&args.command[1..])
        .env("PREZERO_SOCKET", socket)
        .env(SECCOMP_FILTERS, seccomp_filters().to_string());
    if let Some(min) = args.anonymous {
        command.env("PREZERO_ANONYMOUS", min.0.to_string());
    }
    let flags = [
        ("PREZERO_PRIVATE", args.private),
        ("PREZERO_SHM", args.shm),
        ("PREZERO_COUNT_READY", args.count_ready),
    ];
    for (name, is_set) in flags {
        if is_set {
            command.env(name, "1");
        }
    }
    for (name, value) in [("PREZERO_ONLY", &args.only), ("PREZERO_SHIM_LOG", &args.log)] {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let obstacle = program::unserved_reason(&args.command[0]);
    if let Some(obstacle) = &obstacle {
        let what = "it gets no lent memory, but the kernel module serves it";
        // A closed standard error is no reason to start nothing.
        let _ = writeln!(std::io::stderr(), "prezero: {}: {what}", obstacle.why);
    }
    if !obstacle.is_some_and(|obstacle| obstacle.is_fatal) {
        let first = before(shim.as_os_str(), std::env::var_os("LD_PRELOAD"));
        command.env("LD_PRELOAD", first);
    }
    let tunables = std::env::var_os("GLIBC_TUNABLES").unwrap_or_default();
    if tunables.as_bytes().split(|byte| *byte == b':').any(has_own_pages) {
        let what = "GLIBC_TUNABLES has malloc take huge pages by itself";
        let _ = writeln!(std::io::stderr(), "prezero: {what}: those are not lent");
    }
    Err(become_command(&mut command))
}

/// The shim leaves calls to the kernel in silence where the daemon does not serve this user. Here
/// is the place to say so: libvirt and systemd log it.
fn note_unserved(socket: &Path) {
    let heard =
        Client::connect_within(socket, ANSWER_TIMEOUT).and_then(|mut client| client.status());
    // Without a daemon the command runs as it would without prezero.
    if let Err(error) = heard
        && !matches!(error, client::Error::NoDaemon { .. })
    {
        let why = words_within(&error, ANSWER_TIMEOUT);
        let _ = writeln!(std::io::stderr(), "prezero: {why}; the command gets no lent memory");
    }
}

/// Tells the shim how many filters the operator has set.
const SECCOMP_FILTERS: &str = "PREZERO_SECCOMP_FILTERS";

/// How many seccomp filters limit this process. The shim serves no program that has added one.
fn seccomp_filters() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    // Before Linux 5.9 the kernel tells the mode alone.
    match (field("Seccomp:"), field("Seccomp_filters:")) {
        (Some(0) | None, _) => 0,
        (Some(_), count) => count.unwrap_or(u32::MAX),
    }
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
