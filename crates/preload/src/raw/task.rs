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

use super::{Result, call, int, plain};

pub(crate) fn process() -> u32 {
    plain(libc::SYS_getpid, [0; 6]).map_or(0, |pid| pid as u32)
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

/// Sleeps while `word` is `value`, at most for the timeout.
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

/// Wakes one thread that waits for the word.
pub(crate) fn futex_wake(word: &std::sync::atomic::AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let _ = plain(libc::SYS_futex, [word.as_ptr().addr(), int(operation), 1, 0, 0, 0]);
}

/// Whether the thread runs on its alternate signal stack, which may be a few KiB.
pub(crate) fn is_on_alternate_stack() -> bool {
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    let args = [0, (&raw mut stack).addr(), 0, 0, 0, 0];
    // SAFETY: the kernel writes one structure.
    let asked = unsafe { call(libc::SYS_sigaltstack, args) };
    asked.is_err() || stack.ss_flags & libc::SS_ONSTACK != 0
}

/// The kernel's release, as numbers: `(6, 18)`.
pub(crate) fn kernel_release() -> Option<(u32, u32)> {
    // SAFETY: all bytes zero is a value of the structure, which is plain bytes.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one structure.
    unsafe { call(libc::SYS_uname, [(&raw mut name).addr(), 0, 0, 0, 0, 0]) }.ok()?;
    // SAFETY: the kernel ends the text with a zero byte inside of the array.
    let release = unsafe { std::ffi::CStr::from_ptr(name.release.as_ptr()) }.to_str().ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// `seccomp`.
///
/// # Safety
/// As the call itself: `args` is for the operation, or null.
pub(crate) unsafe fn seccomp(
    operation: libc::c_uint,
    flags: libc::c_uint,
    args: *const libc::c_void,
) -> Result<usize> {
    let args = [operation as usize, flags as usize, args.addr(), 0, 0, 0];
    // SAFETY: the caller's contract.
    unsafe { call(libc::SYS_seccomp, args) }
}

/// `prctl`.
///
/// # Safety
/// As the call itself.
pub(crate) unsafe fn prctl(option: c_int, rest: [libc::c_ulong; 4]) -> Result<usize> {
    let [second, third, fourth, fifth] = rest.map(|argument| argument as usize);
    // SAFETY: the caller's contract.
    unsafe { call(libc::SYS_prctl, [int(option), second, third, fourth, fifth, 0]) }
}
