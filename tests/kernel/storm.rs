// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The storm over the kernel's own pool: every process that zeroes, borrows or takes pages dies at
//! random in the midst of it, the daemon too, while the pool becomes larger and smaller.
//!
//! `PREZERO_TEST_KILLS` is how often each of them dies, `PREZERO_TEST_SEED` which storm it is.
//! The virtual machines `kernel-provider-debug*` run it under the kernel's checkers.

use std::process::Stdio;
use std::time::{Duration, Instant};

use linux::{Roots, hugetlb};
use nix::sys::signal::{Signal, kill};
use prezero_tests::MapAlone as _;
use prezero_tests::memory::assert_zero;
use prezero_tests::process::children;
use prezero_tests::storm::{Crowd, LEND_GROUP, Seen};
use prezero_tests::{Daemon, Page};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::child::{self, Child, fork};
use testkit::hugepages;
use units::Node;

use super::support::{self, Program, kernel, soil_pool};

const PAGE: Page = Page::Mib2;
const PAGES: u64 = 96;
const BORROWERS: usize = 6;
/// Deaths of each kind of mortal.
const KILLS: u64 = 10;
/// All of them die within it, under emulation with every checker on.
const STORM_TIMEOUT: Duration = Duration::from_secs(1200);
/// Within it everything is back where it was.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Who died how often while at work.
#[derive(Debug, Default)]
struct Deaths {
    daemons: u64,
    workers: u64,
    zeroers: u64,
    shells: u64,
    programs: u64,
}

impl Deaths {
    fn least(&self) -> u64 {
        let Self { daemons, workers, zeroers, shells, programs } = *self;
        [daemons, workers, zeroers, shells, programs].into_iter().min().unwrap_or(0)
    }
}

/// `prezero zero max`, as a user runs it; it ends by itself when all is zero, or the daemon gone.
#[derive(Debug, Default)]
struct Zeroer(Option<std::process::Child>);

