// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Borrowers that die, hang, fork and cheat read only their own bytes.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use prezero_tests::MapAlone as _;
use prezero_tests::memory::{assert_soiled, assert_zero, soil};
use prezero_tests::user::NO_USER;
use prezero_tests::{Daemon, Page};
use rustix::fs::{Mode, OFlags};
use testkit::child::{alone, fork};
use testkit::punch;
use units::Pages;
use worker::job::Task;

/// Both ways of recycling, over both page sizes.
fn variants() -> impl Iterator<Item = (Page, &'static str)> {
    Page::ALL.into_iter().flat_map(|page| ["fresh", "in-place"].map(|recycle| (page, recycle)))
}

/// A pool of one block of one page, so that the next borrower must get the same memory.
fn one_block(page: Page, recycle: &str) -> Option<Daemon> {
    let daemon = Daemon::start(page, 1, &page.pool(&format!("max = 1\nrecycle = \"{recycle}\"")))?;
    daemon.zero("max");
    Some(daemon)
}

fn next_borrower_finds_zeros(daemon: &Daemon, page: Page) {
    daemon.wait_for("zeroable again", |p| p.zeroable_pages == Pages(1));
    daemon.zero("max");
    let loan = daemon.lend(page, 1);
    assert_eq!(loan.ready_bytes(), page.times(1));
    assert_zero(&loan.map_alone().expect("a mapping"));
}

// Promise P1 (isolation): A byte that one client wrote is never readable by another, however the
// first one ended.
#[test]
fn a_borrower_killed_while_it_holds_its_block_leaves_zeros() {
    let _alone = alone();
    for (page, recycle) in variants() {
        let Some(daemon) = one_block(page, recycle) else { return };
        let borrower = fork(|ready| {
            let loan = daemon.lend(page, 1);
            let memory = loan.map_alone().expect("a mapping");
            soil(&memory, 0xEE);
            ready.signal();
            ready.hold()
        });
        borrower.wait_ready();
        assert_eq!(daemon.pool().lent_pages, Pages(1));
        borrower.kill();
        next_borrower_finds_zeros(&daemon, page);
    }
}

// Promise P2 (isolation): A returned block is not used again while any process still maps it or
// has it open.
#[test]
fn block_mapped_by_a_child_drains_until_the_child_exits() {
    let _alone = alone();
    for (page, recycle) in variants() {
        let Some(daemon) = one_block(page, recycle) else { return };
        let loan = daemon.lend(page, 1);
        let memory = loan.map_alone().expect("a mapping");
        soil(&memory, 0xDD);
        let (lease, mut blocks) = loan.into_fds();
        let block = blocks.pop().expect("one block");
        // Everything moves into the child, where only the mapping stays open.
        let heir = fork(move |ready| {
            drop((lease, block));
            let mut byte = [0];
            memory.read(0, &mut byte);
            assert_eq!(byte[0], 0xDD);
            ready.signal();
            ready.hold()
        });
        heir.wait_ready();
        daemon.wait_for("draining", |p| p.draining_pages == Pages(1));
        std::thread::sleep(Duration::from_millis(300));
        let pool = daemon.pool();
        assert_eq!((pool.draining_pages, pool.ready_pages), (Pages(1), Pages(0)), "{pool:?}");
        heir.kill();
        next_borrower_finds_zeros(&daemon, page);
    }
}

// Promise P2.
#[test]
fn a_mapping_alone_keeps_a_returned_block_out_of_use() {
    for (page, recycle) in variants() {
        let Some(daemon) = one_block(page, recycle) else { return };
        let loan = daemon.lend(page, 1);
        let memory = loan.map_alone().expect("a mapping");
        soil(&memory, 0xCC);
        // Lease and descriptors are gone, the mapping stays.
        drop(loan);
        daemon.wait_for("draining", |p| p.draining_pages == Pages(1));
        std::thread::sleep(Duration::from_millis(300));
        let pool = daemon.pool();
        assert_eq!((pool.draining_pages, pool.ready_pages), (Pages(1), Pages(0)));
        assert_soiled(&memory, 0xCC);
        soil(&memory, 0xCD);
        drop(memory);
        next_borrower_finds_zeros(&daemon, page);
    }
}

