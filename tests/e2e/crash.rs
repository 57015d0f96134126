// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crashes by real SIGKILLs: of the daemon at seeded random instants, of workers, of borrowers
//! while the daemon restarts.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use units::{JobId, LeaseId, PageSize, Pages};

use client::{Client, LendRequest};
use prezero_tests::MapAlone as _;
use prezero_tests::memory::{assert_soiled, assert_zero, first_dirty, soil};
use prezero_tests::{Daemon, Page};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::child::{alone, fork};

// Promise P10 (crashes): A restarted daemon honours live leases and keeps ready blocks.
#[test]
fn a_borrower_outlives_the_daemon_and_its_content_stays_its_own() {
    let _alone = alone();
    for page in Page::ALL {
        let Some(mut daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
        daemon.zero("max");
        let loan = daemon.lend(page, 1);
        let memory = loan.map_alone().expect("a mapping");
        soil(&memory, 0x42);
        daemon.kill();
        daemon.launch();
        let pool = daemon.pool();
        assert_eq!(
            (pool.lent_pages, pool.ready_pages),
            (Pages(1), Pages(1)),
            "live lease and ready block"
        );
        let other = daemon.lend(page, 1);
        assert_zero(&other.map_alone().expect("a mapping"));
        assert_soiled(&memory, 0x42);
        drop((memory, loan));
        daemon.wait_for("returned", |p| p.lent_pages == Pages(1));
    }
}

// Promise P36 (crashes): Numbers of blocks, leases and jobs never come again, restarts included: a
// number of before means nothing to the next daemon.
#[test]
fn block_lease_and_job_numbers_are_not_reused_after_a_restart() {
    let page = Page::Mib2;
    let Some(mut daemon) = Daemon::start(page, 2, &page.pool("max = 2")) else { return };
    let mut last = (0, 0, 0);
    let mut stale = None;
    for start in 0..3 {
        daemon.zero("1");
        let loan = daemon.lend(page, 1);
        let lease = loan.id();
        let (_, blocks) = loan.into_fds();
        let block = number_of_block(&blocks[0]);
        drop(blocks);
        let mut client = daemon.client();
        let job = worker::take_zeroing(&mut client, &wire::TakeZeroing::default())
            .expect("something to zero");
        let (block_before, lease_before, job_before) = last;
        assert!(
            block > block_before && lease > LeaseId(lease_before) && job.id() > JobId(job_before),
            "start {start}: block {block}, lease {lease} and job {} after {last:?}",
            job.id()
        );
        last = (block, lease.0, job.id().0);
        if let Some(stale) = stale.replace(job.id()) {
            let report = client.finish_zeroing(stale, units::Pages(1));
            let unknown = wire::Error::NoSuchJob { job: stale };
            assert!(
                matches!(&report, Err(client::Error::Refused(error)) if *error == unknown),
                "a job of a daemon that is gone: {report:?}"
            );
        }
        drop(job);
        daemon.wait_for("nobody's", |p| {
            p.lent_pages + p.draining_pages + p.zeroing_pages == Pages(0)
        });
        // All that would show a number is gone.
        client.release(None, None, None).expect("root may");
        daemon.kill();
        daemon.launch();
        assert_eq!(daemon.pool().blocks, 0);
    }
}

/// Of a lent file's name: `.../lent/b17-n0-p1-.../pages`.
fn number_of_block(file: &std::os::fd::OwnedFd) -> u64 {
    use std::os::fd::AsRawFd;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("open");
    let name = path.parent().and_then(|block| block.file_name()).expect("a block's directory");
    let name = name.to_str().and_then(|name| name.strip_prefix('b')).expect("a block's name");
    name.split('-').next().and_then(|number| number.parse().ok()).expect("a block's number")
}

// Promise P1.
#[test]
fn a_borrower_killed_while_the_daemon_is_down_leaves_zeros() {
    let _alone = alone();
    for page in Page::ALL {
        for recycle in ["fresh", "in-place"] {
            let pool = page.pool(&format!("max = 1\nrecycle = \"{recycle}\""));
            let Some(mut daemon) = Daemon::start(page, 1, &pool) else { return };
            daemon.zero("max");
            let borrower = fork(|ready| {
                let loan = daemon.lend(page, 1);
                soil(&loan.map_alone().expect("a mapping"), 0xEE);
                ready.signal();
                ready.hold()
            });
            borrower.wait_ready();
            daemon.kill();
            borrower.kill();
            daemon.launch();
            daemon.wait_for("zeroable again", |p| p.zeroable_pages == Pages(1));
            daemon.zero("max");
            let loan = daemon.lend(page, 1);
            assert_eq!(loan.ready_bytes(), page.times(1));
            assert_zero(&loan.map_alone().expect("a mapping"));
        }
    }
}

// Promise P11 (crashes): A killed worker loses only the block in its hands, and no page.
#[test]
fn a_worker_killed_in_the_middle_of_a_block_loses_no_page() {
    for recycle in ["fresh", "in-place"] {
        let page = Page::Mib2;
        let pool = page.pool(&format!("pages_per_block = 512\nmax = 512\nrecycle = \"{recycle}\""));
        let Some(daemon) = Daemon::start(page, 512, &pool) else { return };
        if recycle == "in-place" {
            daemon.zero("max");
            soil(&daemon.lend(page, 512).map_alone().expect("a mapping"), 0x99);
            daemon.wait_for("dirty in place", |p| p.zeroable_pages == Pages(512) && p.blocks == 1);
        }
        let mut worker = daemon
            .command(&["zero", "max", "-j", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a worker");
        daemon.wait_for("being zeroed", |p| p.zeroing_pages == Pages(512));
        worker.kill().expect("our own child");
        worker.wait().expect("our own child");
        daemon.wait_for("zeroable again", |p| {
            p.zeroing_pages == Pages(0) && p.zeroable_pages == Pages(512)
        });
        assert_eq!(daemon.status().counters.lost_workers, 1);
        daemon.zero("max");
        assert_eq!(daemon.pool().ready_pages, Pages(512));
        assert_zero(&daemon.lend(page, 512).map_alone().expect("a mapping"));
    }
}

// Promise P18 (work): An interrupted worker ends within one page (allocating) or chunk (in place),
// and its work so far is kept.
#[test]
fn an_interrupted_worker_keeps_what_it_has_done() {
    let page = Page::Mib2;
    let pool = page.pool("pages_per_block = 1024\nmax = 1024\nrecycle = \"fresh\"");
    let Some(daemon) = Daemon::start(page, 1024, &pool) else { return };
    // One thread goes from page to page; several leave gaps where they stop.
    for threads in ["1", "4"] {
        let pool = interrupted(&daemon, page, threads);
        assert_eq!((pool.zeroing_pages, pool.blocks), (Pages(0), 1));
        assert!(pool.zeroable_pages < Pages(1024), "work so far is kept: {pool:?}");
        assert!(daemon.kernel_free(page) < 1024, "{threads} threads: all of it was given back");
        // The unfinished rest is free and unpromised.
        assert_eq!(pool.zeroable_pages, Pages(daemon.kernel_free(page)), "{threads} threads");
        daemon.zero("max");
        let after = daemon.pool();
        assert_eq!(after.ready_pages, Pages(1024), "{threads} threads: {pool:?}, then {after:?}");
        assert_zero(&daemon.lend(page, 1024).map_alone().expect("a mapping"));
        daemon.wait_for("free again", |p| p.zeroable_pages == Pages(1024) && p.blocks == 0);
    }
}

/// The pool after a worker was interrupted in the midst of its only block.
fn interrupted(daemon: &Daemon, page: Page, threads: &str) -> wire::PoolStatus {
    for _ in 0..20 {
        let mut worker = daemon
            .command(&["zero", "max", "-j", threads])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a worker");
        daemon.wait_for("some of it", |_| daemon.kernel_free(page) < 1000);
        let pid = nix::unistd::Pid::from_raw(i32::try_from(worker.id()).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("our own child");
        let status = worker.wait().expect("our own child");
        let pool = daemon.pool();
        if pool.ready_pages < Pages(1024) {
            assert_eq!(status.code(), Some(130), "an interrupted command says so");
            return pool;
        }
        // It was faster than the signal, which may be once, not always.
        daemon.client().release(None, None, None).expect("everything back");
        daemon.wait_for("free again", |p| p.zeroable_pages == Pages(1024));
    }
    panic!("no worker could be interrupted");
}

// Promise P97.
#[test]
fn blocks_unknown_to_the_daemon_are_reported() {
    let page = Page::Mib2;
    let Some(mut daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
    daemon.zero("max");
    let loan = daemon.lend(page, 1);
    assert_eq!(daemon.status().unknown_files, 0, "one is ready, one is lent");
    let stray = daemon.run_dir().join("pages-2048kB/lent/b7-n0-p1-l7-i0-u0-g1");
    std::fs::create_dir(&stray).expect("root may");
    std::fs::write(stray.join("pages"), "").expect("root may");
    assert_eq!(daemon.status().unknown_files, 1);
    for verb in ["status", "doctor"] {
        let output = daemon.command(&[verb]).output().expect("prezero runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("unknown blocks on the daemon's mounts: 1"), "{verb}:\n{text}");
    }
    daemon.kill();
    daemon.launch();
    assert!(!stray.exists(), "the start ends a loan that nobody holds");
    assert_eq!(daemon.status().unknown_files, 0);
    drop(loan);
}

/// How many times the daemon is killed, unless `PREZERO_TEST_KILLS` says so (fewer under
/// emulation). The instants are random within a run, the run is seeded.
const KILLS: u64 = 200;

/// The longest life of a daemon in milliseconds, unless `PREZERO_TEST_LIFE_MS` says so (more under
/// emulation, where little happens in so short a time).
const LIFE_MS: u64 = 30;

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// One borrower of the storm: borrows, looks, soils, returns, again and again, as the daemon comes
/// and goes. Returns how many loans it had.
fn borrow_in_the_storm(daemon: &Daemon, page: Page, seed: u64, stop: &AtomicBool) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let mut loans = 0;
    while !stop.load(Ordering::Relaxed) {
        let pages = random.random_range(1..=3);
        let mut request = LendRequest::new(page.times(pages));
        request.single = random.random_bool(0.5);
        if random.random_bool(0.3) {
            request.owner = Some("storm".parse().expect("a good name"));
            request.keep = Some(Duration::from_secs(random.random_range(0..2)));
        }
        let Ok(loan) = Client::connect(daemon.socket()).and_then(|mut c| c.lend(&request)) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        // An unbacked part may be short of pages while another borrower's are on their way back.
        let Ok(memory) = loan.map_alone() else { continue };
        if !loan.is_kept() {
            let mine = u64::try_from(memory.len()).expect("64 bit").min(loan.ready_bytes().0);
            let dirty = first_dirty(&memory).filter(|at| (*at as u64) < mine);
            assert_eq!(dirty, None, "a ready byte is not zero after a crash");
        }
        if loan.ready_bytes() == loan.bytes() {
            soil(&memory, random.random_range(1..=255));
        }
        loans += 1;
        std::thread::sleep(Duration::from_micros(random.random_range(0..3000)));
    }
    loans
}

// Promise P9 (crashes): A daemon killed at any instant loses and leaks no page.
#[test]
fn a_daemon_killed_at_random_instants_loses_and_leaks_no_page() {
    let page = Page::Mib2;
    let recycle = ["fresh", "in-place"];
    let seed = number_from("PREZERO_TEST_SEED").unwrap_or(1);
    eprintln!("seed {seed}; set PREZERO_TEST_SEED to repeat another run");
    let life_ms = number_from("PREZERO_TEST_LIFE_MS").unwrap_or(LIFE_MS);
    let mut random = StdRng::seed_from_u64(seed);
    for recycle in recycle {
        let pool = page.pool(&format!(
            "pages_per_block = 2\nready_low = 8\nready_high = 16\nrecycle = \"{recycle}\""
        ));
        let Some(mut daemon) = Daemon::start(page, 24, &pool) else { return };
        let (stop, loans) = (AtomicBool::new(false), AtomicU64::new(0));
        let kills = number_from("PREZERO_TEST_KILLS").unwrap_or(KILLS) / 2;
        for kill in 0..kills {
            // A borrower that is in the middle of something when the daemon dies.
            let life = Duration::from_micros(random.random_range(200..life_ms * 1000));
            stop.store(false, Ordering::Relaxed);
            std::thread::scope(|scope| {
                let born = Instant::now();
                for borrower in 0..2 {
                    let (daemon, stop, loans) = (&daemon, &stop, &loans);
                    let seed = seed ^ (kill << 8) ^ borrower;
                    scope.spawn(move || {
                        let had = borrow_in_the_storm(daemon, page, seed, stop);
                        loans.fetch_add(had, Ordering::Relaxed);
                    });
                }
                std::thread::sleep(life.saturating_sub(born.elapsed()));
                let pid = i32::try_from(daemon.pid()).expect("a pid");
                nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                )
                .expect("our own child");
                stop.store(true, Ordering::Relaxed);
            });
            daemon.kill();
            // Half of the daemons are killed again while they take over.
            daemon.spawn();
            if random.random_bool(0.5) {
                std::thread::sleep(Duration::from_micros(random.random_range(0..8_000)));
            } else {
                daemon.wait_until_up();
            }
        }
        daemon.kill();
        daemon.launch();
        assert!(loans.load(Ordering::Relaxed) > kills, "the storm borrowed: {loans:?}");
        daemon.wait_for("quiet", |p| {
            p.lent_pages + p.draining_pages + p.kept_pages + p.zeroing_pages == Pages(0)
        });
        let change = wire::PoolChange {
            page_size: PageSize::new(page.size().bytes()).expect("a page size"),
            pages_per_block: Pages(2),
            ready_low: Some(Pages(0)),
            ready_high: Some(Pages(0)),
            ..Default::default()
        };
        daemon.client().configure(change).expect("no more background zeroing");
        daemon.wait_for("all zeroing ended", |p| p.zeroing_pages == Pages(0));
        daemon.client().release(None, None, None).expect("everything back");
        daemon.wait_for("empty", |p| p.blocks == 0);
        assert_eq!(daemon.kernel_free(page), 24, "every page is back in the kernel's pool");
    }
}
