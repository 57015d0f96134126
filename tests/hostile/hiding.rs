// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Borrowers that hide from `prezero holders`: a process without its first thread, and one with a
//! second thread that has descriptors of its own.
#![expect(unsafe_code, reason = "threads that end, and tables of their own")]

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use testkit::child::{Child, Ready, fork};
use wire::Held;

use crate::attack::{POOL, WORKERS, say};
use crate::scene::Scene;
use crate::stage::Stage;
use crate::users::User;
use prezero_tests::MapAlone as _;

/// Time enough to end a thread, and to take a table of its own.
const THREAD_END_PERIOD: Duration = Duration::from_millis(100);

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Its first thread ends; another one has the loan open and maps it.
fn without_a_first_thread(scene: &Scene<'_>, ready: &Ready) -> ! {
    let loan = scene.borrow(|_| {});
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let memory = loan.map_alone().expect("a mapping");
            memory.fill(0..memory.len(), 1);
            std::thread::sleep(THREAD_END_PERIOD);
            ready.signal();
            sleep_for_ever()
        });
        // This thread alone, not the process.
        // SAFETY: the call takes a number; what this thread has is never used again.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        unreachable!("the thread has ended")
    })
}

/// Another thread takes a table of descriptors for itself, and the first one closes what it has.
fn with_descriptors_of_a_threads_own(scene: &Scene<'_>, ready: &Ready) -> ! {
    let (lease, block) = scene.borrow_file(|_| {});
    let numbers = [lease.as_fd(), block.as_fd()].map(|fd| fd.as_raw_fd());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the call takes a number; this thread's descriptors are those from before.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0, "nothing forbids it");
            std::thread::sleep(THREAD_END_PERIOD);
            ready.signal();
            sleep_for_ever()
        });
        std::thread::sleep(THREAD_END_PERIOD / 2);
        for number in numbers {
            // SAFETY: this table's copies; the owners use those of the other table, if any.
            unsafe { libc::close(number) };
        }
        sleep_for_ever()
    })
}

/// A borrower of that kind.
fn hide(stage: &Stage, how: fn(&Scene<'_>, &Ready) -> !) -> Child {
    let child = fork(|ready| {
        User::Borrower.become_it();
        let scene = Scene::new(&stage.daemon, ready, Duration::from_secs(60));
        how(&scene, ready)
    });
    child.wait_ready();
    child
}

// Promise P263 (operator): `holders` looks at every thread: a process without its first one, and a
// thread with descriptors of its own, hide nothing. Threads that share a table are looked at once,
// and after the first threads of all processes.
#[test]
fn borrowers_hide_from_no_look_for_holders() {
    let Some(mut stage) = Stage::set(16, &format!("{POOL}{WORKERS}")) else { return };
    for (name, how, held) in [
        (
            "memory of a process without its first thread",
            without_a_first_thread as fn(&Scene<'_>, &Ready) -> !,
            &[Held::Maps, Held::Opens][..],
        ),
        ("memory in descriptors of one thread", with_descriptors_of_a_threads_own, &[Held::Opens]),
    ] {
        let child = hide(&stage, how);
        let found = stage.daemon.client().find_holders(None).expect("root may look");
        let seen: Vec<_> = found
            .holders
            .iter()
            .filter(|holder| holder.pid == child.pid())
            .map(|holder| holder.how)
            .collect();
        child.kill();
        let left = stage.left().expect("nothing is held any more");
        let got = if seen == held { "found".to_owned() } else { format!("{:?}", found.holders) };
        say(&[name, "borrower", &got, "", &left.to_string()]);
        assert_eq!(seen, held, "{name}: {found:?}");
        assert!(found.complete && left.is_nothing(), "{found:?}; left {left}");
    }
}
