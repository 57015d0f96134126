// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a borrower may do to the file it was lent, and how the daemon gets it back.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linux::BlockFile;
use linux::Mapping;
use prezero_tests::Page;
use rustix::fs::Mode;
use testkit::child::fork;
use testkit::punch;

use crate::attack::{Attack, POOL, WORKERS, say};
use crate::raw;
use crate::scene::{Got, Scene, errno, outcome, path_of};
use crate::stage::Stage;
use crate::users::User;
use crate::victim::STATUS;

const PAGE: u64 = 2 << 20;
/// Pages of the blocks that are cut.
const PAGES: u64 = 4;

/// A way to change a file, with its outcome.
type Cut = (&'static str, fn(&BlockFile) -> String);

const CUTS: [Cut; 13] = [
    ("cut to nothing", |f| errno(f.set_len(0))),
    ("cut to a page", |f| errno(f.set_len(PAGE))),
    ("cut and grow", |f| errno(f.set_len(0).and_then(|()| f.set_len(PAGES * PAGE)))),
    ("cut and fill", |f| errno(f.set_len(0).and_then(|()| f.allocate(0, PAGES * PAGE)))),
    ("punch a page", |f| errno(punch(f, 0..PAGE))),
    ("punch all", |f| errno(punch(f, 0..PAGES * PAGE))),
    ("grow by a hole", |f| errno(f.set_len(64 * PAGE))),
    ("grow by a page", |f| errno(f.allocate(PAGES * PAGE, PAGE))),
    ("a length of 2^50", |f| errno(f.set_len(1 << 50))),
    ("map beyond the end", |f| errno(Mapping::map(f, 8 * PAGE, Page::Mib2.size()))),
    ("punch and fill elsewhere", |f| match punch(f, 0..2 * PAGE) {
        Ok(()) => errno(f.allocate(40 * PAGE, 2 * PAGE)),
        failed => errno(failed),
    }),
    ("no mode", |f| outcome(rustix::fs::fchmod(f, Mode::empty()).map_err(Into::into))),
    ("another owner", |f| {
        outcome(rustix::fs::fchown(f, Some(rustix::fs::Uid::from_raw(0)), None).map_err(Into::into))
    }),
];

fn cut_each(scene: &mut Scene<'_>, keep: bool) -> Got {
    scene.set_up();
    let mut round = 0;
    while !scene.over() || round == 0 {
        for (name, cut) in CUTS {
            let (lease, file) = scene.borrow_file(|request| {
                request.bytes = Page::Mib2.times(PAGES);
                if keep {
                    request.owner = Some(name.replace([' ', '^'], "_").parse().expect("a name"));
                    request.keep = Some(Duration::ZERO);
                }
            });
            cut(&file);
            drop((file, lease));
        }
        round += 1;
    }
    Ok(format!("its own file cut in {} ways", CUTS.len()))
}

#[test]
fn cutting_punching_and_growing_costs_others_nothing() {
    for recycle in ["fresh", "in-place"] {
        // One pool of the attacker's shape, one for victims that want a page.
        let config = format!(
            "{POOL}[[pool]]\npage_size = \"2M\"\npages_per_block = {PAGES}\nmax = 8\n\
             ready_high = 8\nrecycle = \"{recycle}\"\n{WORKERS}"
        );
        let Some(mut stage) = Stage::set(48, &config) else { return };
        for keep in [false, true] {
            let kept = if keep { ", kept" } else { "" };
            let name = format!("truncate and punch, {recycle}{kept}");
            let attack = Attack::new(name, User::Borrower, |scene| cut_each(scene, keep));
            attack.run(&mut stage);
        }
    }
}

/// What the kernel refuses even to the borrower.
fn leave_marks(scene: &mut Scene<'_>) -> Got {
    let (_lease, file) = scene.borrow_file(|_| {});
    scene.set_up();
    let mut got = Vec::new();
    let seal = raw::fcntl(&file, libc::F_ADD_SEALS, libc::F_SEAL_WRITE);
    got.push(("F_ADD_SEALS", seal.is_ok(), outcome(seal)));
    let path = std::env::temp_dir().join(format!("prezero-test-link-{}", std::process::id()));
    let flags = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    let link =
        rustix::fs::linkat(rustix::fs::CWD, path_of(&file.as_fd()), rustix::fs::CWD, &path, flags);
    got.push(("linkat", link.is_ok(), outcome(link.map_err(Into::into))));
    let name = "user.prezero";
    let mark = rustix::fs::fsetxattr(&file, name, b"x", rustix::fs::XattrFlags::empty());
    got.push(("setxattr", mark.is_ok(), outcome(mark.map_err(Into::into))));
    scene.wait();
    match got.iter().find(|(_, granted, _)| *granted) {
        Some((what, ..)) => Err(format!("{what} on a lent file was granted")),
        None => {
            let got: Vec<_> =
                got.iter().map(|(what, _, error)| format!("{what}: {error}")).collect();
            Ok(got.join(", "))
        }
    }
}

pub(crate) fn seals_links_and_attributes_are_refused(stage: &mut Stage) {
    Attack::new("seals, linkat, xattrs", User::Borrower, leave_marks).run(stage);
}

/// Files with leases that make every open wait, 45 s (`/proc/sys/fs/lease-break-time`), their
/// loans, and the kernel's answers.
fn take_leases(scene: &Scene<'_>, owner: bool) -> (Vec<OwnedFd>, Vec<BlockFile>, String) {
    const F_SETSIG: i32 = 10;
    let (mut loans, mut files, mut got) = (Vec::new(), Vec::new(), String::new());
    for number in 0..3 {
        let (lease, file) = scene.borrow_file(|request| {
            if owner {
                let name = format!("lease{number}.{}", std::process::id());
                request.owner = Some(name.parse().expect("a name"));
                request.keep = Some(Duration::ZERO);
            }
        });
        // Its break would kill the holder otherwise.
        raw::fcntl(&file, F_SETSIG, libc::SIGURG).expect("its own descriptor");
        got = outcome(raw::fcntl(&file, libc::F_SETLEASE, libc::F_WRLCK));
        loans.push(lease);
        files.push(file);
    }
    (loans, files, got)
}

fn lease_and_return(scene: &mut Scene<'_>, owner: bool) -> Got {
    let (loans, files, got) = take_leases(scene, owner);
    scene.set_up();
    drop(loans);
    scene.wait();
    drop(files);
    Ok(format!("F_SETLEASE: {got}"))
}

pub(crate) fn lease_on_a_returned_file_delays_no_user(stage: &mut Stage) {
    for owner in [false, true] {
        let named = if owner { ", owned" } else { "" };
        let name = format!("F_SETLEASE on a returned file, {}{named}", stage.recycle);
        let attack = Attack::new(name, User::Borrower, |scene| lease_and_return(scene, owner));
        attack.run(stage);
    }
}

pub(crate) fn leases_on_files_do_not_hold_up_a_start(stage: &mut Stage) {
    let attacker = fork(|ready| {
        User::Borrower.become_it();
        let scene = Scene::new(&stage.daemon, ready, Duration::ZERO);
        let (loans, files, _) = take_leases(&scene, true);
        ready.signal();
        drop(loans);
        let _files = files;
        ready.hold()
    });
    attacker.wait_ready();
    stage.daemon.kill();
    let begun = Instant::now();
    stage.daemon.launch();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "the start took {took:?}");
    attacker.kill();
    stage.remember();
    let left = stage.left().expect("nothing is held any more");
    let took = format!("start {:.0} ms", took.as_secs_f64() * 1e3);
    say(&["F_SETLEASE over a restart", "borrower", "nothing", &took, &left.to_string()]);
    assert!(left.is_nothing(), "left {left}");
}

