// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero demo`: what prezero saves, shown on this machine with real programs.
//!
//! # The walk
//!
//! 1. [`crate::rig`]: reserve huge pages from free memory, touch them once, embed a daemon that
//!    owns none of them yet. All of it is undone by `Drop`: at the end, at an error, at Ctrl-C.
//! 2. [`starts`]: with the largest page size, QEMU from its start to its QMP greeting: without huge
//!    pages, with pages that it preallocates itself, with pages that the daemon lends. In rounds,
//!    so that a noisy machine disturbs all ways alike; the medians count.
//! 3. [`boots`]: a Debian kernel in that guest, from QEMU's start to the first line of userspace.
//! 4. [`maps`]: for every page size, `MAP_POPULATE` by the kernel against lend, map and touch.
//! 5. [`report`]: one table, or JSON of the same records.
//!
//! [`in_vm`] is another walk, for the kernel module on a machine that cannot load modules.
//!
//! Pages are either in the kernel's pool, where QEMU and `MAP_POPULATE` take them, or in the
//! daemon's. There are enough for one of the two, so each round fills the daemon's pool, borrows
//! from it, gives all back, and lets the kernel's users have them.

mod boots;
mod in_vm;
mod initramfs;
mod maps;
mod report;

use std::path::PathBuf;

use crate::machine;
use linux::Roots;
use units::{Bytes, PageSize};

use crate::rig::{Backing, Plan, Pool, Rig, qemu, starts};
use cli::exit::{Exit, Failure, Outcome};
use cli::output::{self, Form};
use report::DemoReport;
use worker::Stop;
use worker::context::allowed_cpus;

/// The most memory that is used unless --size says so.
const DEFAULT_MAX_BYTES: Bytes = Bytes(16 << 30);
/// The same without huge pages, where there is less to see.
const DEFAULT_MAX_PLAIN_BYTES: Bytes = Bytes(2 << 30);

/// Show on this machine what prezero saves, with real programs
///
/// Reserves huge pages of 1 GiB and 2 MiB from free memory, fills a pool with zeroed ones, and
/// starts QEMU to its QMP greeting in three ways. It has no huge pages, or huge pages that it
/// preallocates with one and with all threads, or huge pages that prezero lends. Then it boots a
/// Debian kernel in such guests, and compares MAP_POPULATE with lend, map and touch for each page
/// size.
///
/// Needs root for huge pages, and puts every setting back, also at Ctrl-C; without them it falls
/// back to plain memory. It leaves out what needs a missing package (qemu-system-x86, a kernel in
/// /boot, busybox-static), and says so.
///
/// With --in-vm it shows the kernel module instead, and changes nothing on this machine. QEMU boots
/// a kernel with prezero.ko, and the guest starts unmodified programs on dirty pages and again on
/// zeroed ones. The table says how many pages the kernel cleared for them, and what they printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sudo prezero demo
  sudo prezero demo --size 8G --json | jq .ratios
  prezero demo --in-vm")]
pub(crate) struct Args {
    /// How much memory (default: half of the free memory, at most 16G)
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,
    /// How often everything is measured; the medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The kernel to boot (default: the newest readable /boot/vmlinuz-*)
    #[arg(long, value_name = "FILE")]
    guest_kernel: Option<PathBuf>,
    /// Show the kernel module in a virtual machine
    #[arg(long, conflicts_with_all = ["size", "rounds", "threads"])]
    in_vm: bool,
    /// With --in-vm: the module to load there (default: the one that DKMS built)
    #[arg(long, value_name = "FILE", requires = "in_vm")]
    guest_module: Option<PathBuf>,
    /// How QEMU runs the guest: tcg works everywhere, auto takes kvm where /dev/kvm works
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ["auto", "tcg", "kvm"])]
    accel: String,
    /// Threads that fill the pool, and preallocate in QEMU (default: the CPUs it may use)
    #[arg(short = 'j', long = "threads", value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    if args.in_vm {
        let (kernel, module) = (args.guest_kernel.as_deref(), args.guest_module.as_deref());
        return in_vm::run(kernel, module, &args.accel, args.form);
    }
    let roots = Roots::default();
    let stop = Stop::on_signals()?;
    let threads = args.threads.unwrap_or_else(allowed_cpus).max(1);
    let plan = Plan { rounds: args.rounds, threads, stop };
    let backing = Backing::choose(&roots);
    let size = size(args, &roots, &backing)?;
    output::note("reserves huge pages and starts a daemon of its own; Ctrl-C puts all back");
    let mut rig = Rig::open(roots.clone(), backing)?;
    let mut report =
        DemoReport::new(cli::machine::describe(&roots)?, rig.provider(), threads, size);
    let qemu = qemu::Qemu::find(&args.accel).map_err(|lack| output::note(&lack)).ok();

    // The largest pages first: once memory is split into small ones, large ones may not come back.
    let mut pages = rig.page_sizes()?;
    pages.reverse();
    let last = pages.last().copied();
    for page in pages {
        plan.go_on()?;
        let Some(mut scene) = rig.set(&plan, Pool::new(page, size))? else { continue };
        // A guest of much less memory than was asked for shows QEMU's own start, not its memory's.
        let worth_it = scene.bytes().0 >= size.0 / 2 || Some(page) == last;
        let (bytes, rounds) = (scene.bytes(), cli::output::count(plan.rounds.into(), "round"));
        if let Some(qemu) = qemu.as_ref().filter(|_| report.starts.is_none() && worth_it) {
            output::note(&format!(
                "starts QEMU with {bytes} of {page} pages in four ways, {rounds}"
            ));
            report.starts = Some(starts::measure(&plan, &mut scene, qemu)?);
            report.boots = boots::measure(&plan, &mut scene, qemu, args.guest_kernel.as_deref())?;
        }
        output::note(&format!("maps {bytes} of {page} pages in two ways, {rounds}"));
        report.maps.push(maps::measure(&plan, &mut scene)?);
        scene.clear_away()?;
    }
    rig.close()?;
    report.conclude();
    args.form.print(&report)?;
    Ok(Exit::Done)
}

/// The requested memory, or half of the free memory, in whole pages of the largest size.
fn size(args: &Args, roots: &Roots, backing: &Backing) -> Result<Bytes, Failure> {
    let available = machine::available(roots)?;
    let largest = match backing {
        Backing::Huge { .. } => PageSize::GIB_1,
        Backing::Plain { .. } => PageSize::MIB_2,
    };
    let most = match backing {
        Backing::Huge { .. } => DEFAULT_MAX_BYTES,
        Backing::Plain { .. } => DEFAULT_MAX_PLAIN_BYTES,
    };
    let wanted = args.size.unwrap_or(Bytes(most.0.min(available.0 / 2)));
    if args.size.is_some() {
        // The size is QEMU's too, which wants whole megabytes.
        PageSize::MIB_2.pages_in(wanted).map_err(Failure::usage)?;
    }
    if wanted > available {
        return Err(Failure::new(
            Exit::NotEnough,
            format!("{wanted} were asked for and {available} are free: give a smaller --size"),
        ));
    }
    let whole = wanted.0 / largest.bytes() * largest.bytes();
    Ok(Bytes(if whole > 0 {
        whole
    } else {
        wanted.0 / PageSize::MIB_2.bytes() * PageSize::MIB_2.bytes()
    }))
}
