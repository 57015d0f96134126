// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero lend`: a command that runs on borrowed memory.
//!
//! The command takes this process's place (`execve`): it has the memory's descriptor and the
//! lease's, so the loan ends exactly when the command and every child that inherited the lease have
//! ended, whatever ends them. Nobody stands between it and its signals, its terminal, or whoever
//! started it (systemd, libvirt). A command that closes descriptors which it does not know ends the
//! loan early, with its mappings still there; the daemon lends that memory to nobody until they are
//! gone.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use client::{LendRequest, Loan};
use rustix::io::FdFlags;
use units::{Bytes, Owner};

use crate::exit::{Exit, Failure, Outcome};
use crate::output;
use crate::shared::{Daemon, Which};

/// Run a command on borrowed memory
///
/// Borrows SIZE bytes as one file and runs CMD in this process's place. In every argument `{path}`
/// becomes /proc/self/fd/N, `{fd}` the descriptor's number N, and `{bytes}` the size. CMD must map
/// the memory shared (MAP_SHARED; share=on for QEMU). The loan ends when CMD and the children that
/// inherited its descriptors have ended.
///
/// If less than SIZE is ready, the rest is a hole that the kernel zeroes when CMD touches it, and a
/// line on standard error says so. With --owner and --keep, memory that CMD returns stays as it is
/// for that long, and goes to nobody but the same user's next loan of that owner and size.
///
/// CMD finds in its environment: PREZERO_FD, PREZERO_PATH, PREZERO_BYTES, PREZERO_PAGE_BYTES,
/// PREZERO_KEPT (1 if the content is what the owner left, else 0), PREZERO_LEASE_FD.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero lend 8G --page-size 1G -- \\
    qemu-system-x86_64 -m 8G -machine q35,memory-backend=ram \\
      -object memory-backend-file,id=ram,size=8G,mem-path={path},share=on ...
  prezero lend 2G --owner cache --keep 5m -- ./server --memory-fd {fd}")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    which: Which,
    /// How much: whole pages, as in 512M or 8G
    #[arg(value_name = "SIZE")]
    size: Bytes,
    /// The name under which the content can be had again after a restart
    #[arg(long, value_name = "NAME")]
    owner: Option<Owner>,
    /// How long the content stays for --owner after its return, as in 30s or 5m
    #[arg(long, value_name = "TIME", requires = "owner", value_parser = humantime::parse_duration)]
    keep: Option<Duration>,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut client = args.daemon.connect()?;
    let loan = client.lend(&LendRequest {
        bytes: args.size,
        page_size: args.which.page_size,
        node: args.which.node(),
        owner: args.owner.clone(),
        keep: args.keep,
        single: true,
        held_by_memory: false,
    })?;
    let (ready, size) = (loan.ready_bytes(), loan.bytes());
    if ready < size && !loan.is_kept() {
        output::note(&format!("{ready} of {size} are ready; the kernel zeroes the rest on touch"));
    }
    let memory = Inherited::new(loan)?;
    Err(become_command(&mut memory.command(&args.command)))
}

/// Puts a command in this process's place; returns only why that failed.
pub(crate) fn become_command(command: &mut Command) -> Failure {
    let failure = command.exec();
    let exit = match failure.kind() {
        io::ErrorKind::NotFound => Exit::NoCommand,
        _ => Exit::CannotRun,
    };
    Failure::new(exit, format!("{}: {failure}", command.get_program().to_string_lossy()))
}

/// A loan whose descriptors survive `execve`.
#[derive(Debug)]
pub(crate) struct Inherited {
    lease: OwnedFd,
    memory: OwnedFd,
    bytes: u64,
    page_bytes: u64,
    kept: bool,
}

impl Inherited {
    /// A loan of one file, as [`LendRequest::single`] brings it.
    pub(crate) fn new(loan: Loan) -> Result<Self, Failure> {
        let (bytes, page_bytes) = (loan.bytes().0, loan.page_size().bytes());
        let kept = loan.is_kept();
        let (lease, parts) = loan.into_fds();
        let Ok([memory]) = <[OwnedFd; 1]>::try_from(parts) else {
            return Err(Failure::failed("the daemon answered a loan of one file with several"));
        };
        for fd in [&lease, &memory] {
            rustix::io::fcntl_setfd(fd, FdFlags::empty())
                .map_err(|errno| Failure::failed(format!("fcntl(F_SETFD): {errno}")))?;
        }
        Ok(Self { lease, memory, bytes, page_bytes, kept })
    }

    /// The path by which a process that inherited the memory opens it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.memory.as_raw_fd())
    }

    fn command(&self, words: &[OsString]) -> Command {
        let fd = self.memory.as_raw_fd().to_string();
        let (path, bytes) = (self.path(), self.bytes.to_string());
        let names = [("{path}", path.as_str()), ("{fd}", &fd), ("{bytes}", &bytes)];
        let mut command = Command::new(substitute(&words[0], &names));
        command
            .args(words[1..].iter().map(|word| substitute(word, &names)))
            .env("PREZERO_FD", &fd)
            .env("PREZERO_PATH", &path)
            .env("PREZERO_BYTES", &bytes)
            .env("PREZERO_PAGE_BYTES", self.page_bytes.to_string())
            .env("PREZERO_KEPT", u8::from(self.kept).to_string())
            .env("PREZERO_LEASE_FD", self.lease.as_raw_fd().to_string());
        command
    }
}

/// Replaces every name in braces; what is replaced is not looked at again.
fn substitute(word: &OsStr, names: &[(&str, &str)]) -> OsString {
    let mut rest = word.as_bytes();
    let mut out = Vec::with_capacity(rest.len());
    'next: while let Some((&first, tail)) = rest.split_first() {
        for (name, value) in names {
            if let Some(after) = rest.strip_prefix(name.as_bytes()) {
                out.extend_from_slice(value.as_bytes());
                rest = after;
                continue 'next;
            }
        }
        out.push(first);
        rest = tail;
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_braces_are_replaced_wherever_they_stand() {
        let names = [("{path}", "/proc/self/fd/9"), ("{fd}", "9"), ("{bytes}", "{fd}")];
        for (word, expected) in [
            ("mem-path={path},size={bytes}", "mem-path=/proc/self/fd/9,size={fd}"),
            ("{fd}{fd}", "99"),
            ("{pathological} {}", "{pathological} {}"),
            ("", ""),
        ] {
            assert_eq!(substitute(OsStr::new(word), &names), expected, "{word}");
        }
        let not_text = OsStr::from_bytes(b"\xff{fd}");
        assert_eq!(substitute(not_text, &names).as_bytes(), b"\xff9");
    }
}
