// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Things that a borrower leaves with a returned file, invisible as descriptors, mappings or pins:
//! pages behind its end, pages that have left it, watches of its inode.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use client::{Hold, LendRequest};
use linux::BlockFile;
use linux::Mapping;
use prezero_tests::Page;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use testkit::child::fork;
use testkit::punch;
use units::{PageSize, Pages};

use crate::attack::{Attack, POOL, WORKERS};
use crate::raw;
use crate::scene::{Got, Scene, path_of, path_only};
use crate::socket::{copies, watchers};
use crate::stage::Stage;
use crate::users::User;
use crate::victim::{SERVING_THREAD, Victim};

const PAGE: u64 = 2 << 20;
/// Pages that an attacker may hold.
const QUOTA: u64 = 2;
/// More loans than there are pages.
const LOANS: usize = 40;

/// The remains of a loan.
type Hide = fn(BlockFile) -> Vec<OwnedFd>;

fn behind_the_end(file: &BlockFile) {
    // It fails without free pages: the victims check that.
    fallocate(file, FallocateFlags::KEEP_SIZE, PAGE, PAGE).ok();
}

fn pin(file: &BlockFile) -> Vec<OwnedFd> {
    let memory = Mapping::map(file, PAGE, Page::Mib2.size()).expect("lent memory");
    memory.fill(0..4096, 0xA7);
    let (out, into) = rustix::pipe::pipe().expect("a pipe");
    raw::pin_in_pipe(&into, &memory).expect("its own memory");
    vec![out, into]
}

/// A name, and a page behind the end.
fn by_name(file: BlockFile) -> Vec<OwnedFd> {
    behind_the_end(&file);
    vec![path_only(&file.as_fd())]
}

/// A pin, and a page behind the end.
fn by_pin(file: BlockFile) -> Vec<OwnedFd> {
    let pinned = pin(&file);
    behind_the_end(&file);
    pinned
}

/// A pin of a page that has left the file.
fn by_pin_outside(file: BlockFile) -> Vec<OwnedFd> {
    pin_and_punch(&file)
}

/// The same with another page in its place.
fn by_pin_replaced(file: BlockFile) -> Vec<OwnedFd> {
    let pinned = pin_and_punch(&file);
    file.allocate(0, PAGE).ok();
    pinned
}

fn pin_and_punch(file: &BlockFile) -> Vec<OwnedFd> {
    let pinned = pin(file);
    punch(file, 0..PAGE).expect("its own file");
    pinned
}

