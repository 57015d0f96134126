// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors and their files.
//!
//! # Safety
//!
//! As [`super`] has it.
#![expect(unsafe_code, reason = "system calls that read and write values of ours")]
#![expect(clippy::cast_possible_truncation, reason = "offsets of 64 bits")]

use std::ffi::CStr;

use libc::c_int;

use super::{Errno, Result, call, int, plain};

/// The file behind a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
}

impl File {
    pub(crate) fn is(self, other: Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

pub(crate) fn memfd_create(name: *const libc::c_char, flags: libc::c_uint) -> Result<usize> {
    // The kernel reads the name, and answers EFAULT at its first unmapped byte.
    plain(libc::SYS_memfd_create, [name.addr(), flags as usize, 0, 0, 0, 0])
}

pub(crate) fn ftruncate(fd: c_int, bytes: i64) -> Result<usize> {
    plain(libc::SYS_ftruncate, [int(fd), bytes.cast_unsigned() as usize, 0, 0, 0, 0])
}

pub(crate) fn fallocate(fd: c_int, mode: c_int, offset: i64, bytes: i64) -> Result<usize> {
    let (offset, bytes) = (offset.cast_unsigned() as usize, bytes.cast_unsigned() as usize);
    plain(libc::SYS_fallocate, [int(fd), int(mode), offset, bytes, 0, 0])
}

/// `fcntl`.
///
/// # Safety
/// For the commands that take a pointer, it is valid for the kernel's use.
pub(crate) unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { call(libc::SYS_fcntl, [int(fd), int(command), argument, 0, 0, 0]) }
}

/// Whether a descriptor is closed on exec.
pub(crate) fn closes_on_exec(fd: c_int) -> Result<bool> {
    let flags = plain(libc::SYS_fcntl, [int(fd), int(libc::F_GETFD), 0, 0, 0, 0])?;
    Ok(flags & int(libc::FD_CLOEXEC) != 0)
}

/// Opens the file of a descriptor once more, closed on exec.
pub(crate) fn reopen(fd: c_int, mode: c_int) -> Result<c_int> {
    let path =
        std::ffi::CString::new(format!("/proc/self/fd/{fd}")).map_err(|_| Errno(libc::EBADF))?;
    let args = [int(libc::AT_FDCWD), path.as_ptr().addr(), int(mode | libc::O_CLOEXEC), 0, 0, 0];
    plain(libc::SYS_openat, args).map(|fd| c_int::try_from(fd).unwrap_or(-1))
}

/// A memfd's seals; none where a file has no such thing.
pub(crate) fn seals(fd: c_int) -> c_int {
    let seals = plain(libc::SYS_fcntl, [int(fd), int(libc::F_GET_SEALS), 0, 0, 0, 0]);
    seals.ok().and_then(|seals| c_int::try_from(seals).ok()).unwrap_or(0)
}

pub(crate) fn add_seals(fd: c_int, seals: c_int) -> Result<usize> {
    plain(libc::SYS_fcntl, [int(fd), int(libc::F_ADD_SEALS), int(seals), 0, 0, 0])
}

pub(crate) fn dup3(old: c_int, new: c_int, flags: c_int) -> Result<usize> {
    plain(libc::SYS_dup3, [int(old), int(new), int(flags), 0, 0, 0])
}

pub(crate) fn close(fd: c_int) {
    // EBADF cannot be for a descriptor of the shim's own; nothing else leaves it open.
    let _ = plain(libc::SYS_close, [int(fd), 0, 0, 0, 0, 0]);
}

/// Reads into `buffer` from a file at an offset.
pub(crate) fn pread(fd: c_int, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let args = [int(fd), buffer.as_mut_ptr().addr(), buffer.len(), offset as usize, 0, 0];
    // SAFETY: the kernel writes at most `buffer.len()` bytes to the buffer.
    unsafe { call(libc::SYS_pread64, args) }
}

/// Reads for the program, which answers for its buffer.
///
/// # Safety
/// As the call itself.
pub(crate) unsafe fn read(fd: c_int, buffer: *mut libc::c_void, bytes: usize) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { call(libc::SYS_read, [int(fd), buffer.addr(), bytes, 0, 0, 0]) }
}

/// Whether a descriptor is of the file with that path.
pub(crate) fn is_path(fd: c_int, path: &[u8]) -> bool {
    let mut found = [0_u8; 64];
    let Ok(link) = std::ffi::CString::new(format!("/proc/self/fd/{fd}")) else { return false };
    let args = [int(libc::AT_FDCWD), link.as_ptr().addr(), found.as_mut_ptr().addr(), 64, 0, 0];
    // SAFETY: the kernel writes at most 64 bytes to the buffer.
    let length = unsafe { call(libc::SYS_readlinkat, args) };
    length.is_ok_and(|length| found.get(..length) == Some(path))
}

/// Opens a file of that absolute path for reading, closed on exec.
pub(crate) fn open(path: &CStr) -> Result<c_int> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let args = [int(libc::AT_FDCWD), path.as_ptr().addr(), int(flags), 0, 0, 0];
    plain(libc::SYS_openat, args).map(|fd| c_int::try_from(fd).unwrap_or(-1))
}

