// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon under attacks, one after the other, and what it and the kernel have: counted before and
//! after each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

pub(crate) use prezero_tests::counters::Kernel;
use prezero_tests::{Daemon, Page, process};
use testkit::child::alone;
use testkit::hugepages;
use units::{Node, Pages};
use wire::{PoolChange, PoolStatus};

use crate::attack::{POOL, WORKERS};
use crate::users::{LEND_GROUP, ZERO_GROUP};
use crate::victim::Victim;

/// The time limit for pages on their way back.
const RETURN_TIMEOUT: Duration = Duration::from_secs(10);
/// Memory of the daemon that an attack may leave it with: its malloc's, which it uses again.
const LEFT_KIB: i64 = 4 << 10;

/// What an attack has left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    /// Descriptors of the daemon's beyond those before.
    pub descriptors: i64,
    /// Memory of the daemon's beyond that before, in KiB.
    pub memory_kib: i64,
    /// Unknown files on its mount, after it was told to give back all.
    pub files: usize,
    /// Pages that the kernel misses.
    pub pages: i64,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptors, memory_kib, files, pages } = self;
        if (*descriptors, *files, *pages) == (0, 0, 0) {
            return write!(f, "nothing ({memory_kib:+} KiB)");
        }
        write!(f, "{descriptors} fds, {memory_kib} KiB, {files} files, {pages} pages")
    }
}

/// The daemon with its pages and what there was before. Dropped, it fails the test if any attack
/// did harm.
#[derive(Debug)]
pub(crate) struct Stage {
    /// The daemon.
    pub daemon: Daemon,
    /// How its first pool recycles.
    pub recycle: &'static str,
    kernel: Kernel,
    descriptors: usize,
    memory_kib: u64,
    pools: Vec<PoolStatus>,
    /// The time of victims' calls without an attack.
    quiet: BTreeMap<&'static str, Vec<Duration>>,
    harm: Vec<String>,
    _alone: MutexGuard<'static, ()>,
}

impl Stage {
    /// A daemon as most attacks need it, with this way to recycle. `None` is a skip, which was
    /// counted.
    pub(crate) fn usual(recycle: &'static str) -> Option<Self> {
        let config = format!("{POOL}recycle = \"{recycle}\"\n{WORKERS}");
        let mut stage = Self::set(96, &config)?;
        stage.recycle = recycle;
        Some(stage)
    }

    /// So many pages; `config` are keys of the top level, then tables.
    pub(crate) fn set(pages: u64, config: &str) -> Option<Self> {
        let alone = alone();
        let wanted = [(Page::Mib2.size(), Some(Node(0)), pages)];
        let guard = hugepages::reserve_all(&wanted)?;
        let kernel = Kernel::now();
        let groups = format!("lend_group = \"{LEND_GROUP}\"\nzero_group = \"{ZERO_GROUP}\"\n");
        let daemon = Daemon::start_with(Some(guard), &format!("{groups}{config}"), &[]);
        // As the package makes /run/prezero.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(daemon.run_dir(), open).expect("our own directory");
        let pools = daemon.status().pools;
        let (quiet, harm) = (BTreeMap::new(), Vec::new());
        let mut stage = Self {
            daemon,
            recycle: "fresh",
            kernel,
            descriptors: 0,
            memory_kib: 0,
            pools,
            quiet,
            harm,
            _alone: alone,
        };
        stage.daemon.zero("max");
        stage.remember();
        Some(stage)
    }

    /// Harm that an attack did: the others go on.
    pub(crate) fn record(&mut self, harm: String) {
        eprintln!("{harm}");
        self.harm.push(harm);
    }

    /// The time of that victim's calls without an attack, if known.
    pub(crate) fn quiet(&self, victim: &Victim) -> Option<&[Duration]> {
        self.quiet.get(victim.what).map(Vec::as_slice)
    }

    /// Has that known.
    pub(crate) fn set_quiet(&mut self, victim: &Victim, took: &[Duration]) {
        self.quiet.insert(victim.what, took.to_vec());
    }

    /// What comes from here on is compared with now.
    pub(crate) fn remember(&mut self) {
        self.descriptors = self.descriptors();
        self.memory_kib = self.memory_kib();
    }

