// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting for changes of the tree's files, by many at once.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::thread;
use units::Pages;

use prezero_tests::daemon::WAIT_TIMEOUT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::tree::{daemon, domain};

const POLLERS: usize = 1000;

fn value(file: &File) -> u64 {
    let mut text = [0; 32];
    let length = file.read_at(&mut text, 0).expect("a number");
    let text = std::str::from_utf8(&text[..length]).expect("text");
    text.trim_end().parse().expect("a number")
}

// Promise P44.
#[test]
fn a_thousand_pollers_are_all_woken_and_read_the_truth() {
    let Some(daemon) = daemon(4, "") else { return };
    let path = domain(&daemon).join("zeroable_hugepages");
    let ready = Barrier::new(POLLERS + 1);
    let timeout = Timespec { tv_sec: WAIT_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    let poller = || {
        let file = File::open(&path).expect("a file");
        assert_eq!(value(&file), 4);
        ready.wait();
        // Some look while the page is being zeroed, and are told again when that is over.
        loop {
            let mut fds = [PollFd::new(&file, PollFlags::PRI)];
            assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "woken in time");
            assert_eq!(fds[0].revents(), PollFlags::PRI | PollFlags::ERR);
            let now = value(&file);
            assert!(now < 4, "news");
            if now == 3 {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let spawn = |_| {
            let builder = thread::Builder::new().stack_size(128 << 10);
            builder.spawn_scoped(scope, poller).expect("a thread")
        };
        let pollers: Vec<_> = (0..POLLERS).map(spawn).collect();
        ready.wait();
        fs::write(&path, "1").expect("one page");
        for poller in pollers {
            poller.join().expect("no panic");
        }
    });
    // And the daemon still answers at once.
    assert_eq!(daemon.pool().ready_pages, Pages(1));
}
