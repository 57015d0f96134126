// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio with buffers of huge pages, on request.

use std::process::Command;

use prezero_tests::{Daemon, Page};
use testkit::hugepages;

use super::{assert_returned, is_wanted, run, served, succeeded};

const PAGE: Page = Page::Mib2;

// Promise P213 (programs): fio's buffers are lent, to processes and threads, and return.
#[test]
fn fio_buffers_are_lent_to_jobs_as_processes_and_threads() {
    let Some(fio) = is_wanted("fio", "fio") else { return };
    let Some(reserved) = hugepages::reserve(PAGE.size(), 40) else { return };
    let daemon = Daemon::start_with(Some(reserved), &PAGE.pool("leave_free = 4"), &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let work = |command: &mut Command, options: &[&str]| {
        // What it writes it reads again, and compares. Options before a job's name are for all.
        command.args(["--rw=randwrite", "--verify=crc32c", "--ioengine=psync", "--bs=1m"]);
        command.args(["--size=8m", "--hugepage-size=2m"]).args(options);
        command.args(["--name=a", "--name=b"]);
        succeeded(&command.current_dir(&dir).output().expect("fio runs"));
    };
    for (options, kind, count) in [
        (&["--mem=mmaphuge"][..], "mmap", 2),
        (&["--mem=mmaphuge", "--thread"], "mmap", 2),
        (&["--mem=shmhuge"], "a segment", 2),
    ] {
        work(&mut Command::new(&fio), options);
        daemon.zero("max");
        let log = dir.path().join("shim.log");
        work(run(&daemon, &log, &["--shm"]).arg(&fio), options);
        let served = served(&log);
        assert!(served.iter().all(|line| line.contains(kind)), "{served:?}");
        assert_eq!(served.len(), count, "{served:?}");
        assert_returned(&daemon);
        std::fs::remove_file(&log).expect("its own log");
    }
}
