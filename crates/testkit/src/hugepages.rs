// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Huge pages for a test, and the pool put back afterwards.
//!
//! The pool is the machine's, so only one test at a time may change it (`lock`). A test
//! that needs two sizes asks for both at once.
//!
//! The kernel's own counters are compared before and after: every additional page in use or
//! promised fails the test.
//!
//! Pages that are free already are used: a runner that reserves its tests' pages before it compiles
//! them finds 1 GiB pages on machines where memory is too scattered later. Excess free pages leave
//! the pool until the test is over, so that a test has exactly the number that it asked for. Excess
//! pages of 1 GiB are hard to find again: they are promised to an untouched mapping instead.
//! Promises are of the whole machine: one with several nodes runs the tests with empty pools.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linux::{HugetlbMount, Mapping, Result, Roots, hugetlb, meminfo, mount};
use rustix::fs::MemfdFlags;
use tempfile::TempDir;
use units::{Node, PageSize};

use crate::lock::{Before, Lock, MOUNTS_PREFIX};
use crate::{GIB_PAGES, IN_VM, skip, skip_always};

/// 2 MiB.
pub const MIB_2: PageSize = PageSize::MIB_2;
/// 1 GiB.
pub const GIB_1: PageSize = PageSize::GIB_1;

/// How long pages may be on their way back after a test's last process is gone.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the pool is asked to grow: the kernel fails to find 1 GiB in one piece now and then.
const ATTEMPTS: u32 = 5;

/// Free huge pages that are this test's alone; dropped, every pool has its old size again.
#[derive(Debug)]
pub struct Guard {
    before: Vec<Before>,
    /// What others had of every size when the lock was taken.
    held: Vec<Held>,
    /// Free pages of other owners that stay in their pool, how many of each size.
    excess: Vec<(PageSize, u64, Mapping)>,
    lock: Lock,
}

/// Makes sure that `pages` pages of one size are free, or skips the test.
///
/// # Panics
/// If they are missing and skipping is a failure.
pub fn reserve(page: PageSize, pages: u64) -> Option<Guard> {
    reserve_all(&[(page, None, pages)])
}

/// The same for several sizes, each on a node of its own choice or anywhere.
///
/// # Panics
/// If they are unavailable and skipping is a failure.
pub fn reserve_all(wanted: &[(PageSize, Option<Node>, u64)]) -> Option<Guard> {
    if !rustix::process::geteuid().is_root() {
        skip("changing the hugetlb pool needs root");
        return None;
    }
    if std::env::var_os(IN_VM).is_some() {
        skip_always("runs in a virtual machine, as VM=1 asks");
        return None;
    }
    let gigantic = wanted.iter().filter(|(page, ..)| page.bytes() >= 1 << 30);
    let gigantic = gigantic.map(|(.., pages)| pages).sum::<u64>();
    let had = std::env::var(GIB_PAGES).ok().and_then(|pages| pages.parse::<u64>().ok());
    if had.is_some_and(|had| gigantic > had) {
        skip_always(&format!("memory is too scattered for {gigantic} pages of 1 GiB"));
        return None;
    }
    let lock = Lock::take();
    let mut guard = Guard { before: Vec::new(), held: Held::now(), excess: Vec::new(), lock };
    for &(page, node, pages) in wanted {
        match guard.grow(page, node, pages) {
            Ok(true) => {}
            Ok(false) => {
                let why = strangers(&Roots::default());
                let why = why.map_or(String::new(), |line| format!(": {line}"));
                skip(&format!("this machine cannot reserve {pages} pages of {page}{why}"));
                return None;
            }
            Err(error) => {
                skip(&error.to_string());
                return None;
            }
        }
    }
    for page in hugetlb::page_sizes(&Roots::default()).expect("the sizes that were just grown") {
        let pages = wanted.iter().filter(|w| w.0 == page).map(|w| w.2).sum();
        guard.keep_from_the_test(page, pages).expect("free pages can be taken away");
    }
    Some(guard)
}

/// Pages of one size in use, and promised ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    page: PageSize,
    used: u64,
    reserved: u64,
}

impl Held {
    fn now() -> Vec<Self> {
        let roots = Roots::default();
        let sizes = hugetlb::page_sizes(&roots).unwrap_or_default();
        let held = |page| {
            let counters = hugetlb::counters(&roots, page, None).ok()?;
            let used = counters.total.saturating_sub(counters.free);
            Some(Self { page, used, reserved: counters.reserved.unwrap_or(0) })
        };
        sizes.into_iter().filter_map(held).collect()
    }

    /// Those above `before`.
    fn beyond(before: &[Self]) -> Vec<(Self, Self)> {
        let now = Self::now();
        let pairs = before.iter().filter_map(|before| {
            let now = now.iter().find(|now| now.page == before.page)?;
            Some((*before, *now))
        });
        pairs.filter(|(old, new)| new.used > old.used || new.reserved > old.reserved).collect()
    }

