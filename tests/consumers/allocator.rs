// SPDX-License-Identifier: Apache-2.0 OR MIT
//! mimalloc, which asks for huge pages in the midst of a program's `malloc`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, Page};
use testkit::{hugepages, skip};

use super::{assert_returned, assert_served, is_wanted, measured, succeeded, warm};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2";

/// One that allocates in threads, and counts.
const PROGRAM: &str = "
import os, sys, threading
blocks = []
def work(n):
    for i in range(200):
        b = bytearray(1 << 18)
        assert not any(b[::4096]), 'not zero'
        b[0] = n
        blocks.append(b)
threads = [threading.Thread(target=work, args=(n + 1,)) for n in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
total = sum(b[0] for b in blocks)
print(total, sum(b[0] for b in blocks) == total)
";

// Promise P80 (programs): mimalloc, DPDK and QEMU use lent memory and return all of it.
#[test]
fn reserved_huge_pages_are_lent_with_private() {
    // Debian's own: one that is a script in front of another forks before it is one.
    let Some(python) = is_wanted("/usr/bin/python3", "python3") else { return };
    if !Path::new(LIBRARY).exists() {
        return skip("mimalloc is not installed: apt-get install libmimalloc2.0");
    }
    // mimalloc reserves pages of 1 GiB.
    let page = Page::Gib1;
    let Some(reserved) = hugepages::reserve(page.size(), 1) else { return };
    let daemon = Daemon::start_with(Some(reserved), &page.pool(""), &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("shim.log");
    let work = |shim: bool| {
        let mut command = if shim {
            let mut command = Command::new(binary());
            command.arg("run").arg("--socket").arg(daemon.socket()).arg("--log").arg(&log);
            command.args(["--private", "--", "env"]);
            command
        } else {
            Command::new("env")
        };
        let preloaded = if shim {
            let beside = binary().with_file_name("libprezero_preload.so");
            format!("LD_PRELOAD={}:{LIBRARY}", beside.display())
        } else {
            format!("LD_PRELOAD={LIBRARY}")
        };
        command.args([&preloaded, "MIMALLOC_RESERVE_HUGE_OS_PAGES=1", "PYTHONMALLOC=malloc"]);
        command.env("PREZERO_WAIT_MS", "5000").arg(&python).args(["-c", PROGRAM]);
        let begin = Instant::now();
        let output = command.output().expect("python3 runs");
        let took = begin.elapsed();
        assert_eq!(succeeded(&output).trim(), "2000 True", "{output:?}");
        took
    };
    warm(&daemon);
    let cold = work(false);
    daemon.zero("max");
    let ready = work(true);
    measured("a Python program with 1 GiB reserved by mimalloc", cold, ready);
    assert_eq!(assert_served(&log).len(), 1);
    assert_returned(&daemon);
}
