// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernel locks that any user can make others wait for: held, or next in line for, by threads
//! without CPU time.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use client::Hold;
use testkit::child::fork;

use crate::attack::{Attack, say};
use crate::raw;
use crate::scene::{Got, Scene, path_only};
use crate::stage::Stage;
use crate::users::User;

/// Threads that have CPU time only on an idle CPU.
const IDLERS: usize = 60;
/// Threads that want all of it.
const HOGS: usize = 3;

/// Runs `again` in many threads without CPU time, beside threads that take it all, and `beside` in
/// this one until the scene is over.
fn without_cpu_time(
    scene: &mut Scene<'_>,
    again: impl Fn() + Sync,
    mut beside: impl FnMut(&Scene<'_>),
) {
    let over = AtomicBool::new(false);
    let is_over = || over.load(Ordering::Relaxed);
    std::thread::scope(|threads| {
        for _ in 0..IDLERS {
            threads.spawn(|| {
                raw::idle();
                while !is_over() {
                    again();
                }
            });
        }
        // They are in line before CPU time is short.
        std::thread::sleep(Duration::from_millis(20));
        for _ in 0..HOGS {
            threads.spawn(|| {
                while !is_over() {
                    std::hint::spin_loop();
                }
            });
        }
        scene.set_up();
        while !scene.over() {
            beside(scene);
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// A reader of the list of all locks locks out every process that takes or drops one (`file_rwsem`
/// of fs/locks.c), leases included.
fn read_locks(scene: &mut Scene<'_>) -> Got {
    let read = || {
        let mut text = String::new();
        let _ = File::open("/proc/locks").and_then(|mut file| file.read_to_string(&mut text));
    };
    without_cpu_time(scene, read, |_| std::thread::sleep(Duration::from_millis(5)));
    Ok("the list".to_owned())
}

fn readers_of_all_locks_delay_no_user(stage: &mut Stage) {
    Attack::new("SCHED_IDLE readers of /proc/locks", User::Stranger, read_locks)
        .windows_of(Duration::from_secs(1))
        .run(stage);
}

/// The same files of sysfs as the daemon looks at.
fn open_counts(scene: &mut Scene<'_>) -> Got {
    let read = || {
        for name in ["nr_hugepages", "free_hugepages", "surplus_hugepages"] {
            for dir in ["devices/system/node/node0/hugepages", "kernel/mm/hugepages"] {
                let _ = fs::read(format!("/sys/{dir}/hugepages-2048kB/{name}"));
            }
        }
    };
    without_cpu_time(scene, read, |_| std::thread::sleep(Duration::from_millis(5)));
    Ok("the counts".to_owned())
}

fn readers_of_the_kernels_counts_delay_no_user(stage: &mut Stage) {
    Attack::new("SCHED_IDLE readers of the kernel's counts", User::Stranger, open_counts)
        .windows_of(Duration::from_secs(1))
        .run(stage);
}

/// Changes that are refused, but with the inode's lock held: of a lease's FIFO, which goes with it.
fn change_the_fifo(scene: &mut Scene<'_>) -> Got {
    let number = AtomicI32::new(-1);
    let change = || {
        let path = format!("/proc/self/fd/{}", number.load(Ordering::Relaxed));
        let _ = fs::set_permissions(path, PermissionsExt::from_mode(0o666));
    };
    let mut held = Vec::new();
    without_cpu_time(scene, change, |scene| {
        let (lease, file) = scene.borrow_file(|_| {});
        let path = path_only(&lease.as_fd());
        number.store(path.as_raw_fd(), Ordering::Relaxed);
        held.push(path);
        std::thread::sleep(Duration::from_millis(10));
        drop((lease, file));
        std::thread::sleep(Duration::from_millis(20));
    });
    Ok("EPERM".to_owned())
}

fn refused_changes_of_an_ended_lease_delay_no_user(stage: &mut Stage) {
    Attack::new("SCHED_IDLE chmod of an ended lease", User::Borrower, change_the_fifo)
        .windows_of(Duration::from_secs(1))
        .run(stage);
}

/// The same, and leases of a borrower: an open of their file waits for that lock first.
fn read_locks_beside_leases(scene: &mut Scene<'_>) -> Got {
    const F_SETSIG: i32 = 10;
    let read = || {
        let mut text = String::new();
        let _ = File::open("/proc/locks").and_then(|mut file| file.read_to_string(&mut text));
    };
    let mut loans = 0;
    without_cpu_time(scene, read, |scene| {
        loans += 1;
        let (lease, file) = scene.borrow_file(|request| {
            if loans % 2 == 0 {
                request.hold = Hold::Memory;
            }
        });
        // Its break would kill the holder otherwise.
        let _ = raw::fcntl(&file, F_SETSIG, libc::SIGURG);
        let _ = raw::fcntl(&file, libc::F_SETLEASE, libc::F_WRLCK);
        drop(lease);
        std::thread::sleep(Duration::from_millis(10));
        drop(file);
    });
    Ok("F_SETLEASE: ok".to_owned())
}

fn readers_of_all_locks_beside_leases_delay_no_user(stage: &mut Stage) {
    let name = "SCHED_IDLE readers of /proc/locks beside leases on files";
    Attack::new(name, User::Borrower, read_locks_beside_leases)
        .windows_of(Duration::from_secs(1))
        .run(stage);
}

/// Each change of a pipe's size, and each look at its fill, takes the pipe's lock. Opening or
/// closing the pipe waits for it as well.
fn hold_pipes(leases: &[OwnedFd]) {
    let mut most = 1 << 16;
    for lease in leases {
        most = if most > 1 << 16 { 1 << 12 } else { 1 << 18 };
        let _ = raw::fcntl(lease, libc::F_SETPIPE_SZ, most);
        let _ = rustix::io::ioctl_fionread(lease);
    }
}

// Promise P160.
/// Leases with a holder at work on their pipes at the time when a new daemon looks for them.
#[test]
fn pipes_of_leases_hold_up_no_start() {
    let Some(mut stage) = Stage::usual("auto") else { return };
    let attacker = fork(|ready| {
        User::Borrower.become_it();
        let mut scene = Scene::new(&stage.daemon, ready, Duration::from_secs(60));
        let (leases, _files): (Vec<_>, Vec<_>) = (0..6).map(|_| scene.borrow_file(|_| {})).unzip();
        without_cpu_time(
            &mut scene,
            || hold_pipes(&leases),
            |_| {
                std::thread::sleep(Duration::from_millis(5));
            },
        );
        0
    });
    attacker.wait_ready();
    stage.daemon.kill();
    let begun = Instant::now();
    stage.daemon.launch();
    let took = begun.elapsed();
    let lent = stage.daemon.status().loans.len();
    attacker.kill();
    stage.remember();
    let left = stage.left().expect("nothing is held any more");
    let took_ms = format!("start {:.0} ms", took.as_secs_f64() * 1e3);
    say(&[
        "busy pipes of leases over a restart",
        "borrower",
        "its loans",
        &took_ms,
        &left.to_string(),
    ]);
    assert!(took < Duration::from_secs(10), "the start took {took:?}");
    assert_eq!(lent, 6, "loans that are held stay lent");
    assert!(left.is_nothing(), "left {left}");
}

// Promise P118 (socket): Any local user can hold the lock of all file locks without CPU time, by
// reading `/proc/locks`. It delays no call where pins are seen, and neither do leases on files
// beside it.
// Promise P160.
#[test]
fn kernel_locks_that_any_process_can_stretch_delay_no_user() {
    let Some(mut stage) = Stage::usual("auto") else { return };
    readers_of_all_locks_delay_no_user(&mut stage);
    readers_of_all_locks_beside_leases_delay_no_user(&mut stage);
    refused_changes_of_an_ended_lease_delay_no_user(&mut stage);
}

/// Not at each change: now and then, on two busy CPUs, a call takes 15 to 50 ms beside these.
#[test]
fn short_sysfs_locks_delay_no_user() {
    let Some(mut stage) = Stage::usual("auto") else { return };
    readers_of_the_kernels_counts_delay_no_user(&mut stage);
}
