// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls, without the C library and whoever else stands before it.
//!
//! # Safety
//!
//! The one unsafe operation is the system call. Those that change the address space are `unsafe`
//! here as well, and their callers answer for the range: it is the program's own argument, passed
//! on as it came, or one that the shim mapped. All others take plain numbers, or pointers to values
//! that live across the call and are as long as the kernel is told.
#![expect(unsafe_code, reason = "system calls, some of which map and unmap memory")]
#![expect(clippy::cast_possible_truncation, reason = "numbers of 64 bits in registers of 64 bits")]

use std::ffi::CStr;
use std::time::Duration;

use libc::{c_int, c_long};

const _: () = assert!(usize::BITS == 64, "prezero serves 64-bit programs");

/// An error number of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

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

/// Any system call.
///
/// # Safety
/// As the call itself: pointers among `args` are good for what the kernel does with them, and no
/// memory that Rust code relies on is unmapped.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the registers are those of the x86-64 convention, the kernel changes no others than
    // rax, rcx and r11; what it does to memory the caller answers for.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    check(result)
}

/// Any system call.
///
/// # Safety
/// As the call itself: pointers among `args` are good for what the kernel does with them, and no
/// memory that Rust code relies on is unmapped.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the registers are those of the arm64 convention, the kernel changes x0 alone; what it
    // does to memory the caller answers for.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number as isize,
            inlateout("x0") args[0] => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    check(result)
}

fn check(result: isize) -> Result<usize> {
    match result {
        -4095..=-1 => Err(Errno(c_int::try_from(-result).unwrap_or(libc::EIO))),
        done => Ok(done.cast_unsigned()),
    }
}

/// A call whose arguments are numbers alone, or pointers to values of the shim's own, or of the
/// program's that it passes for that very call, which the kernel checks.
fn plain(number: c_long, args: [usize; 6]) -> Result<usize> {
    // SAFETY: used below for calls that unmap nothing and write to no memory of Rust's.
    unsafe { call(number, args) }
}

fn int(value: c_int) -> usize {
    // The kernel looks at the lower half.
    value.cast_unsigned() as usize
}

/// Sets this thread's `errno` and returns what it was.
pub(crate) fn swap_errno(number: c_int) -> c_int {
    // SAFETY: takes nothing, and is this thread's for as long as it runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: a valid int that no other thread uses.
    unsafe { std::ptr::replace(errno, number) }
}

/// Sets `errno` and gives the C result of a call.
pub(crate) fn c_result(result: Result<usize>) -> isize {
    match result {
        Ok(value) => value.cast_signed(),
        Err(Errno(number)) => {
            swap_errno(number);
            -1
        }
    }
}

/// The same for calls that return an int.
pub(crate) fn c_int_result(result: Result<usize>) -> c_int {
    c_int::try_from(c_result(result)).unwrap_or(-1)
}

/// `mmap`.
///
/// # Safety
/// With `MAP_FIXED` what lay in the range is gone: it was the caller's to give up.
pub(crate) unsafe fn mmap(
    address: usize,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Result<usize> {
    let offset = usize::try_from(offset).map_err(|_| Errno(libc::EINVAL))?;
    let args = [address, bytes, int(prot), int(flags), int(fd), offset];
    // SAFETY: the caller answers for the range.
    unsafe { call(libc::SYS_mmap, args) }
}

/// `munmap`.
///
/// # Safety
/// The range is the caller's, and nobody uses it any more.
pub(crate) unsafe fn munmap(address: usize, bytes: usize) -> Result<usize> {
    // SAFETY: the caller answers for the range.
    unsafe { call(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]) }
}

/// `mremap`.
///
/// # Safety
/// The old range, and with `MREMAP_FIXED` the new one, are the caller's.
pub(crate) unsafe fn mremap(
    old: usize,
    old_bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new: usize,
) -> Result<usize> {
    // SAFETY: the caller answers for the ranges.
    unsafe { call(libc::SYS_mremap, [old, old_bytes, new_bytes, int(flags), new, 0]) }
}

/// `mprotect`.
///
/// # Safety
/// The range is the caller's, and whoever uses it can live with the new rights.
pub(crate) unsafe fn mprotect(address: usize, bytes: usize, prot: c_int) -> Result<usize> {
    // SAFETY: the caller answers for the range.
    unsafe { call(libc::SYS_mprotect, [address, bytes, int(prot), 0, 0, 0]) }
}

