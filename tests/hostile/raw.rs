// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls that only a hostile program makes, each behind a safe function.
//!
//! # Safety
//!
//! Every buffer is a live local or slice, or a [`Mapping`] that outlives the call, and its length
//! is passed from the same value. The kernel keeps a reference to the pages of a mapping after
//! `vmsplice` and `register_buffers`: the subject of these attacks. It never writes through it to
//! memory that is the test's own by then.
#![expect(unsafe_code, reason = "system calls of attackers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libc::c_int;
use linux::Mapping;
pub(crate) use prezero_tests::pins::{pin_in_pipe, pin_in_ring, read_pinned};

fn check(ret: i64) -> io::Result<i64> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// `fcntl(fd, command, argument)` for the commands that take an int.
pub(crate) fn fcntl(fd: impl AsFd, command: c_int, argument: c_int) -> io::Result<i64> {
    // SAFETY: the descriptor is borrowed; the commands used take an int.
    check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, argument) }.into())
}

/// `open(path)` by a ring, in the hope that another user's rights apply there.
pub(crate) fn open_by_ring(path: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let mut ring = io_uring::IoUring::new(4)?;
    let at = io_uring::types::Fd(libc::AT_FDCWD);
    let open = io_uring::opcode::OpenAt::new(at, path.as_ptr()).flags(libc::O_RDWR);
    // SAFETY: the path lives until the operation is complete, which is waited for.
    unsafe { ring.submission().push(&open.build()) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let result = ring.completion().next().map_or(-libc::EIO, |done| done.result());
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: a descriptor that the kernel has just made for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// `madvise(memory, advice)`.
pub(crate) fn advise(memory: &Mapping, advice: c_int) -> io::Result<()> {
    // SAFETY: a live mapping; the advices used either are refused or concern this mapping's pages
    // only, into which no reference of Rust's points.
    check(unsafe { libc::madvise(memory.as_ptr().cast(), memory.len(), advice) }.into()).map(drop)
}

/// `mlock` of all of it.
pub(crate) fn lock(memory: &Mapping) -> io::Result<()> {
    // SAFETY: a live mapping with unchanging content.
    check(unsafe { libc::mlock(memory.as_ptr().cast(), memory.len()) }.into()).map(drop)
}

/// `ptrace(PTRACE_SEIZE, pid)`.
pub(crate) fn seize(pid: u32) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: PTRACE_SEIZE takes numbers only.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, none, none) }).map(drop)
}

/// `pidfd_getfd(pidfd_open(pid), fd)`.
pub(crate) fn steal(pid: u32, fd: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    let process = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let process = c_int::try_from(process).map_err(io::Error::other)?;
    // SAFETY: a descriptor that the kernel has just made for this process.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    // SAFETY: takes no pointer.
    let got = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) })?;
    // SAFETY: a descriptor that the kernel has just made for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(c_int::try_from(got).map_err(io::Error::other)?) })
}

/// `process_madvise(pidfd_open(pid), MADV_PAGEOUT)` at an address of that process.
pub(crate) fn page_out(pid: u32, at: usize) -> io::Result<()> {
    // SAFETY: takes no pointer.
    let process = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let process = c_int::try_from(process).map_err(io::Error::other)?;
    // SAFETY: a descriptor that the kernel has just made for this process.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    let piece = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: 4096 };
    let (fd, call) = (process.as_raw_fd(), libc::SYS_process_madvise);
    // SAFETY: one live iovec. Its address is another process's and is not followed here.
    let ret = unsafe { libc::syscall(call, fd, &raw const piece, 1, libc::MADV_PAGEOUT, 0) };
    check(ret).map(drop)
}

/// `process_vm_readv(pid)` of a page there.
pub(crate) fn peek(pid: u32, at: usize) -> io::Result<()> {
    let mut page = [0_u8; 4096];
    let here = libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: page.len() };
    let there = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: page.len() };
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: the local iovec is a live local of that length; the other is not followed here.
    let ret = unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) };
    check(ret as i64).map(drop)
}

/// `userfaultfd`, for this process's own faults only.
pub(crate) fn userfaultfd() -> io::Result<OwnedFd> {
    const USER_MODE_ONLY: c_int = 1;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: takes no pointer.
    let fd = check(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })?;
    // SAFETY: a descriptor that the kernel has just made for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(c_int::try_from(fd).map_err(io::Error::other)?) })
}

/// Registers a mapping there, so that its holes stay unfilled: true if the kernel let it.
pub(crate) fn watch_faults(fd: &OwnedFd, memory: &Mapping) -> io::Result<()> {
    // include/uapi/linux/userfaultfd.h
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    let mut api: [u64; 3] = [0xaa, 0, 0];
    // SAFETY: struct uffdio_api is three u64; the kernel writes two of them.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), API as _, api.as_mut_ptr()) }.into())?;
    let mut range: [u64; 4] = [memory.as_ptr().addr() as u64, memory.len() as u64, 1, 0];
    // SAFETY: struct uffdio_register is four u64; the range is a live mapping's.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), REGISTER as _, range.as_mut_ptr()) }.into())
        .map(drop)
}

/// `fanotify_init(class)`, and a mark on that path if it is granted.
pub(crate) fn fanotify(class: u32, mask: u64, path: &std::ffi::CStr) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = check(unsafe { libc::fanotify_init(class, libc::O_RDONLY as u32) }.into())?;
    // SAFETY: a descriptor that the kernel has just made for this process.
    let fd = unsafe { OwnedFd::from_raw_fd(c_int::try_from(fd).map_err(io::Error::other)?) };
    let (at, add) = (libc::AT_FDCWD, libc::FAN_MARK_ADD);
    // SAFETY: the path is a live C string.
    check(unsafe { libc::fanotify_mark(fd.as_raw_fd(), add, mask, at, path.as_ptr()) }.into())?;
    Ok(fd)
}

/// Reads the events of a non-blocking fanotify descriptor: the processes that opened the file.
pub(crate) fn openers(fd: &OwnedFd) -> impl Iterator<Item = u32> {
    // struct fanotify_event_metadata, of 24 bytes: its length, the event's descriptor, the process.
    let (mut events, mut found) = ([0_u8; 24 * 64], Vec::new());
    while let Ok(read) = rustix::io::read(fd, &mut events) {
        let (events, _) = events[..read].as_chunks::<24>();
        for event in events {
            let number = |at: usize| {
                c_int::from_ne_bytes([event[at], event[at + 1], event[at + 2], event[at + 3]])
            };
            if number(16) >= 0 {
                // SAFETY: a descriptor that the kernel has just made for this process.
                drop(unsafe { OwnedFd::from_raw_fd(number(16)) });
            }
            found.extend(u32::try_from(number(20)));
        }
    }
    found.into_iter()
}

/// The calling thread gets CPU time only on an idle CPU.
pub(crate) fn idle() {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: a live parameter of the right type.
    let ret = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) };
    assert_eq!(ret, 0, "everybody may be idle");
}

/// `unshare(flags)`.
pub(crate) fn unshare(flags: c_int) -> io::Result<()> {
    // SAFETY: takes numbers only; the caller is a child of its own with one thread.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}