    /// The same as soon as the kernel has freed the pages just let go of.
    fn beyond_soon(before: &[Self]) -> Vec<(Self, Self)> {
        let begun = Instant::now();
        loop {
            let beyond = Self::beyond(before);
            if beyond.is_empty() || begun.elapsed() > RELEASE_TIMEOUT {
                return beyond;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Guard {
    /// Unused pages of this test of that size; promised ones are among them.
    ///
    /// # Panics
    /// If the kernel lacks the size.
    pub fn free(&self, page: PageSize) -> u64 {
        let aside: u64 = self.excess.iter().filter(|e| e.0 == page).map(|e| e.1).sum();
        // Promises of other programs, or leaked ones: some kernels lose count of promises now and
        // then.
        let promised: u64 = self.held.iter().filter(|h| h.page == page).map(|h| h.reserved).sum();
        let counters = hugetlb::counters(&Roots::default(), page, None);
        counters.expect("a page size of this kernel").free.saturating_sub(aside + promised)
    }

    /// Records that this number of pages of this size is the kernel's from now on: it keeps broken
    /// ones.
    pub fn lose(&mut self, page: PageSize, pages: u64) {
        for held in self.held.iter_mut().filter(|held| held.page == page) {
            held.used += pages;
        }
    }

    fn grow(&mut self, page: PageSize, node: Option<Node>, pages: u64) -> Result<bool> {
        let roots = Roots::default();
        let now = hugetlb::counters(&roots, page, node)?;
        let before = Before { page, node, total: now.total };
        self.lock.remember(before);
        self.before.push(before);
        for attempt in 1.. {
            let now = hugetlb::counters(&roots, page, node)?;
            // The number of promised pages is known for the whole machine only.
            let promised = hugetlb::counters(&roots, page, None)?.reserved.unwrap_or(0);
            let missing = (pages + promised).saturating_sub(now.free);
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

    fn keep_from_the_test(&mut self, page: PageSize, pages: u64) -> Result<()> {
        let roots = Roots::default();
        let excess = || {
            let free = hugetlb::counters(&roots, page, None)?.unreserved_free();
            Ok(free.saturating_sub(pages))
        };
        let before: Vec<_> = self.before.iter().filter(|before| before.page == page).collect();
        if let ([Before { node, .. }], true) = (&before[..], page.bytes() < GIB_1.bytes()) {
            // The resizable pool's tests found that a promise has effects: the probes for pins miss
            // their page, and the pool keeps its size where it would shrink.
            let there = hugetlb::counters(&roots, page, *node)?;
            let gone = there.free.saturating_sub(pages).min(excess()?);
            hugetlb::set_total(&roots, page, *node, there.total - gone)?;
        }
        let excess = excess()?;
        if excess > 0 {
            let size = MemfdFlags::from_bits_retain(page.bytes().trailing_zeros() << 26);
            let file = rustix::fs::memfd_create(
                "excess",
                MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | size,
            )
            .expect("a page size of this kernel");
            // mmap(2) takes the promise, the file's size with it; the pages stay free.
            let promise = Mapping::map(&file, excess * page.bytes(), page)?;
            self.excess.push((page, excess, promise));
        }
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.excess.clear();
        let leaked = match std::thread::panicking() {
            true => Vec::new(),
            false => Held::beyond_soon(&self.held),
        };
        let mut left = Vec::new();
        for before in self.before.iter().rev() {
            let restored = before.restore();
            if !matches!(restored, Ok(true)) {
                left.push(format!("{before:?}: {restored:?}"));
            }
        }
        self.lock.forget();
        if std::thread::panicking() {
            // It may explain any failure.
            if let Some(line) = strangers(&Roots::default()) {
                eprintln!("{line}");
            }
        }
        // A test that leaked pages fails here; one that already failed keeps its own message.
        if !std::thread::panicking() {
            assert!(left.is_empty(), "pages left in the pool, somebody still has them: {left:?}");
            assert!(leaked.is_empty(), "pages or promises that nobody had before: {leaked:?}");
        }
    }
}

/// One line about the programs that have huge pages mapped and are not below this process; `None`
/// if there is none. Under the lock they belong to no test: they take pages that a test counts on.
pub fn strangers(roots: &Roots) -> Option<String> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&roots.proc).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // One that has ended meanwhile is skipped.
        let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else { continue };
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        let kib = field("HugetlbPages:").and_then(|text| text.trim().strip_suffix(" kB"));
        let kib: u64 = kib.and_then(|kib| kib.trim().parse().ok()).unwrap_or(0);
        let child = field("PPid:").is_some_and(|parent| parent.trim() == own);
        if kib > 0 && name != own && !child && name.bytes().all(|b| b.is_ascii_digit()) {
            let program = field("Name:").map_or("?", str::trim);
            found.push(format!("{program} (pid {name}) has {} MiB", kib >> 10));
        }
    }
    (!found.is_empty()).then(|| {
        format!(
            "another program takes huge pages on this machine, which can be why: {}; end it, or \
             run `make test VM=1`",
            found.join(", ")
        )
    })
}

/// Slab and page cache are the usual obstacles to 1 GiB in one piece: after a kernel build on a
/// machine of 24 GiB one such page was available with them and two without. Only for the waiting
/// test, and only after the kernel has failed on its own.
fn make_room(roots: &Roots) -> Result<()> {
    hugetlb::make_room(roots)?;
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
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
/// If the mount fails and skipping is a failure.
pub fn mounted(page: PageSize) -> Option<Mounted> {
    let dir = tempfile::Builder::new().prefix(MOUNTS_PREFIX).tempdir();
    let dir = dir.expect("a temporary directory");
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
