// SPDX-License-Identifier: Apache-2.0 OR MIT
//! This process, its threads, signals and waits.
//!
//! # Safety
//!
//! As [`super`] has it.
#![expect(unsafe_code, reason = "runs a task in this process's memory")]
#![expect(clippy::cast_possible_truncation, reason = "process numbers of 32 bits")]

use std::time::Duration;

use libc::c_int;

use super::{ANONYMOUS, Errno, READ_WRITE, call, close, int, mmap, munmap, plain};

pub(crate) fn process() -> u32 {
    plain(libc::SYS_getpid, [0; 6]).map_or(0, |pid| pid as u32)
}

pub(crate) fn thread() -> u32 {
    plain(libc::SYS_gettid, [0; 6]).map_or(0, |tid| tid as u32)
}

/// The effective user and group.
pub(crate) fn effective_ids() -> (u32, u32) {
    let id = |number| plain(number, [0; 6]).map_or(u32::MAX, |id| id as u32);
    (id(libc::SYS_geteuid), id(libc::SYS_getegid))
}

/// Blocks the signals of `mask`, or with `restore` makes it the whole mask; returns the old one.
pub(crate) fn signal_mask(mask: u64, restore: bool) -> u64 {
    let how = if restore { libc::SIG_SETMASK } else { libc::SIG_BLOCK };
    let mut old = 0_u64;
    let args = [int(how), (&raw const mask).addr(), (&raw mut old).addr(), 8, 0, 0];
    // SAFETY: the kernel's signal set is 8 bytes, which both values are; it cannot fail for them.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, args) };
    old
}

/// Sleeps while `word` is `value`, at most so long.
pub(crate) fn futex_wait(word: &std::sync::atomic::AtomicU32, value: u32, timeout: Duration) {
    let nanos = i64::from(timeout.subsec_nanos());
    let time = libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: nanos,
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let args =
        [word.as_ptr().addr(), int(operation), value as usize, (&raw const time).addr(), 0, 0];
    // Woken, changed, over or interrupted: the caller looks again in each case.
    let _ = plain(libc::SYS_futex, args);
}

/// Wakes one who waits for the word, or all.
pub(crate) fn futex_wake(word: &std::sync::atomic::AtomicU32, all: bool) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let most = if all { int(c_int::MAX) } else { 1 };
    let _ = plain(libc::SYS_futex, [word.as_ptr().addr(), int(operation), most, 0, 0, 0]);
}

/// How many threads the process has; `None` where that cannot be seen.
pub(crate) fn threads() -> Option<usize> {
    let mut text = [0; 1024];
    let file = super::open(c"/proc/self/stat").ok()?;
    let read = super::pread(file, &mut text, 0);
    close(file);
    let text = text.get(..read.ok()?)?;
    // The name, which is the second field, may have any bytes in it, parentheses too.
    let name_ends = text.iter().rposition(|byte| *byte == b')')?;
    let fields = str::from_utf8(text.get(name_ends + 1..)?).ok()?;
    fields.split_ascii_whitespace().nth(17)?.parse().ok()
}

/// The process's parent; 0 if that is in another PID namespace.
pub(crate) fn parent() -> u32 {
    plain(libc::SYS_getppid, [0; 6]).map_or(0, |pid| pid as u32)
}

/// Sleeps so long, or less.
pub(crate) fn nap(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    let _ = plain(libc::SYS_nanosleep, [(&raw const time).addr(), 0, 0, 0, 0, 0]);
}

/// Runs `body` with room for descriptors where this process has none: in a task that shares all of
/// its memory and has a table of descriptors of its own, in which it closes a few. The calling
/// thread waits. `None` if there is no such task to be had.
///
/// Only what is behind the guard may run so: the caller's signals wait, and nobody is cancelled.
pub(crate) fn with_descriptors<T>(body: impl FnOnce() -> T) -> Option<T> {
    struct Job<F, T> {
        body: Option<F>,
        done: Option<T>,
    }
    extern "C" fn run<F: FnOnce() -> T, T>(job: *mut libc::c_void) -> c_int {
        // SAFETY: the pointer below, whose value lives on the stack of who waits for this.
        let job = unsafe { &mut *job.cast::<Job<F, T>>() };
        let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 0 };
        let args = [0, libc::RLIMIT_NOFILE as usize, 0, (&raw mut limit).addr(), 0, 0];
        // SAFETY: the kernel writes one structure.
        let _ = unsafe { call(libc::SYS_prlimit64, args) };
        for below in 1..=4 {
            let last = limit.rlim_cur.saturating_sub(below);
            close(c_int::try_from(last).unwrap_or(c_int::MAX));
        }
        job.done = job.body.take().map(|body| body());
        0
    }
    fn runner<F: FnOnce() -> T, T>(_: &Job<F, T>) -> extern "C" fn(*mut libc::c_void) -> c_int {
        run::<F, T>
    }
    let mut job = Job { body: Some(body), done: None };
    let entry = runner(&job);
    const STACK: usize = 256 << 10;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let stack = unsafe { mmap(0, STACK, READ_WRITE, ANONYMOUS, -1, 0) }.ok()?;
    let top = (stack + STACK) as *mut libc::c_void;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    // SAFETY: the function runs on a stack of its own, once, and ends before this call returns
    // (CLONE_VFORK), so that the stack and the job outlive it.
    let pid = unsafe { libc::clone(entry, top, flags, (&raw mut job).cast()) };
    let wait = [int(pid), 0, int(libc::__WALL), 0, 0, 0];
    // It told nobody of its end, and is gone already.
    while pid > 0 && plain(libc::SYS_wait4, wait) == Err(Errno(libc::EINTR)) {}
    // SAFETY: this function's own, which nobody runs on any more.
    let _ = unsafe { munmap(stack, STACK) };
    job.done
}
