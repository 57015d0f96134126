// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero lend`: a command that runs on borrowed memory.
//!
//! The command takes this process's place (`execve`): it has the descriptors of the memory and of
//! the lease. So the loan ends exactly when the command and every child that inherited the lease
//! have ended, by any cause. No process stands between it and its signals, its terminal, or its
//! starter (systemd, libvirt). A command that closes descriptors which it does not know ends the
//! loan early, with its mappings still there; the daemon lends that memory only after they are
//! gone.

use std::ffi::OsString;
use std::time::Duration;

use client::{Client, LendRequest, Loan};
use units::{Bytes, Owner, Pages};

use crate::exit::Outcome;
use crate::inherited::{Inherited, become_command};
use crate::output::{self, terminal};
use crate::program;
use crate::shared::{Daemon, WhichPages};
use crate::verbs::named::NamedArgs;

/// Run a command on borrowed memory
///
/// Borrows SIZE bytes as one file and runs CMD in this process's place. In every argument `{path}`
/// becomes /proc/self/fd/N, `{fd}` the descriptor's number N, and `{bytes}` the size. CMD must map
/// the memory shared (MAP_SHARED; share=on for QEMU). The loan ends when CMD and the children that
/// inherited its descriptors have ended.
///
/// If less than SIZE is ready, the rest is an unbacked part that the kernel zeroes when CMD touches
/// it, and a line on standard error says so. With --owner and --keep, memory that CMD returns stays
/// as it is for that long, for the same user's next loan of that owner and size.
///
/// CMD finds in its environment: PREZERO_FD, PREZERO_PATH, PREZERO_BYTES, PREZERO_PAGE_BYTES,
/// PREZERO_KEPT (1 if the content is what the owner left, else 0), PREZERO_LEASE_FD.
///
/// With --name and without CMD the loan lasts by that name until `prezero return NAME`, across
/// restarts of everything, the daemon included; its file's path is printed, which the file's user
/// can open. The same name and size again are the same loan. --bind and --link put the memory at a
/// new path, where a program opens it by itself. That path is made with the user's rights, and goes
/// with the loan. With --owner the next loan of that owner finds the content that it left, if both
/// names begin with the same SCOPE/. Loans by name are for root and members of agent.group, who
/// hand memory on to others.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero lend 8G --page-size 1G -- \\
    qemu-system-x86_64 -m 8G -machine q35,memory-backend=ram \\
      -object memory-backend-file,id=ram,size=8G,mem-path={path},share=on ...
  prezero lend 8G --wait 30s -- ./server --memory {path}
  prezero lend 2G --owner cache --keep 5m -- ./server --memory-fd {fd}
  prezero lend 2G --name team-a/job-7 --whole --uid 1000
  prezero lend 64G --name vllm/e0 --whole --uid 1000 --bind /dev/shm/vllm_offload_e0.mmap")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    which: WhichPages,
    /// How much: whole pages, as in 512M or 8G
    #[arg(value_name = "SIZE")]
    size: Bytes,
    /// The name under which the content can be had again after a restart
    #[arg(long, value_name = "NAME")]
    owner: Option<Owner>,
    /// How long the content stays for --owner after its return, as in 30s or 5m
    #[arg(long, value_name = "TIME", requires = "owner", value_parser = humantime::parse_duration)]
    keep: Option<Duration>,
    /// Wait until all of it is ready, at most this long, as in 30s; then take the ready part
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    named: NamedArgs,
    /// The command and its arguments
    #[arg(value_name = "CMD", required_unless_present = "name", last = true)]
    command: Vec<OsString>,
}

/// Where enough is ready in other blocks, that it is, and what that means for the next loan.
fn ready_elsewhere(client: &mut Client, loan: &Loan) -> String {
    let page_size = loan.page_size();
    let Ok(status) = client.status() else { return String::new() };
    let pools = || status.pools.iter().filter(|pool| pool.page_size == page_size);
    let ready: Bytes = pools().map(|pool| pool.ready_pages.bytes(page_size)).sum();
    if ready < loan.bytes().saturating_sub(loan.ready_bytes()) {
        return String::new();
    }
    let next = match pools().any(|pool| pool.pages_per_block == Pages(0)) {
        true => "the pool learns this size, and has a block for the next loan of it",
        false => "set `ready` for blocks of all sizes, or pages_per_block as large as the loan",
    };
    format!("; {ready} more are ready in other blocks: {next}")
}

pub(crate) fn run(args: &Args) -> Outcome {
    let request = LendRequest {
        bytes: args.size,
        page_size: args.which.get().page_size,
        node: args.which.get().node(),
        owner: args.owner.clone(),
        keep: args.keep,
        single: true,
        whole: args.named.whole,
        most_blocks: None,
        hold: args.named.hold(),
    };
    if request.name().is_some() {
        return args.named.lend(&args.daemon, &request);
    }
    terminal::end_with_output();
    program::check_runnable(&args.command[0])?;
    let mut client = args.daemon.connect()?;
    let loan = match args.wait {
        Some(time) => client.lend_within(&request, time)?,
        None => client.lend(&request)?,
    };
    let (ready, size) = (loan.ready_bytes(), loan.bytes());
    if ready < size && !loan.is_kept() {
        let elsewhere = ready_elsewhere(&mut client, &loan);
        output::note(&format!(
            "{ready} of {size} are ready; the kernel zeroes the rest on touch{elsewhere}"
        ));
    }
    if !Inherited::is_named_by(&args.command) {
        output::note(
            "CMD names neither {path} nor {fd}: it has the memory only if it reads PREZERO_PATH or \
             PREZERO_FD",
        );
    }
    let memory = Inherited::new(loan)?;
    Err(become_command(&mut memory.command(&args.command)))
}