/// `madvise`.
///
/// # Safety
/// Some advice throws content away: the range is the caller's, and so is its content.
pub(crate) unsafe fn madvise(address: usize, bytes: usize, advice: c_int) -> Result<usize> {
    // SAFETY: the caller answers for the range.
    unsafe { call(libc::SYS_madvise, [address, bytes, int(advice), 0, 0, 0]) }
}

pub(crate) fn memfd_create(name: *const libc::c_char, flags: libc::c_uint) -> Result<usize> {
    // The kernel reads the name as far as it is mapped and answers EFAULT beyond.
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
/// For the commands that take a pointer, it is good for what the kernel does with it.
pub(crate) unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { call(libc::SYS_fcntl, [int(fd), int(command), argument, 0, 0, 0]) }
}

/// Whether a descriptor is closed on exec.
pub(crate) fn closes_on_exec(fd: c_int) -> Result<bool> {
    let flags = plain(libc::SYS_fcntl, [int(fd), int(libc::F_GETFD), 0, 0, 0, 0])?;
    Ok(flags & int(libc::FD_CLOEXEC) != 0)
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

/// The mapping at an address or the next one, as a descriptor of `/proc/PID/maps` says since
/// Linux 6.11 (`PROCMAP_QUERY`); `ENOTTY` before, `ENOENT` if none follows.
pub(crate) fn mapping_at(maps: c_int, address: usize) -> Result<crate::maps::Piece> {
    /// `struct procmap_query` of `linux/fs.h`.
    #[repr(C)]
    #[derive(Default)]
    struct Query {
        size: u64,
        flags: u64,
        address: u64,
        start: u64,
        end: u64,
        rights: u64,
        page_size: u64,
        offset: u64,
        inode: u64,
        major: u32,
        minor: u32,
        name_size: u32,
        build_id_size: u32,
        name: u64,
        build_id: u64,
    }
    const COVERING_OR_NEXT: u64 = 0x10;
    /// `_IOWR('f', 17, struct procmap_query)`.
    const REQUEST: usize = 3 << 30 | size_of::<Query>() << 16 | 0x66 << 8 | 17;
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT,
        address: address as u64,
        ..Query::default()
    };
    let args = [int(maps), REQUEST, (&raw mut query).addr(), 0, 0, 0];
    // SAFETY: the kernel reads and writes one structure of the size that it is told.
    unsafe { call(libc::SYS_ioctl, args) }?;
    let right = |at: u64, bit| if query.rights & at != 0 { bit } else { 0 };
    Ok(crate::maps::Piece {
        start: query.start as usize,
        end: query.end as usize,
        prot: right(1, libc::PROT_READ) | right(2, libc::PROT_WRITE) | right(4, libc::PROT_EXEC),
        device: libc::makedev(query.major, query.minor),
        inode: query.inode,
        offset: query.offset,
    })
}

/// The bytes of a base page.
pub(crate) fn base_page() -> usize {
    // SAFETY: takes a number, and is a number that the process was started with.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Opens a file of that absolute path for reading, closed on exec.
pub(crate) fn open(path: &CStr) -> Result<c_int> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let args = [int(libc::AT_FDCWD), path.as_ptr().addr(), int(flags), 0, 0, 0];
    plain(libc::SYS_openat, args).map(|fd| c_int::try_from(fd).unwrap_or(-1))
}