// Promise P2.
#[test]
fn a_descriptor_alone_keeps_a_returned_block_out_of_use() {
    for (page, recycle) in variants() {
        let Some(daemon) = one_block(page, recycle) else { return };
        let (lease, blocks) = daemon.lend(page, 1).into_fds();
        drop(lease);
        daemon.wait_for("draining", |p| p.draining_pages == Pages(1));
        drop(blocks);
        next_borrower_finds_zeros(&daemon, page);
    }
}

/// Runs as user and group `nobody` from here on.
fn become_other_user() {
    nix::unistd::setgroups(&[]).expect("root");
    nix::unistd::setgid(NO_USER.into()).expect("root");
    nix::unistd::setuid(NO_USER.into()).expect("root");
}

fn path_of(fd: &dyn AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// References that the lease proof and the daemon miss.
fn hidden(fd: &dyn AsRawFd) -> OwnedFd {
    rustix::fs::open(path_of(fd), OFlags::PATH, Mode::empty()).expect("a path to the block")
}

/// Tries to open a block for `time` by a descriptor kept over its return, changing its mode as its
/// owner may. Returns whether it had a page of it after `is_gone` said that access has ended: an
/// earlier open is of its own block, which is draining until it is closed.
fn reached(kept: &OwnedFd, time: Duration, is_gone: &dyn Fn() -> bool) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let gone = is_gone();
        rustix::fs::chmod(path_of(kept), Mode::from_raw_mode(0o666)).ok();
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        if let Ok(fd) = rustix::fs::open(path_of(kept), flags, Mode::empty())
            // The old file of a fresh pool is empty now.
            && linux::BlockFile::from(fd).allocated_bytes().is_ok_and(|bytes| bytes > 0)
            && gone
        {
            return true;
        }
    }
    false
}

// Promise P3 (isolation): Neither a former borrower nor a worker reaches a block through an
// `O_PATH` descriptor that it kept.
#[test]
fn a_path_only_descriptor_opens_nothing_after_the_return() {
    let _alone = alone();
    let page = Page::Mib2;
    for recycle in ["fresh", "in-place"] {
        let pool = page.pool(&format!("max = 1\nrecycle = \"{recycle}\""));
        let config = format!("lend_group = \"{NO_USER}\"\n{pool}");
        let Some(daemon) = Daemon::start(page, 1, &config) else { return };
        daemon.zero("max");
        let sign = tempfile::tempdir().expect("a directory");
        let sign = sign.path().join("gone");
        let cheat = fork(|ready| {
            become_other_user();
            let (lease, blocks) = daemon.lend(page, 1).into_fds();
            let kept = hidden(&blocks[0]);
            drop((lease, blocks));
            ready.signal();
            // From the very moment of the return on, until it is killed.
            while !reached(&kept, Duration::from_secs(1), &|| sign.exists()) {}
            1
        });
        cheat.wait_ready();
        daemon.wait_for("zeroable again", |p| p.zeroable_pages == Pages(1));
        std::fs::write(&sign, "").expect("a sign");
        daemon.zero("max");
        let loan = daemon.lend(page, 1);
        let memory = loan.map_alone().expect("a mapping");
        assert_zero(&memory);
        soil(&memory, 0x77);
        std::thread::sleep(Duration::from_millis(500));
        assert_soiled(&memory, 0x77);
        assert!(cheat.is_running(), "{recycle}: the former borrower reached the block");
        cheat.kill();
    }
}