/// Borrows, hides and returns a page, again and again.
fn hoard(scene: &mut Scene<'_>, hide: Hide, keeps_pages: bool) -> Got {
    let (mut kept, mut loans) = (Vec::new(), 0);
    for _ in 0..LOANS {
        let request = LendRequest { single: true, ..LendRequest::new(Page::Mib2.times(1)) };
        let begun = Instant::now();
        // What it returned is looked at a moment later.
        let lent = loop {
            match scene.client().lend(&request) {
                Ok(loan) => break Some(loan),
                Err(_) if begun.elapsed() > Duration::from_millis(60) => break None,
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        // A hole's pages are the borrower's own, as those of `mmap(MAP_HUGETLB)`.
        let Some(loan) = lent.filter(|loan| loan.ready_bytes() == loan.bytes()) else { continue };
        let (lease, mut blocks) = loan.into_fds();
        kept.extend(hide(BlockFile::from(blocks.pop().expect("one block"))));
        loans += 1;
        drop(lease);
    }
    scene.set_up();
    scene.wait();
    drop(kept);
    if keeps_pages && loans > QUOTA {
        return Err(format!("{loans} pages are held with a quota of {QUOTA}"));
    }
    Ok(if keeps_pages { "QuotaExceeded beyond it" } else { "nothing" }.to_owned())
}

/// Pages outside of the kernel's free ones and of the daemon's states.
fn nobodys(daemon: &prezero_tests::Daemon) -> Result<Duration, String> {
    // Four times in a row: a page on its way from one to the other is in neither for a moment.
    let mut missed = 0;
    for _ in 0..4 {
        let status = daemon.status();
        let pools = status.pools.iter().filter(|pool| pool.page_size.bytes() == PAGE);
        let known: Pages = pools
            .map(|pool| {
                let free = pool.ready_pages + pool.zeroable_pages + pool.zeroing_pages;
                free + pool.lent_pages + pool.draining_pages + pool.kept_pages
            })
            .sum();
        let kernel = crate::stage::Kernel::now();
        missed = (kernel.total - kernel.free).saturating_sub(known.0);
        if missed <= QUOTA {
            return Ok(Duration::ZERO);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!("{missed} pages in use that are in no state"))
}

// Promise P250 (isolation): A quota counts the pages of a returned file wherever they are, also
// behind its end, and pages that left it while they were pinned, until the kernel has them back.
#[test]
fn pages_outside_of_returned_files_are_no_more_than_the_quota() {
    let count = Victim { what: "pages in no state", user: User::Root, act: nobodys };
    for recycle in ["auto", "fresh"] {
        let quota = format!("quota_of = {{ {} = \"4M\" }}\n", User::Borrower.number());
        let config = format!("{quota}{POOL}recycle = \"{recycle}\"\n{WORKERS}");
        let Some(mut stage) = Stage::set(24, &config) else { return };
        let ways: [(&str, Hide, bool); 4] = [
            ("O_PATH and a page behind the end", by_name, false),
            ("vmsplice and a page behind the end", by_pin, true),
            ("vmsplice of a page that is punched", by_pin_outside, true),
            ("vmsplice of a page that is replaced", by_pin_replaced, true),
        ];
        for (name, hide, keeps_pages) in ways {
            let act = move |scene: &mut Scene<'_>| hoard(scene, hide, keeps_pages);
            Attack::new(format!("{name}, {recycle}"), User::Borrower, act)
                .also(count)
                .run(&mut stage);
        }
    }
}

/// The page behind a file of one page.
const BEHIND: std::ops::Range<usize> = 2 << 20..4 << 20;

/// Writes to a page behind the end of a file of one page. `false` if the kernel refused.
fn write_behind_the_end(file: &BlockFile) -> bool {
    file.set_len(2 * PAGE).expect("its own file");
    let memory = Mapping::map(file, 2 * PAGE, Page::Mib2.size()).expect("lent memory");
    memory.fill(0..1, 0xF0);
    file.set_len(PAGE).expect("its own file");
    behind_the_end(file);
    // A kernel that looks at the length has the writer die by SIGBUS.
    let writer = fork(|_| {
        memory.fill(BEHIND, 0xF0);
        0
    });
    let has_written = writer.wait() == Some(0);
    // As many pages as were lent.
    punch(file, 0..PAGE).expect("its own file");
    has_written
}

fn leave_behind_the_end(scene: &mut Scene<'_>) -> Got {
    let (mut tries, mut written) = (0, 0);
    scene.set_up();
    while !scene.over() || tries == 0 {
        let (lease, file) = scene.borrow_file(|_| {});
        tries += 1;
        written += usize::from(write_behind_the_end(&file));
        drop((lease, file));
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(format!("{written} of {tries} times a page behind the end"))
}

/// A loan of two pages, for which a block of one page is grown.
fn grow(daemon: &prezero_tests::Daemon) -> Result<Duration, String> {
    crate::victim::borrow_pages(daemon, 2)
}

#[test]
fn pages_behind_the_end_never_reach_grown_loans_without_pins() {
    let grown = Victim { what: "Lend of a grown block", user: User::Victim, act: grow };
    let pool = "[[pool]]\npage_size = \"2M\"\nmax = 1\nready_low = 1\nready_high = 1\n";
    let config = format!("{pool}recycle = \"in-place\"\n{WORKERS}");
    let Some(mut stage) = Stage::set(12, &config) else { return };
    // Without types of the kernel there is no probe. The daemon sees so in a mount namespace.
    let hide = "mount --bind /dev/null /sys/kernel/btf/vmlinux && exec \"$0\" \"$@\"";
    stage.daemon.terminate();
    stage.daemon.spawn_as(|command| {
        let mut hidden = std::process::Command::new("unshare");
        hidden.args(["-m", "sh", "-c", hide]).arg(command.get_program()).args(command.get_args());
        hidden.env("RUST_LOG", "debug");
        hidden
    });
    stage.daemon.wait_until_up();
    Attack::new(
        "a page behind the end, in-place without pins",
        User::Borrower,
        leave_behind_the_end,
    )
    .only(grown)
    .run(&mut stage);
}

fn watch(watcher: &OwnedFd, file: &impl AsRawFd) {
    inotify::add_watch(watcher, path_of(file), WatchFlags::ALL_EVENTS).expect("its own file");
}

fn watcher() -> OwnedFd {
    inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("a watcher")
}

/// The number of events, and of those for a removed file; all are read.
fn events(watcher: &OwnedFd) -> (usize, usize) {
    let mut room = [0_u8; 1 << 16];
    let (mut all, mut gone) = (0, 0);
    while let Ok(some @ 1..) = rustix::io::read(watcher, &mut room) {
        // Of files, which are unnamed: a number, a mask, a cookie and a length.
        for event in room[..some].chunks_exact(16) {
            let mask = u32::from_ne_bytes([event[4], event[5], event[6], event[7]]);
            all += 1;
            gone += usize::from(mask & libc::IN_IGNORED != 0);
        }
    }
    (all, gone)
}

/// Watches of returned blocks, for which a hundred thousand wait.
fn watch_returned(scene: &mut Scene<'_>) -> Got {
    let watcher = watcher();
    let copies = copies(&watcher);
    let sleepers = watchers(&copies, 8);
    let loans: Vec<_> = (0..3).map(|_| scene.borrow_file(|_| {})).collect();
    loans.iter().for_each(|(_, file)| watch(&watcher, &file.as_fd()));
    drop(loans);
    // The end of its own loans it may see: each event takes 0.1 s until all are woken.
    let (begun, mut gone) = (Instant::now(), 0);
    while gone < 3 && begun.elapsed() < Duration::from_secs(8) {
        gone += events(&watcher).1;
        std::thread::sleep(Duration::from_millis(1));
    }
    scene.set_up();
    let mut reported = 0;
    while !scene.over() {
        // A read event is reported again.
        reported += events(&watcher).0;
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(sleepers);
    if reported > 0 {
        return Err(format!("{reported} events of others' loans"));
    }
    Ok(format!("{} watchers of nothing", copies.len() * 8))
}

/// Loans that are held by their memory, of blocks for which a hundred thousand wait: the daemon has
/// a description of each, which it closes when the loan has ended.
/// At most `returns` of its loans drain at a time.
fn watch_while_it_borrows(
    scene: &mut Scene<'_>,
    pause: Duration,
    sets: usize,
    returns: usize,
) -> Got {
    let watcher = watcher();
    let copies = copies(&watcher);
    let sleepers = watchers(&copies, sets);
    let (mut loans, mut gone) = (0, 0);
    scene.set_up();
    while !scene.over() || loans == 0 {
        // Its queue rests after each event, and all pages would soon be on their way back.
        if loans - gone >= returns {
            std::thread::sleep(Duration::from_millis(1));
            gone += events(&watcher).1;
            continue;
        }
        let (lease, file) = scene.borrow_file(|request| request.hold = Hold::Memory);
        watch(&watcher, &file.as_fd());
        let memory = Mapping::map(&file, PAGE, Page::Mib2.size()).expect("lent memory");
        drop((lease, file));
        memory.fill(0..1, 0xA7);
        std::thread::sleep(Duration::from_millis(4));
        drop(memory);
        loans += 1;
        gone += events(&watcher).1;
        std::thread::sleep(pause);
    }
    drop(sleepers);
    Ok(format!("its own events, {} watchers", copies.len() * sets))
}

/// The same watchers, woken by closing files that the daemon has never seen: the end of the mapping
/// and of the descriptor are as many events as those of a loan.
fn watch_its_own(scene: &mut Scene<'_>) -> Got {
    let watcher = watcher();
    let copies = copies(&watcher);
    let sleepers = watchers(&copies, 8);
    scene.set_up();
    while !scene.over() {
        let file = memfd_create("watched", MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, PAGE).expect("its own file");
        watch(&watcher, &file.as_fd());
        let memory = Mapping::map(BlockFile::from(file), PAGE, PageSize::KIB_4);
        std::thread::sleep(Duration::from_millis(4));
        drop(memory.expect("its own memory"));
        events(&watcher);
    }
    drop(sleepers);
    Ok(format!("{} watchers of its own", copies.len() * 8))
}

/// Two attacks: as many loans as one process can make, and ten a second, by which each wake-up on
/// the serving thread shows: 240,000 watchers take it 10 ms.
pub(crate) fn watches_of_loans_delay_no_user_more_than_of_any_file(stage: &mut Stage) {
    let name = format!("inotify over loans held by memory, {}", stage.recycle);
    let often = |scene: &mut Scene<'_>| watch_while_it_borrows(scene, Duration::ZERO, 8, 16);
    Attack::new(name, User::Borrower, often)
        .beside(2.0, watch_its_own)
        .windows_of(Duration::from_secs(1))
        .run(stage);
    let name = format!("inotify over ten loans a second, {}", stage.recycle);
    let pause = Duration::from_millis(100);
    let seldom = |scene: &mut Scene<'_>| watch_while_it_borrows(scene, pause, 16, 64);
    let unwatched = |scene: &mut Scene<'_>| watch_while_it_borrows(scene, pause, 0, 64);
    Attack::new(name, User::Borrower, seldom)
        .only(SERVING_THREAD)
        .beside(3.5, unwatched)
        .windows_of(Duration::from_secs(3))
        .run(stage);
}

pub(crate) fn watches_of_blocks_show_no_other_loan_and_delay_no_user(stage: &mut Stage) {
    let name = format!("inotify over the return, {}", stage.recycle);
    Attack::new(name, User::Borrower, watch_returned).run(stage);
}