/// Writes what it can. Behind the guard, where signals wait: one that is the write's own fault (a
/// pipe that nobody reads any more, a file at the process's limit) is taken before it can end a
/// program which has not written anything.
pub(crate) fn write(fd: c_int, bytes: &[u8]) {
    let before = pending_signals();
    // A log that cannot be written has nobody to tell.
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

pub(crate) fn file(fd: c_int) -> Result<File> {
    // SAFETY: all bytes zero is a valid `stat`, which is plain numbers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `stat`, whose layout libc's is on these architectures.
    unsafe { call(libc::SYS_fstat, [int(fd), (&raw mut stat).addr(), 0, 0, 0, 0]) }?;
    let bytes = u64::try_from(stat.st_size).unwrap_or_default();
    Ok(File { device: stat.st_dev, inode: stat.st_ino, bytes })
}

/// The calling thread's memory policy: its mode, and its nodes, of which 1024 are seen.
pub(crate) fn memory_policy() -> Result<(c_int, [u64; 16])> {
    let (mut mode, mut nodes) = (0 as c_int, [0_u64; 16]);
    // One more than there are, since the kernel subtracts one.
    let bits = 16 * 64 + 1;
    let args = [(&raw mut mode).addr(), (&raw mut nodes).addr(), bits, 0, 0, 0];
    // SAFETY: the kernel writes an int, and at most 1024 bits to an array of so many.
    unsafe { call(libc::SYS_get_mempolicy, args) }?;
    Ok((mode, nodes))
}

/// `sendmsg`; the program answers for the message, which the kernel checks.
pub(crate) fn sendmsg(fd: c_int, message: usize, flags: c_int) -> Result<usize> {
    plain(libc::SYS_sendmsg, [int(fd), message, int(flags), 0, 0, 0])
}

/// `sendmmsg`, into whose messages the kernel writes how much it sent.
///
/// # Safety
/// So many messages of the program's, which nobody else uses meanwhile.
pub(crate) unsafe fn sendmmsg(
    fd: c_int,
    messages: usize,
    count: libc::c_uint,
    flags: c_int,
) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { call(libc::SYS_sendmmsg, [int(fd), messages, count as usize, int(flags), 0, 0]) }
}

/// The memory policy of the mapping at an address.
pub(crate) fn range_policy(address: usize) -> Result<(c_int, [u64; 16])> {
    /// `MPOL_F_ADDR`.
    const OF_ADDRESS: usize = 1 << 1;
    let (mut mode, mut nodes) = (0 as c_int, [0_u64; 16]);
    let places = [(&raw mut mode).addr(), (&raw mut nodes).addr()];
    let args = [places[0], places[1], 16 * 64 + 1, address, OF_ADDRESS, 0];
    // SAFETY: the kernel writes an int, and at most 1024 bits to an array of so many.
    unsafe { call(libc::SYS_get_mempolicy, args) }?;
    Ok((mode, nodes))
}

/// `mbind`; the program answers for the pointer to its nodes, which the kernel checks.
pub(crate) fn mbind(
    address: usize,
    bytes: usize,
    mode: c_int,
    nodes: usize,
    most: usize,
    flags: libc::c_uint,
) -> Result<usize> {
    plain(libc::SYS_mbind, [address, bytes, int(mode), nodes, most, flags as usize])
}

/// The nodes that the calling thread's cpuset allows it.
pub(crate) fn allowed_nodes() -> Result<[u64; 16]> {
    /// `MPOL_F_MEMS_ALLOWED`.
    const ALLOWED: usize = 1 << 2;
    let mut nodes = [0_u64; 16];
    let args = [0, (&raw mut nodes).addr(), 16 * 64 + 1, 0, ALLOWED, 0];
    // SAFETY: the kernel writes at most 1024 bits to an array of so many.
    unsafe { call(libc::SYS_get_mempolicy, args) }?;
    Ok(nodes)
}

/// The node of the CPU that the thread runs on.
pub(crate) fn current_node() -> Option<u32> {
    let mut node = 0_u32;
    // SAFETY: the kernel writes one unsigned int; the other pointers are null.
    let result = unsafe { call(libc::SYS_getcpu, [0, (&raw mut node).addr(), 0, 0, 0, 0]) };
    result.is_ok().then_some(node)
}

pub(crate) fn process() -> u32 {
    plain(libc::SYS_getpid, [0; 6]).map_or(0, |pid| pid as u32)
}

