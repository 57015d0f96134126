// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The remains of programs and their ends in the kernel's counts: every page and every promise is
//! counted before and after each.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use prezero_tests::{Daemon, Page, c};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::child::alone;
use testkit::hugepages;
use units::{Node, Pages};

use crate::attack::say;
use crate::stage::Kernel;

/// What tests/c/shim.c needs at most, with its copies.
const PAGES: u64 = 360;

/// Waits until the daemon is empty, and the kernel's counts are as before.
fn settles(daemon: &Daemon, before: Kernel) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let pool = daemon.pool();
        let held = pool.lent_pages + pool.draining_pages + pool.zeroing_pages;
        if held == Pages(0) {
            daemon.client().release(None, None, None).expect("everything back");
            if Kernel::now() == before {
                return Ok(());
            }
        }
        if begun.elapsed() > Duration::from_secs(10) {
            return Err(format!("{before:?} before, {:?} after; {pool:?}", Kernel::now()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn run(daemon: &Daemon, program: &[&str]) -> Command {
    let mut command = Command::new(prezero_tests::daemon::binary());
    command.arg("run").arg("--socket").arg(daemon.socket()).arg("--").args(program);
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
    command
}

#[test]
fn programs_under_the_shim_leave_no_page_or_promise_at_any_end() {
    let _alone = alone();
    let wanted = [(Page::Mib2.size(), Some(Node(0)), PAGES)];
    let Some(pages) = hugepages::reserve_all(&wanted) else { return };
    let before = Kernel::now();
    let daemon = Daemon::start_with(Some(pages), &Page::Mib2.pool("leave_free = 48"), &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let shim = c::compile("shim", dir.path(), &[]);
    let private = c::compile("private", dir.path(), &[]);
    let mut random = StdRng::seed_from_u64(5);
    let mut ends = 0;
    for program in [&shim, &private] {
        let program = program.to_str().expect("a plain path");
        daemon.zero("200");
        let status = run(&daemon, &[program]).status().expect("prezero runs");
        settles(&daemon, before)
            .unwrap_or_else(|left| panic!("{program} ended with {status}: {left}"));
        for _ in 0..8 {
            daemon.zero("100");
            let mut command = run(&daemon, &[program]);
            let mut child = command.process_group(0).spawn().expect("prezero runs");
            std::thread::sleep(Duration::from_millis(random.random_range(5..250)));
            // `run` is the program itself by then, and its children wait for it for ever.
            let group = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
            killpg(group, Signal::SIGKILL).expect("our own children");
            child.wait().expect("our own child");
            settles(&daemon, before).unwrap_or_else(|left| panic!("{program} killed: {left}"));
            ends += 1;
        }
    }
    let name = format!("programs under the shim, {ends} of them killed");
    say(&[&name, "any user", "its end", "", "nothing (used and promised pages as before)"]);
}
