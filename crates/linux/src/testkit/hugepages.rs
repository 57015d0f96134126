// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Huge pages for a test, and the pool put back afterwards.
//!
//! The pool is the machine's, so only one test at a time may change it: a lock file in the temporary
//! directory, held across processes and threads. A test that needs two sizes asks for both at once.
//!
//! Pages that are free already are used and left: a runner that reserves what its tests need before
//! it compiles them finds 1 GiB pages on machines where later none can be made.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use tempfile::TempDir;

use super::{NO_GIB_PAGES, skip, skip_for_ever};
use crate::error::Result;
use crate::hugetlb;
use crate::meminfo;
use crate::mount::{self, HugetlbMount};
use crate::roots::Roots;
use crate::units::{NodeId, PageBytes};

/// 2 MiB.
pub const MIB_2: PageBytes = PageBytes::new(2 << 20).unwrap();
/// 1 GiB.
pub const GIB_1: PageBytes = PageBytes::new(1 << 30).unwrap();

/// How often the pool is asked to grow: the kernel fails to find 1 GiB in one piece now and then.
const ATTEMPTS: u32 = 5;

/// Free huge pages that are this test's alone; dropped, every pool has its old size again.
#[derive(Debug)]
pub struct Guard {
    before: Vec<(PageBytes, Option<NodeId>, u64)>,
    lock: File,
}

/// Makes sure that `pages` pages of one size are free, or skips the test.
///
/// # Panics
/// If they are not to be had and skipping is a failure.
pub fn reserve(page: PageBytes, pages: u64) -> Option<Guard> {
    reserve_all(&[(page, None, pages)])
}

/// The same for several sizes, each on a node of its own choice or anywhere.
///
/// # Panics
/// If they are not to be had and skipping is a failure.
pub fn reserve_all(wanted: &[(PageBytes, Option<NodeId>, u64)]) -> Option<Guard> {
    if !rustix::process::geteuid().is_root() {
        skip("changing the hugetlb pool needs root");
        return None;
    }
    let gigantic = wanted.iter().any(|(page, ..)| page.bytes() >= 1 << 30);
    if gigantic && std::env::var(NO_GIB_PAGES).as_deref() == Ok("1") {
        skip_for_ever("this machine's memory is too scattered for pages of 1 GiB");
        return None;
    }
    let mut guard = Guard { before: Vec::new(), lock: lock() };
    for &(page, node, pages) in wanted {
        match guard.grow(page, node, pages) {
            Ok(true) => {}
            Ok(false) => {
                skip(&format!("this machine cannot reserve {pages} pages of {page}"));
                return None;
            }
            Err(error) => {
                skip(&error.to_string());
                return None;
            }
        }
    }
    Some(guard)
}

impl Guard {
    /// Pages of that size that nobody has, on the whole machine.
    ///
    /// # Panics
    /// If the kernel has no such size.
    pub fn free(&self, page: PageBytes) -> u64 {
        hugetlb::counters(&Roots::default(), page, None).expect("a page size of this kernel").free
    }

    fn grow(&mut self, page: PageBytes, node: Option<NodeId>, pages: u64) -> Result<bool> {
        let roots = Roots::default();
        let now = hugetlb::counters(&roots, page, node)?;
        self.before.push((page, node, now.total));
        for attempt in 1.. {
            let now = hugetlb::counters(&roots, page, node)?;
            let missing = pages.saturating_sub(now.unreserved_free());
            if missing == 0 {
                return Ok(true);
            }
            let wanted = missing.saturating_mul(page.bytes());
            if attempt > ATTEMPTS || wanted > meminfo::memory(&roots)?.available_bytes {
                break;
            }
            if attempt > 1 {
                make_room(&roots)?;
            }
            hugetlb::set_total(&roots, page, node, now.total + missing)?;
        }
        Ok(false)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut left = Vec::new();
        for &(page, node, total) in self.before.iter().rev() {
            let reached = hugetlb::set_total(&Roots::default(), page, node, total);
            if reached.as_ref().ok() != Some(&total) {
                left.push(format!("{page}: wanted {total}, got {reached:?}"));
            }
        }
        // Unlocked by name: a forked child that is still alive has a copy of the descriptor.
        rustix::fs::flock(&self.lock, FlockOperation::Unlock).ok();
        // A test that leaked pages must not pass; one that already failed keeps its own message.
        if !std::thread::panicking() {
            assert!(left.is_empty(), "pages left in the pool, somebody still has them: {left:?}");
        }
    }
}

/// Slab and page cache are the usual obstacles to 1 GiB in one piece: after a kernel build on a
/// machine of 24 GiB one such page was to be had with them and two without. Only for the waiting
/// test, and only after the kernel has failed on its own.
fn make_room(roots: &Roots) -> Result<()> {
    hugetlb::make_room(roots)?;
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
}

fn lock() -> File {
    let path = std::env::temp_dir().join("prezero-test-hugepages.lock");
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .expect("the lock file can be opened");
    let lock = || rustix::fs::flock(&file, FlockOperation::LockExclusive);
    rustix::io::retry_on_intr(lock).expect("the lock file can be locked");
    file
}

/// A hugetlbfs of a test's own, unmounted when dropped.
#[derive(Debug)]
pub struct Mounted {
    mount: HugetlbMount,
    dir: TempDir,
}

/// Mounts a hugetlbfs of that page size on a new directory, or skips the test.
///
/// # Panics
/// If it cannot be mounted and skipping is a failure.
pub fn mounted(page: PageBytes) -> Option<Mounted> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    match mount::mount(&dir.path().join("huge"), page) {
        Ok(mount) => Some(Mounted { mount, dir }),
        Err(error) => {
            skip(&error.to_string());
            None
        }
    }
}

impl Mounted {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount.dir
    }

    /// A directory beside it, on the temporary directory's file system.
    pub fn beside(&self) -> PathBuf {
        self.dir.path().to_owned()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let result = self.mount.clone().unmount();
        if !std::thread::panicking() {
            result.expect("nobody holds a file on the test's mount");
        }
    }
}
