// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One pool for programs of every shape: the operator sets the bytes, the daemon learns the blocks.

use client::{LendRequest, Loan};
use prezero_tests::{Daemon, Page};
use units::{Bytes, Pages};

const PAGE: Page = Page::Mib2;
const READY: u64 = 320;
/// A guest's one file, a heap in several blocks, a database's buffers, and DPDK's single pages.
const GUEST: u64 = 100;
const HEAP: u64 = 70;
const BUFFERS: u64 = 33;

fn config() -> String {
    format!("{}[workers]\nmax = 1\nsched_idle = false\n", PAGE.pool("ready = \"640M\""))
}

fn in_blocks(daemon: &Daemon, pages: u64) -> Loan {
    let loan = daemon.client().lend(&LendRequest::new(PAGE.times(pages)));
    loan.expect("the daemon lends")
}

fn wants_guests(daemon: &Daemon) -> bool {
    let wants =
        |size: &wire::BlockSize| size.pages_per_block == Pages(GUEST) && size.wanted_blocks > 0;
    daemon.pool().sizes.iter().any(wants)
}

// Promise P195 (operator): A pool that is told how much to have ready, and nothing else, never has
// more ready, learns the sizes of its blocks from its loans over restarts, and throws little away
// for it.
#[test]
fn one_table_serves_programs_of_four_shapes_and_learns_them() {
    let Some(mut daemon) = Daemon::start(PAGE, READY + 80, &config()) else { return };
    if !daemon.has_blocks() {
        return;
    }
    // Blocks of former sizes can be in the way of those wanted now: a quarter at most, here.
    let all_ready = |daemon: &Daemon| {
        daemon.wait_for("it is filled", |p| {
            p.ready_pages >= Pages(READY * 3 / 4) && p.zeroing_pages == Pages(0)
        });
    };
    let mut ready = Vec::new();
    for _ in 0..12 {
        all_ready(&daemon);
        let mut loans =
            vec![daemon.lend(PAGE, GUEST), in_blocks(&daemon, HEAP), in_blocks(&daemon, BUFFERS)];
        loans.extend((0..8).map(|_| daemon.lend(PAGE, 1)));
        let sum = |of: fn(&Loan) -> Bytes| loans.iter().map(|loan| of(loan).0).sum::<u64>();
        ready.push(100 * sum(Loan::ready_bytes) / sum(Loan::bytes));
        assert!(daemon.pool().ready_pages <= Pages(READY), "never more than it was told");
        drop(loans);
        daemon
            .wait_for("all is returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
    }
    let last = ready.last().copied().expect("a round");
    assert!(last >= 95, "of a hundred bytes were ready, by round: {ready:?}");
    assert!(wants_guests(&daemon), "{:?}", daemon.pool().sizes);
    all_ready(&daemon);
    daemon.terminate();
    daemon.launch();
    assert!(wants_guests(&daemon), "learnt in vain: {:?}", daemon.pool().sizes);
    assert_eq!(daemon.lend(PAGE, GUEST).ready_bytes(), PAGE.times(GUEST));
    // A boot takes the run directory away, and leaves systemd's StateDirectory=.
    let state = daemon.scratch().join("state");
    std::fs::create_dir(&state).expect("our own directory");
    let again = |daemon: &mut Daemon| {
        daemon.terminate();
        daemon.spawn_as(|mut command| {
            command.env("STATE_DIRECTORY", &state);
            command
        });
        daemon.wait_until_up();
    };
    again(&mut daemon);
    again(&mut daemon);
    std::fs::remove_file(daemon.run_dir().join("learnt")).expect("of the first daemon");
    again(&mut daemon);
    assert!(wants_guests(&daemon), "the boot made it forget: {:?}", daemon.pool().sizes);
}