/// Writes what it can. The caller has the guard, so signals wait. The write itself may cause one:
/// a pipe without a reader, a file at the process's limit. That signal is taken, so that it ends no
/// program which has written nothing.
pub(crate) fn write(fd: c_int, bytes: &[u8]) {
    let before = pending_signals();
    // A log that cannot be written is lost.
    let written = plain(libc::SYS_write, [int(fd), bytes.as_ptr().addr(), bytes.len(), 0, 0, 0]);
    let signal = match written {
        Err(Errno(libc::EPIPE)) => libc::SIGPIPE,
        Err(Errno(libc::EFBIG)) => libc::SIGXFSZ,
        _ => return,
    };
    let set = 1_u64 << (signal - 1);
    if before & set == 0 {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let args = [(&raw const set).addr(), 0, (&raw const now).addr(), 8, 0, 0];
        // EAGAIN: the program ignores it, so there was none.
        let _ = plain(libc::SYS_rt_sigtimedwait, args);
    }
}

/// The signals that wait for this thread.
fn pending_signals() -> u64 {
    let mut set = 0_u64;
    // SAFETY: the kernel's signal set is 8 bytes, which the value is.
    let _ = unsafe { call(libc::SYS_rt_sigpending, [(&raw mut set).addr(), 8, 0, 0, 0, 0]) };
    set
}

fn stat(fd: c_int) -> Result<libc::stat> {
    // SAFETY: all bytes zero is a valid `stat`, which is plain numbers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `stat`, with libc's layout on these architectures.
    unsafe { call(libc::SYS_fstat, [int(fd), (&raw mut stat).addr(), 0, 0, 0, 0]) }?;
    Ok(stat)
}

fn file_of(stat: &libc::stat) -> File {
    let bytes = u64::try_from(stat.st_size).unwrap_or_default();
    File { device: stat.st_dev, inode: stat.st_ino, bytes }
}

pub(crate) fn file(fd: c_int) -> Result<File> {
    stat(fd).map(|stat| file_of(&stat))
}

/// What `fstat` says of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) file: File,
    pub(crate) is_linked: bool,
    pub(crate) blocks: u64,
    pub(crate) mode: u32,
    pub(crate) user: u32,
}

pub(crate) fn look(fd: c_int) -> Result<Look> {
    let stat = stat(fd)?;
    Ok(Look {
        file: file_of(&stat),
        is_linked: stat.st_nlink != 0,
        blocks: u64::try_from(stat.st_blocks).unwrap_or(u64::MAX),
        mode: stat.st_mode & 0o7777,
        user: stat.st_uid,
    })
}

/// The state of a descriptor that a program can set, besides its offset: flags, and the process
/// that gets its signals.
pub(crate) fn status(fd: c_int) -> [Result<usize>; 2] {
    let get = |command| plain(libc::SYS_fcntl, [int(fd), int(command), 0, 0, 0, 0]);
    [get(libc::F_GETFL), get(libc::F_GETOWN)]
}

/// Gives a descriptor the offset of another one.
pub(crate) fn copy_offset(from: c_int, to: c_int) -> Result<()> {
    let seek = |fd, offset, whence| plain(libc::SYS_lseek, [int(fd), offset, int(whence), 0, 0, 0]);
    let offset = seek(from, 0, libc::SEEK_CUR)?;
    seek(to, offset, libc::SEEK_SET).map(drop)
}

/// The lowest number that no descriptor of this process has. A duplicate would tell as well, and
/// closing it would drop the program's record locks.
pub(crate) fn lowest_free() -> Result<c_int> {
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    let args = [int(libc::AT_FDCWD), c"/".as_ptr().addr(), int(flags), 0, 0, 0];
    let free = plain(libc::SYS_openat, args)?;
    let free = c_int::try_from(free).map_err(|_| Errno(libc::EBADF))?;
    close(free);
    Ok(free)
}

/// The size of the pages of a file on a hugetlbfs; `None` for any other.
pub(crate) fn huge_page_of(fd: c_int) -> Option<u64> {
    // SAFETY: all bytes zero is a valid `statfs`, which is plain numbers.
    let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `statfs`, with libc's layout on these architectures.
    unsafe { call(libc::SYS_fstatfs, [int(fd), (&raw mut fs).addr(), 0, 0, 0, 0]) }.ok()?;
    let page = u64::try_from(fs.f_bsize).ok().filter(|page| page.is_power_of_two());
    page.filter(|_| fs.f_type == libc::HUGETLBFS_MAGIC)
}

/// `sendmsg`; the program answers for the message, which the kernel checks.
pub(crate) fn sendmsg(fd: c_int, message: usize, flags: c_int) -> Result<usize> {
    plain(libc::SYS_sendmsg, [int(fd), message, int(flags), 0, 0, 0])
}

/// `sendmmsg`; the kernel writes into each message how much it sent.
///
/// # Safety
/// As many messages of the program, which no other thread uses meanwhile.
pub(crate) unsafe fn sendmmsg(
    fd: c_int,
    messages: usize,
    count: libc::c_uint,
    flags: c_int,
) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { call(libc::SYS_sendmmsg, [int(fd), messages, count as usize, int(flags), 0, 0]) }
}

/// Opens a file of that path for appending, made where it is missing, closed on exec. Opens a
/// FIFO without waiting for its reader, and takes no terminal for the program's.
pub(crate) fn open_log(path: &CStr) -> Result<c_int> {
    let place = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT;
    let flags = place | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let args = [int(libc::AT_FDCWD), path.as_ptr().addr(), int(flags), 0o644, 0, 0];
    plain(libc::SYS_openat, args).map(|fd| c_int::try_from(fd).unwrap_or(-1))
}