// Promise P95.
#[test]
fn repeated_mode_changes_win_no_access_in_place() {
    let _alone = alone();
    let page = Page::Mib2;
    let pool = page.pool("max = 1\nrecycle = \"in-place\"");
    let config = format!("lend_group = \"{NO_USER}\"\n{pool}");
    let Some(daemon) = Daemon::start(page, 1, &config) else { return };
    for round in 0..10 {
        daemon.zero("max");
        let cheat = fork(|ready| {
            become_other_user();
            let (lease, blocks) = daemon.lend(page, 1).into_fds();
            let kept = hidden(&blocks[0]);
            let path = path_of(&kept);
            ready.signal();
            drop((lease, blocks));
            // Changes the mode all the time, so that one change falls between the daemon's two.
            let end = Instant::now() + Duration::from_millis(50);
            while Instant::now() < end {
                rustix::fs::chmod(&path, Mode::from_raw_mode(0o666)).ok();
            }
            i32::from(reached(&kept, Duration::from_millis(20), &|| true))
        });
        cheat.wait_ready();
        assert_eq!(cheat.wait(), Some(0), "round {round}: the former borrower reached the block");
        daemon.wait_for("zeroable again", |p| p.zeroable_pages == Pages(1));
    }
}

// Promise P95 (isolation): A lent file belongs to its borrower alone (owner, mode 0600), and at
// all other times to the daemon alone, for every change of its mode meanwhile.
#[test]
fn a_lent_file_is_its_borrowers_alone() {
    use std::os::unix::fs::MetadataExt;

    let _alone = alone();
    let page = Page::Mib2;
    for recycle in ["fresh", "in-place"] {
        let pool = page.pool(&format!("max = 2\nrecycle = \"{recycle}\""));
        let config = format!("lend_group = \"{NO_USER}\"\n{pool}");
        let Some(daemon) = Daemon::start(page, 2, &config) else { return };
        // One block ready and one an unbacked part.
        daemon.zero("1");
        let access = |loan: client::Loan| {
            let (_lease, blocks) = loan.into_fds();
            let file = std::fs::File::from(blocks.into_iter().next().expect("a block"));
            let found = file.metadata().expect("an open file");
            (found.uid(), found.gid(), found.mode() & 0o7777)
        };
        let borrower = fork(|_| {
            become_other_user();
            let expected = (NO_USER, NO_USER, 0o600);
            let both = [daemon.lend(page, 1), daemon.lend(page, 1)];
            i32::from(both.into_iter().any(|loan| access(loan) != expected))
        });
        assert_eq!(borrower.wait(), Some(0), "{recycle}: for nobody else to open");
        daemon.wait_for("zeroable again", |p| p.zeroable_pages == Pages(2));
    }
}

// Promise P3.
#[test]
fn workers_path_descriptor_opens_nothing_after_its_report() {
    let _alone = alone();
    let page = Page::Mib2;
    let config =
        format!("zero_group = \"{NO_USER}\"\ntrust_zero_group = true\n{}", page.pool("max = 1"));
    let Some(daemon) = Daemon::start(page, 1, &config) else { return };
    let worker = fork(|ready| {
        become_other_user();
        let mut client = daemon.client();
        let job =
            worker::take_zeroing(&mut client, &wire::TakeZeroing::default()).expect("trusted");
        let kept = hidden(&job.file().expect("a block"));
        let early = rustix::fs::open(path_of(&kept), OFlags::RDWR, Mode::empty()).is_ok();
        let Task::Allocate(task) = job.begin().expect("a job") else { return 2 };
        let done = task.run(&mut |_| std::ops::ControlFlow::Continue(())).expect("a page");
        let finished = done.report(&mut client).expect("a report");
        assert_eq!(finished.state, wire::StateName::Ready);
        ready.signal();
        i32::from(early || reached(&kept, Duration::from_secs(1), &|| true))
    });
    worker.wait_ready();
    let loan = daemon.lend(page, 1);
    assert_eq!(loan.ready_bytes(), page.times(1));
    assert_eq!(worker.wait(), Some(0), "a worker has its descriptor and nothing else");
}