impl Zeroer {
    /// Kills it and starts the next; whether it was killed at work.
    fn replace(&mut self, daemon: &Daemon) -> bool {
        let killed = self.end();
        let mut command = daemon.command(&["zero", "max"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.0 = Some(command.spawn().expect("prezero runs"));
        killed
    }

    fn end(&mut self) -> bool {
        let Some(mut child) = self.0.take() else { return false };
        let was_at_work = child.try_wait().expect("our own child").is_none();
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        was_at_work
    }
}

/// Kills it after a moment; whether that was before its end.
fn cut_short(child: Child, random: &mut StdRng) -> bool {
    child.wait_ready();
    std::thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
    let was_at_work = child.is_running();
    child.kill();
    was_at_work
}

/// An operator's shell that zeroes by the file, killed in the midst of the write.
fn shell(random: &mut StdRng) -> bool {
    let file = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/zeroable_hugepages";
    let child = fork(|ready| {
        ready.signal();
        i32::from(std::fs::write(file, "max").is_err())
    });
    cut_short(child, random)
}

/// A program that knows nothing of prezero, killed in the midst of its faults and writes.
fn program(random: &mut StdRng) -> bool {
    let child = fork(|ready| {
        ready.signal();
        while let Ok(program) = Program::try_take(PAGE, 4) {
            program.memory.fill(0..program.memory.len(), 0x5A);
        }
        1
    });
    cut_short(child, random)
}

fn resize(pages: u64) {
    let node = Some(Node(0));
    hugetlb::set_total(&Roots::default(), PAGE.size(), node, pages).expect("root resizes");
}

/// Lets everything run until each kind has died this often.
fn rage(daemon: &mut Daemon, random: &mut StdRng, crowd: &mut Crowd, kills: u64) -> (Seen, Deaths) {
    let mut seen = Seen::default();
    let mut deaths = Deaths::default();
    let mut zeroer = Zeroer::default();
    let begun = Instant::now();
    while deaths.least() < kills {
        assert!(begun.elapsed() < STORM_TIMEOUT, "only {deaths:?} in {STORM_TIMEOUT:?}, {seen:?}");
        let socket = daemon.socket();
        crowd.fill(BORROWERS, |borrower| {
            borrower.live(&socket, |_, loan, memory| drop((loan, memory)));
        });
        std::thread::sleep(Duration::from_millis(random.random_range(5..60)));
        seen.add(crowd.gather());
        match random.random_range(0..12) {
            0..=2 => deaths.zeroers += u64::from(zeroer.replace(daemon)),
            3 | 4 => deaths.shells += u64::from(shell(random)),
            5 => deaths.programs += u64::from(program(random)),
            6 | 7 => resize(random.random_range(PAGES - 8..=PAGES + 8)),
            8..=10 => {
                for worker in children(daemon.pid()) {
                    deaths.workers += u64::from(kill(worker, Signal::SIGKILL).is_ok());
                }
            }
            _ => {
                daemon.kill();
                deaths.daemons += 1;
                daemon.launch();
            }
        }
        crowd.thin(random);
    }
    zeroer.end();
    crowd.end();
    seen.add(crowd.gather());
    (seen, deaths)
}

/// Waits until all pages of the kernel's pool are unused, and each is where it was.
fn settle(daemon: &Daemon) {
    let begun = Instant::now();
    loop {
        // Surplus pages belong to the pool again, or have vanished and are replaced.
        resize(PAGES);
        let (pool, counts) = (daemon.pool(), kernel(PAGE, 0));
        let back = (pool.blocks, counts.zeroing.0, counts.surplus.0) == (0, 0, 0);
        if back && (counts.total.0, counts.free.0) == (PAGES, PAGES) {
            assert_eq!(counts.ready + counts.zeroable, counts.free, "{counts:?}");
            return;
        }
        let log = daemon.log();
        let tail = &log[log.len().saturating_sub(4000)..];
        assert!(begun.elapsed() < SETTLE_TIMEOUT, "not back: {counts:?}, {pool:?}\n{tail}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

// Promise P237 (kernel): The daemon, its workers, users' zeroers, shells at the kernel's file,
// other programs and borrowers are killed at any time, while the kernel's pool grows and shrinks.
// No byte of another is read, every call is answered, and every page is back and can be zeroed and
// lent.
#[test]
fn storm_of_mortals_loses_no_page_and_leaks_no_byte() {
    let _alone = child::alone();
    if !support::has_series() {
        return;
    }
    let wanted = [(PAGE.size(), Some(Node(0)), PAGES)];
    let Some(guard) = hugepages::reserve_all(&wanted) else { return };
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = number("PREZERO_TEST_SEED").unwrap_or(1);
    let kills = number("PREZERO_TEST_KILLS").unwrap_or(KILLS);
    eprintln!("seed {seed}; set PREZERO_TEST_SEED to repeat another run");
    soil_pool(PAGE, PAGES);
    let pool = PAGE.pool("ready_low = 40\nready_high = 60");
    let workers = "[workers]\nmax = 2\nsched_idle = false\n";
    let config = format!("lend_group = \"{LEND_GROUP}\"\n{workers}{pool}");
    let mut daemon = Daemon::start_with(Some(guard), &config, &[]);
    let before = kernel(PAGE, 0);
    let mut random = StdRng::seed_from_u64(seed);
    let mut crowd = Crowd::new(seed);
    let begun = Instant::now();
    let (seen, deaths) = rage(&mut daemon, &mut random, &mut crowd, kills);
    let seconds = begun.elapsed().as_secs();
    settle(&daemon);
    let hits = kernel(PAGE, 0).hits.0 - before.hits.0;
    let borrowers = crowd.died;
    eprintln!("{seconds} s: {seen:?}, {deaths:?}, {borrowers} borrowers died, {hits} hits");
    assert_eq!(seen.foreign, 0, "bytes of somebody else");
    assert_eq!(seen.hung, 0, "calls without an answer");
    assert!(seen.loans > kills, "only {} loans", seen.loans);
    assert!(hits > 0, "no page was ready when it was wanted");
    let log = daemon.log();
    assert!(!log.contains("panicked"), "a daemon panicked:\n{log}");
    daemon.zero("max");
    let counts = kernel(PAGE, 0);
    assert_eq!((counts.ready.0, counts.zeroing.0), (PAGES, 0), "{counts:?}");
    let loan = daemon.lend(PAGE, PAGES);
    assert_eq!(loan.ready_bytes(), PAGE.times(PAGES));
    assert_zero(&loan.map_alone().expect("a mapping"));
}
