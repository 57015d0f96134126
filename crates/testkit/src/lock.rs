// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One test at a time changes the machine's pools, and what a killed one left behind is put back.
//!
//! The lock is a file in the temporary directory, locked across processes and threads. While it is
//! held it has a line per changed pool, with the size to restore. A killed run cannot restore
//! pools, so the next holder of the lock does it, ends the processes that the run started and takes
//! its mounts away.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use linux::{Result, Roots, hugetlb};
use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};
use units::{Node, PageSize};

/// How the names of directories begin, in the temporary directory, on which tests mount things.
pub const MOUNTS_PREFIX: &str = "prezero-test-";

/// How long a killed process may take to give back its pages: a thousand of 2 MiB take
/// milliseconds.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The size that a pool had before a test: of the whole machine, or of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) page: PageSize,
    pub(super) node: Option<Node>,
    pub(super) total: u64,
}

impl Before {
    /// Sets the size again; true if the kernel reached it.
    pub(super) fn restore(self) -> Result<bool> {
        let Self { page, node, total } = self;
        Ok(hugetlb::set_total(&Roots::default(), page, node, total)? == total)
    }

    /// The same as soon as killed processes have let go of their pages. Gives up in the end:
    /// another program has taken pages since, or a gigantic one cannot be found again.
    fn restore_soon(self) {
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        while self.restore().is_ok_and(|restored| !restored) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn line(self) -> String {
        let node = self.node.map_or("-".to_owned(), |node| node.0.to_string());
        format!("{} {node} {}\n", self.page.bytes(), self.total)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let page = PageSize::new(words.next()?.parse().ok()?)?;
        let node = match words.next()? {
            "-" => None,
            node => Some(Node(node.parse().ok()?)),
        };
        Some(Self { page, node, total: words.next()?.parse().ok()? })
    }
}

/// The lock, held. Dropped, the next one may have it.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Waits for it, and puts back what a killed holder left.
    pub(super) fn take() -> Self {
        let path = std::env::temp_dir().join("prezero-test-hugepages.lock");
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(&path)
            .expect("the lock file can be opened");
        let lock = || rustix::fs::flock(&file, FlockOperation::LockExclusive);
        rustix::io::retry_on_intr(lock).expect("the lock file can be locked");
        let mut left = String::new();
        file.read_to_string(&mut left).expect("the lock file is text");
        let lock = Self(file);
        if !left.is_empty() {
            kill_orphans();
            detach_mounts();
            // The latest change first, as the killed test would have.
            for before in left.lines().rev().filter_map(Before::parse) {
                before.restore_soon();
            }
            lock.forget();
        }
        lock
    }

    /// Remembers, across the end of this process, what to go back to.
    pub(super) fn remember(&mut self, before: Before) {
        self.0.write_all(before.line().as_bytes()).expect("the lock file can be written");
    }

    /// All is as it was.
    pub(super) fn forget(&self) {
        self.0.set_len(0).and_then(|()| (&self.0).rewind()).expect("the lock file can be emptied");
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlocked by name: a forked child that is still alive has a copy of the descriptor.
        rustix::fs::flock(&self.0, FlockOperation::Unlock).ok();
    }
}

/// If that is a path below a directory of some test's own.
fn is_of_a_test(path: &Path) -> bool {
    let below = path.strip_prefix(std::env::temp_dir()).ok();
    let first = below.and_then(|rest| rest.iter().next());
    first.is_some_and(|name| name.to_string_lossy().starts_with(MOUNTS_PREFIX))
}

/// What a killed test started, told by the directories it was given: daemons, and they their
/// workers.
fn kill_orphans() {
    let started_by_a_test = |process: &Path| {
        let arguments = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let mut arguments = arguments.split(|byte| *byte == 0).map(OsStr::from_bytes);
        arguments.any(|argument| is_of_a_test(Path::new(argument)))
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.filter(|process| started_by_a_test(&process.path())) {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            rustix::process::kill_process(pid, Signal::KILL).ok();
        }
    }
}

/// What a killed test mounted: daemons' pages and control trees.
fn detach_mounts() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // Tests name their directories without blanks, which would be escaped.
    let dirs = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    for dir in dirs.filter(|dir| is_of_a_test(dir)) {
        // What cannot be unmounted holds pages, which the next test misses and says so. The files
        // beside the mounts may stay, and may say what happened.
        rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_which_pool_and_what_size_it_had() {
        let page = PageSize::MIB_2;
        for node in [None, Some(Node(3))] {
            let before = Before { page, node, total: 7 };
            assert_eq!(Before::parse(before.line().trim_end()), Some(before));
        }
        assert_eq!(Before::parse("2097152 x 7"), None);
        assert_eq!(Before::parse("3 - 7"), None);
    }
}