// Promise P37 (crashes): A removed block's pages are free at once, also while an `O_PATH`
// descriptor of its file exists.
#[test]
fn returned_page_is_free_despite_path_descriptors_of_its_file() {
    let page = Page::Mib2;
    let Some(daemon) = one_block(page, "fresh") else { return };
    let (lease, blocks) = daemon.lend(page, 1).into_fds();
    // It keeps the file's inode, and the inode would keep the page.
    let kept = hidden(&blocks[0]);
    drop((lease, blocks));
    daemon.wait_for("zeroable again", |p| p.zeroable_pages == Pages(1));
    assert_eq!(daemon.kernel_free(page), 1);
    let file = rustix::fs::fstat(&kept).expect("a removed file");
    assert_eq!((file.st_nlink, file.st_size, file.st_blocks), (0, 0, 0));
}

// Promise P7.
#[test]
fn a_report_of_pages_without_memory_makes_nothing_ready() {
    let page = Page::Mib2;
    let pool = page.pool("pages_per_block = 2\nmax = 2");
    for allocated in [0, 1] {
        let Some(daemon) = Daemon::start(page, 2, &pool) else { return };
        let mut client = daemon.client();
        let job = worker::take_zeroing(&mut client, &wire::TakeZeroing::default()).expect("root");
        let number = job.id();
        let Task::Allocate(task) = job.begin().expect("a job") else { panic!("new") };
        // Each lets go of the file, and keeps the job, as one does that reports.
        let done = if allocated == 0 {
            let shared = task.share().expect("a mapping");
            shared.finish(units::Pages(0)).expect("unmapped")
        } else {
            task.run(&mut |_| std::ops::ControlFlow::Break(())).expect("a page")
        };
        let finished = client.finish_zeroing(number, units::Pages(2)).expect("a report");
        assert_eq!(
            finished.state,
            wire::StateName::Zeroable,
            "with memory for {allocated} of 2 pages"
        );
        drop(done);
        assert_eq!(daemon.pool().ready_pages, Pages(0));
    }
}

// Promise P32 (socket): A lease (fcntl(2)) that a borrower takes on its file holds up neither the
// daemon nor its start.
#[test]
fn lease_on_a_lent_file_blocks_nothing() {
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!("lend_group = \"{NO_USER}\"\n{}", page.pool("max = 2"));
    let Some(mut daemon) = Daemon::start(page, 2, &config) else { return };
    daemon.zero("max");
    let borrower = fork(|ready| {
        become_other_user();
        let loan = daemon.lend_to("db", Duration::from_secs(60), page, 1);
        let (lease, blocks) = loan.into_fds();
        testkit::hold_lease(&blocks[0]).expect("its own file, open once");
        drop(lease);
        ready.signal();
        ready.hold()
    });
    borrower.wait_ready();
    let soon = |what: &str, begun: Instant| {
        // It would be lease-break-time: 45 s.
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}: {:?}", begun.elapsed());
    };
    let begun = Instant::now();
    daemon.wait_for("draining", |p| p.draining_pages == Pages(1));
    drop(daemon.lend(page, 1));
    soon("a loan", begun);
    daemon.kill();
    let begun = Instant::now();
    daemon.launch();
    daemon.wait_for("draining", |p| p.draining_pages == Pages(1));
    soon("a start", begun);
    borrower.kill();
    daemon.wait_for("kept or free", |p| p.draining_pages == Pages(0));
}

// Promise P8 (zero claim): A block that is recycled in place comes back zero.
#[test]
fn in_place_blocks_stay_files_and_come_back_zero_each_time() {
    for page in Page::ALL {
        let Some(daemon) = one_block(page, "in-place") else { return };
        for round in 1..=4_u8 {
            let loan = daemon.lend(page, 1);
            assert_eq!(loan.ready_bytes(), page.times(1));
            let memory = loan.map_alone().expect("a mapping");
            assert_zero(&memory);
            soil(&memory, round);
            drop((memory, loan));
            daemon.wait_for("dirty in place", |p| p.zeroable_pages == Pages(1) && p.blocks == 1);
            assert_eq!(daemon.kernel_free(page), 0, "the block keeps its page");
            daemon.zero("max");
        }
    }
}