/// `fallocate` holds the inode's lock from its first page to its last, and every move, removal or
/// change of the file waits for it. A thread without CPU time holds it for longer.
fn hold_inode_locks(scene: &mut Scene<'_>, owner: bool) -> Got {
    const FILL: u64 = 400 * PAGE;
    let (lease, file) = scene.borrow_file(|request| {
        if owner {
            request.owner = Some("lock".parse().expect("a name"));
            request.keep = Some(Duration::ZERO);
        }
    });
    let copy: OwnedFd = file.as_fd().try_clone_to_owned().expect("a copy");
    // Threads: a child would hold the lease, too, and keep the loan alive.
    let filler = std::thread::spawn(move || {
        raw::idle();
        let _ = BlockFile::from(copy).allocate(PAGE, FILL);
    });
    // It has begun, and so it has the lock.
    let begun = Instant::now();
    let grown = || file.allocated_bytes().is_ok_and(|bytes| bytes > 2 * PAGE);
    while !grown() && begun.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_micros(200));
    }
    let begins = grown();
    let over = Arc::new(AtomicBool::new(false));
    let hog = |_| {
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    };
    let hogs: Vec<_> = (0..3).map(hog).collect();
    scene.set_up();
    drop((lease, file));
    scene.wait();
    // Without CPU time it could not even be killed.
    over.store(true, Ordering::Relaxed);
    let ended = hogs.into_iter().chain([filler]).map(std::thread::JoinHandle::join);
    assert!(ended.into_iter().all(|thread| thread.is_ok()), "a thread panicked");
    Ok(if begins { "its own fallocate" } else { "no CPU time" }.to_owned())
}

#[test]
fn borrowers_inode_lock_delays_no_other_user() {
    let Some(mut stage) = Stage::set(432, &format!("{POOL}{WORKERS}")) else { return };
    for owner in [false, true] {
        let named = if owner { ", owned" } else { "" };
        let name = format!("SCHED_IDLE fallocate of a returned file{named}");
        let attack = Attack::new(name, User::Borrower, |scene| hold_inode_locks(scene, owner));
        attack.only(STATUS).run(&mut stage);
    }
}

/// Locks that the daemon does not take must not matter to it.
fn take_locks(scene: &mut Scene<'_>) -> Got {
    let held: Vec<_> = (0..3)
        .map(|_| {
            let (lease, file) = scene.borrow_file(|_| {});
            let lock = rustix::fs::FlockOperation::LockExclusive;
            rustix::fs::flock(&file, lock).expect("its own file");
            let whole = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            rustix::fs::fcntl_lock(&file, whole).expect("its own file");
            let _ =
                std::fs::set_permissions(path_of(&file.as_fd()), PermissionsExt::from_mode(0o2777));
            drop(lease);
            file
        })
        .collect();
    scene.set_up();
    scene.wait();
    drop(held);
    Ok("flock, fcntl: ok, ignored by the daemon".to_owned())
}

pub(crate) fn locks_on_returned_files_delay_no_user(stage: &mut Stage) {
    let name = format!("flock and fcntl locks, {}", stage.recycle);
    Attack::new(name, User::Borrower, take_locks).run(stage);
}