pub(crate) fn thread() -> u32 {
    plain(libc::SYS_gettid, [0; 6]).map_or(0, |tid| tid as u32)
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
    let (prot, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let stack = unsafe { mmap(0, STACK, prot, kind, -1, 0) }.ok()?;
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

/// A segment call of System V.
///
/// # Safety
/// As the call itself: it may map over, unmap, and write to a structure of the caller's.
pub(crate) unsafe fn shm(number: c_long, args: [usize; 3]) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { call(number, [args[0], args[1], args[2], 0, 0, 0]) }
}

/// Whether memory that may be written at the same time is all zero, as far as it is looked at.
///
/// # Safety
/// `from` is readable for `bytes`, a multiple of 8, and aligned to that.
pub(crate) unsafe fn is_zero(from: usize, bytes: usize) -> bool {
    let source = from as *const u64;
    let words = bytes / size_of::<u64>();
    // SAFETY: inside the source; volatile, since other threads may write there.
    (0..words).all(|word| unsafe { source.wrapping_add(word).read_volatile() } == 0)
}

/// Copies memory that may be written at the same time, leaving out each 4 KiB that are all zero: a
/// copy of ordinary pages then has none there. A word that another thread writes meanwhile is
/// copied in its old or its new state.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes`, a multiple of 4096, and both are aligned to
/// that; they do not overlap.
pub(crate) unsafe fn copy_unless_zero(from: usize, to: usize, bytes: usize) {
    const STEP: usize = 4096;
    for offset in (0..bytes).step_by(STEP) {
        // SAFETY: inside the source.
        if unsafe { is_zero(from + offset, STEP) } {
            continue;
        }
        for at in (offset..offset + STEP).step_by(size_of::<u64>()) {
            let (source, target) = ((from + at) as *const u64, (to + at) as *mut u64);
            // SAFETY: an aligned word inside the source; volatile, since others may write there.
            let word = unsafe { source.read_volatile() };
            // SAFETY: an aligned word inside the target.
            unsafe { target.write_volatile(word) };
        }
    }
}

/// Zeroes memory that may be read and written at the same time, word by word.
///
/// # Safety
/// `at` is writable for `bytes`, a multiple of 8, and aligned to that, and its content is given up.
pub(crate) unsafe fn clear(at: usize, bytes: usize) {
    for word in (at..at + bytes).step_by(size_of::<u64>()) {
        // SAFETY: an aligned word inside of the range; volatile, since others may use it.
        unsafe { (word as *mut u64).write_volatile(0) };
    }
}

/// Opens a file of that path for appending, made where it is missing, closed on exec. Waits for
/// nobody at the other end of a FIFO, and takes no terminal for the program's.
pub(crate) fn open_log(path: &CStr) -> Result<c_int> {
    let place = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT;
    let flags = place | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let args = [int(libc::AT_FDCWD), path.as_ptr().addr(), int(flags), 0o644, 0, 0];
    plain(libc::SYS_openat, args).map(|fd| c_int::try_from(fd).unwrap_or(-1))
}

/// Whether a page of a lent file has memory, or one of other memory is in the page tables.
pub(crate) fn is_resident(address: usize) -> bool {
    let mut byte = 0_u8;
    // SAFETY: the kernel writes one byte for the one base page asked about.
    let result =
        unsafe { call(libc::SYS_mincore, [address, 4096, (&raw mut byte).addr(), 0, 0, 0]) };
    result.is_ok() && byte & 1 == 1
}

/// `/proc/self/pagemap`: what is in this process's page tables. `mincore` looks at the file.
pub(crate) struct PageTables(Option<c_int>);

impl PageTables {
    pub(crate) fn open() -> Self {
        Self(open(c"/proc/self/pagemap").ok())
    }

    /// Whether there is an entry for the page at an address, be it one of a page that is just being
    /// moved; taken for so where that cannot be read.
    pub(crate) fn have(&self, address: usize) -> bool {
        /// The highest bits of an entry of 8 bytes per base page: present, and swapped or moving.
        const THERE: u64 = 3 << 62;
        let Some(fd) = self.0 else { return true };
        let mut entry = [0; 8];
        let read = pread(fd, &mut entry, (address / base_page() * 8) as u64);
        read != Ok(8) || u64::from_ne_bytes(entry) & THERE != 0
    }
}

impl Drop for PageTables {
    fn drop(&mut self) {
        if let Some(fd) = self.0 {
            close(fd);
        }
    }
}

/// Writes bytes to an address.
///
/// # Safety
/// `to` is writable for so many bytes, and no Rust value lies there.
pub(crate) unsafe fn put(bytes: &[u8], to: usize) {
    // SAFETY: the caller's contract; the slice is a value of Rust's, so they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
}
