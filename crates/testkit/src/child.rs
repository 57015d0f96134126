// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Forked children: another process that holds a descriptor or a mapping, and can be killed.
//!
//! A forked child has a copy of every open descriptor of its parent, those of other tests in the
//! same process included, and holds them until it ends. So tests that fork, or that search for a
//! file's holders, hold [`alone`] from the beginning to the end.
//!
//! # Safety
//!
//! The file forks a process that may have threads. The child runs the caller's closure in the one
//! thread that is left and ends by `_exit`, so destructors and buffered output run once. The
//! closure must not wait for another thread or take a lock that one may hold; system calls are
//! fine, and so is memory from glibc, which makes its locks safe across fork.
#![expect(unsafe_code, reason = "fork and _exit")]

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus};

static ALONE: Mutex<()> = Mutex::new(());

/// While it is held, the other tests of this process that ask for it wait.
pub fn alone() -> MutexGuard<'static, ()> {
    // The lock protects no data, so a test that failed while holding it is harmless.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A forked process; dropping it kills it by SIGKILL and waits for its end.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    ready: OwnedFd,
    is_waited: bool,
}

/// In the child: tells the parent that what it waits for is set up.
#[derive(Debug)]
pub struct Ready(OwnedFd);

impl Ready {
    /// Lets [`Child::wait_ready`] return.
    ///
    /// # Panics
    /// If the parent is gone.
    pub fn signal(&self) {
        rustix::io::write(&self.0, b"r").expect("the parent waits");
    }

    /// Sleeps until killed.
    pub fn hold(&self) -> ! {
        loop {
            std::thread::park();
        }
    }
}

/// Runs `body` in a forked child; its return value is the exit status, 101 after a panic.
///
/// The kernel kills the child when the thread that forked it ends (PR_SET_PDEATHSIG), so that it
/// dies with its test; [`outlive_parent`] lifts that.
///
/// # Panics
/// If the fork fails.
pub fn fork(body: impl FnOnce(&Ready) -> i32) -> Child {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe2");
    // SAFETY: the child only runs `body` under the conditions in this module's text, then _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(read);
        // The signal exists, so the call succeeds. The parent may be gone already, and the pipe
        // with it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
        let status = catch_unwind(AssertUnwindSafe(|| body(&Ready(write)))).unwrap_or(101);
        // SAFETY: ends the process at once; the parent's values keep their destructors.
        unsafe { libc::_exit(status) };
    }
    let pid = Pid::from_raw(pid).unwrap_or_else(|| panic!("fork: {}", io::Error::last_os_error()));
    Child { pid, ready: read, is_waited: false }
}

/// In the child: goes on after the parent's end. The test must end it by other means.
///
/// # Panics
/// If the kernel refuses, which prctl(2) does not list.
pub fn outlive_parent() {
    rustix::process::set_parent_process_death_signal(None).expect("prctl(PR_SET_PDEATHSIG, 0)");
}

/// In the child, as its future owner: makes a user namespace, waits until [`Child::map_users`] was
/// called, and goes on as `uid` of it.
///
/// # Panics
/// If the kernel refuses.
pub fn enter_user_namespace(ready: &Ready, uid: u32) {
    // SAFETY: takes numbers alone; of the one thread that is left.
    let ret = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
    assert_eq!(ret, 0, "unshare(CLONE_NEWUSER): {}", io::Error::last_os_error());
    ready.signal();
    while std::fs::read("/proc/self/uid_map").expect("procfs").is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(uid)).expect("mapped");
}

impl Child {
    /// Maps the users of its namespace, as newuidmap(1) does: `count` from `inside` on are those
    /// from `outside` on.
    ///
    /// # Panics
    /// If it was done before, or by an ordinary user.
    pub fn map_users(&self, inside: u32, outside: u32, count: u32) {
        let map = format!("{inside} {outside} {count}\n");
        std::fs::write(format!("/proc/{}/uid_map", self.pid()), map).expect("root maps users");
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits for [`Ready::signal`].
    ///
    /// # Panics
    /// If the child ended before it.
    pub fn wait_ready(&self) {
        let mut byte = [0];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.ready, &mut byte));
        assert_eq!(read, Ok(1), "the child {} ended early", self.pid());
    }

    /// Waits for its end without reaping it, so that its number stays reserved.
    ///
    /// # Panics
    /// If the child is missing.
    pub fn wait_exited(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let wait = || rustix::process::waitid(WaitId::Pid(self.pid), options);
        rustix::io::retry_on_intr(wait).expect("a child that was not waited for");
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        matches!(rustix::process::waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    /// Waits for its end and returns the exit status, `None` if a signal ended it.
    pub fn wait(mut self) -> Option<i32> {
        self.reap().and_then(WaitStatus::exit_status)
    }

    /// Kills it by SIGKILL and waits for its end, after which all it held is closed.
    pub fn kill(self) {
        drop(self);
    }

    fn reap(&mut self) -> Option<WaitStatus> {
        self.is_waited = true;
        let wait = || rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
        rustix::io::retry_on_intr(wait).ok().flatten().map(|(_, status)| status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_waited {
            // An unreaped child keeps its number, so ESRCH is impossible.
            rustix::process::kill_process(self.pid, Signal::KILL).ok();
            self.reap();
        }
    }
}