    fn descriptors(&self) -> usize {
        process::descriptors(self.daemon.pid())
    }

    /// Its resident memory.
    pub(crate) fn memory_kib(&self) -> u64 {
        process::resident_kib(self.daemon.pid())
    }

    fn files(&self) -> usize {
        let root = self.daemon.run_dir().join("pages-2048kB");
        let states = fs::read_dir(root).into_iter().flatten().flatten();
        let blocks = states.filter(|state| state.file_name() != "loans");
        blocks.map(|state| fs::read_dir(state.path()).map_or(0, Iterator::count)).sum()
    }

    /// Waits until all memory is unused, takes everything back, and counts. Then everything is
    /// ready again.
    ///
    /// # Errors
    /// Something is held for longer than it takes to let go of it, or the daemon panicked.
    pub(crate) fn left(&mut self) -> Result<Left, String> {
        // Asked once more after it was so, it may not be.
        let soon = |done: &dyn Fn() -> bool| {
            let begun = Instant::now();
            loop {
                if done() {
                    return true;
                }
                if begun.elapsed() > RETURN_TIMEOUT {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        // Or there would always be something on its way.
        self.zero_by_itself(false);
        // Calls of peers that are gone are served as long as there are any: connections end first.
        soon(&|| self.descriptors() <= self.descriptors);
        let seen = RefCell::new(None);
        let quiet = soon(&|| {
            let status = self.daemon.status();
            let held = status.pools.iter().map(|pool| {
                pool.lent_pages + pool.draining_pages + pool.zeroing_pages + pool.kept_pages
            });
            let quiet = status.workers == 0 && held.sum::<Pages>() == Pages(0);
            seen.replace(Some(status));
            quiet
        });
        if !quiet {
            return Err(format!("somebody has pages: {seen:?}"));
        }
        // Connections end a moment after their peers, and memory is given back a moment later.
        soon(&|| self.descriptors() <= self.descriptors);
        let signed = |now: u64, before: u64| now.cast_signed() - before.cast_signed();
        let memory = || signed(self.memory_kib(), self.memory_kib);
        soon(&|| memory() <= LEFT_KIB);
        let memory_kib = memory();
        self.daemon.client().release(None, None, None).expect("everything back");
        // Files without pages are in no count of the daemon's: their users' queues remove them.
        soon(&|| self.files() == 0);
        let files = self.files();
        soon(&|| self.descriptors() <= self.descriptors);
        let descriptors = signed(self.descriptors() as u64, self.descriptors as u64).max(0);
        soon(&|| Kernel::now() == self.kernel);
        let (now, before) = (Kernel::now(), self.kernel);
        let promised = |kernel: Kernel| kernel.reserved.unwrap_or(0);
        let pages = signed(before.free, now.free).abs()
            + signed(promised(before), promised(now)).abs()
            + signed(before.total, now.total).abs();
        let log = self.daemon.log();
        if log.contains("panicked") {
            return Err("the daemon panicked".to_owned());
        }
        self.daemon.zero("max");
        self.zero_by_itself(true);
        Ok(Left { descriptors, memory_kib, files, pages })
    }

    fn zero_by_itself(&self, on: bool) {
        for pool in &self.pools {
            let threshold = |pages: Pages| Some(if on { pages } else { Pages(0) });
            let change = PoolChange {
                node: pool.node,
                page_size: pool.page_size,
                pages_per_block: pool.pages_per_block,
                ready_low: threshold(pool.ready_low),
                ready_high: threshold(pool.ready_high),
                ..Default::default()
            };
            self.daemon.client().configure(change).expect("a change of thresholds");
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let Self { daemon, harm, .. } = self;
        if !harm.is_empty() && !std::thread::panicking() {
            let log = daemon.log();
            let tail = log.len().saturating_sub(4000);
            let tail = String::from_utf8_lossy(&log.as_bytes()[tail..]);
            panic!("{}\n\n{tail}", harm.join("\n"));
        }
    }
}

impl Left {
    /// Whether that is empty.
    pub(crate) fn is_nothing(&self) -> bool {
        let Self { descriptors, memory_kib, files, pages } = *self;
        (descriptors, files, pages) == (0, 0, 0) && memory_kib <= LEFT_KIB
    }
}