#[test]
fn the_lease_descriptor_alone_keeps_the_loan() {
    let page = Page::Mib2;
    let Some(daemon) = one_block(page, "fresh") else { return };
    let (lease, blocks) = daemon.lend(page, 1).into_fds();
    let copy = lease.as_ref().expect("a lease").try_clone().expect("a copy");
    drop((lease, blocks));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(daemon.pool().lent_pages, Pages(1));
    drop(copy);
    daemon.wait_for("returned", |p| p.lent_pages == Pages(0));
}

// Promise P28 (isolation): A borrower that cuts or punches its file costs other users no page, and
// no worker its life.
#[test]
fn borrower_that_cuts_or_punches_its_file_costs_others_nothing() {
    let page = Page::Mib2;
    let pool = page.pool("pages_per_block = 4\nmax = 4\nrecycle = \"in-place\"");
    let Some(daemon) = Daemon::start(page, 4, &pool) else { return };
    let cuts: [fn(&linux::BlockFile); 3] = [
        |file| punch(file, 0..2 << 20).expect("our own file"),
        |file| file.set_len(2 << 20).expect("our own file"),
        |file| file.set_len(64 << 20).expect("our own file"),
    ];
    for cut in cuts {
        daemon.zero("max");
        assert_eq!(daemon.pool().ready_pages, Pages(4));
        let (lease, mut blocks) = daemon.lend(page, 4).into_fds();
        let file = linux::BlockFile::from(blocks.pop().expect("one block"));
        cut(&file);
        drop((file, lease));
        daemon.wait_for("zeroable again", |p| p.zeroable_pages == Pages(4));
    }
    daemon.zero("max");
    assert_zero(&daemon.lend(page, 4).map_alone().expect("a mapping"));
}

// Promise P33 (socket): A borrower that holds its file's locks delays its own returns, which
// drain, and no other user.
#[test]
fn borrower_that_locks_its_file_delays_no_other_user() {
    const PAGES: u64 = 256;
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!("lend_group = \"{NO_USER}\"\n{}", page.pool("max = 2"));
    let Some(daemon) = Daemon::start(page, PAGES, &config) else { return };
    daemon.zero("max");
    let one_cpu = || linux::sched::set_affinity(&"0".parse().expect("a CPU")).expect("CPU 0");
    let hogs = [(); 3].map(|()| {
        fork(|_| {
            one_cpu();
            loop {
                std::hint::spin_loop();
            }
        })
    });
    let holder = fork(|ready| {
        one_cpu();
        become_other_user();
        let (lease, mut blocks) = daemon.lend(page, 1).into_fds();
        let file = linux::BlockFile::from(blocks.pop().expect("a block"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                drop(lease);
                ready.signal();
            });
            // `fallocate` holds the inode's lock, and an idle thread hardly gets on beside others.
            linux::sched::set_idle().expect("everybody may be idle");
            file.allocate(0, (PAGES - 8) * page.size().bytes()).expect("free pages");
        });
        0
    });
    holder.wait_ready();
    let begun = Instant::now();
    daemon.wait_for("draining", |p| p.draining_pages == Pages(1));
    // Held until the end: returned, it would are draining for a moment itself.
    let other = daemon.lend(page, 1);
    assert_eq!(other.ready_bytes(), page.times(1));
    let took = begun.elapsed();
    assert!(holder.is_running(), "the lock was to be held longer than {took:?}");
    assert!(took < Duration::from_secs(5), "others waited {took:?}");
    assert_eq!(daemon.pool().draining_pages, Pages(1), "what is held up shows");
    drop((hogs, other));
    assert_eq!(holder.wait(), Some(0));
    daemon.wait_for("returned", |p| p.draining_pages == Pages(0));
}
