// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program's own calls about memory, passed on to whoever stands behind this library.
//!
//! That is the C library, or another that was preloaded, or one that has patched the C library's
//! functions in memory, as UCX does to learn which registered memory is unmapped. Past it, by the
//! bare system call, it would learn nothing: UCX then gives its cache of registrations up, and
//! what libhugetlbfs or a profiler does with these calls would not happen.
//!
//! What this library maps and unmaps for itself is nobody else's to see: that is [`raw`].
//!
//! *Round and round*: who stands behind and finds the C library's function by its handle finds
//! this library's ([`crate::lookup`]), which passes on to it again. So a call that comes back
//! [`DEEPEST`] times is made bare. Before the process's start everything is, since nobody is
//! looked up yet.
//!
//! # Safety
//!
//! Each function has the contract of the call whose name it bears. What else is unsafe is calling
//! the functions found with the types that their headers give them.
#![expect(unsafe_code, reason = "calls functions of other libraries")]

use std::cell::Cell;
use std::mem::transmute;

use libc::{c_int, c_void, off64_t};

use crate::calls::Next;
use crate::raw::{self, Errno, Result, swap_errno};

static MMAP: Next = Next::new(c"mmap");
static MUNMAP: Next = Next::new(c"munmap");
static MREMAP: Next = Next::new(c"mremap");
static MADVISE: Next = Next::new(c"madvise");
static SHMGET: Next = Next::new(c"shmget");
static SHMAT: Next = Next::new(c"shmat");
static SHMDT: Next = Next::new(c"shmdt");
static SHMCTL: Next = Next::new(c"shmctl");

/// What stands behind may itself allocate and so come here again, which is no circle yet.
const DEEPEST: u32 = 4;

thread_local! {
    /// Calls of this thread that are on their way. Without a destructor, so that a look at it
    /// neither allocates nor is too late.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Looks all of them up.
pub(crate) fn start() {
    for next in [&MMAP, &MUNMAP, &MREMAP, &MADVISE, &SHMGET, &SHMAT, &SHMDT, &SHMCTL] {
        next.get();
    }
}

/// Makes the call by who is next, `by`, or bare, if nobody is known yet or it went round.
fn pass(
    next: &Next,
    by: impl FnOnce(usize) -> isize,
    bare: impl FnOnce() -> Result<usize>,
) -> Result<usize> {
    let at = next.known();
    let depth = if at == 0 { DEEPEST } else { DEPTH.get() };
    if depth >= DEEPEST {
        return bare();
    }
    DEPTH.set(depth + 1);
    let before = swap_errno(0);
    let done = by(at);
    let error = swap_errno(before);
    DEPTH.set(depth);
    if done == -1 { Err(Errno(error)) } else { Ok(done.cast_unsigned()) }
}

fn pointer(at: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at)
}

/// `mmap`.
///
/// # Safety
/// As [`raw::mmap`].
pub(crate) unsafe fn mmap(
    address: usize,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> Result<usize> {
    type Call = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, off64_t) -> isize;
    let by = |at| {
        // SAFETY: a function of that name has this type; an address is returned as a number is.
        let call = unsafe { transmute::<usize, Call>(at) };
        // SAFETY: the caller's contract.
        unsafe { call(pointer(address), bytes, prot, flags, fd, offset) }
    };
    // SAFETY: the caller's contract.
    pass(&MMAP, by, || unsafe { raw::mmap(address, bytes, prot, flags, fd, offset) })
}

/// `munmap`.
///
/// # Safety
/// As [`raw::munmap`].
pub(crate) unsafe fn munmap(address: usize, bytes: usize) -> Result<usize> {
    type Call = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
    let by = |at| {
        // SAFETY: a function of that name has this type.
        let call = unsafe { transmute::<usize, Call>(at) };
        // SAFETY: the caller's contract.
        unsafe { call(pointer(address), bytes) as isize }
    };
    // SAFETY: the caller's contract.
    pass(&MUNMAP, by, || unsafe { raw::munmap(address, bytes) })
}

/// `mremap`.
///
/// # Safety
/// As [`raw::mremap`].
pub(crate) unsafe fn mremap(
    old: usize,
    old_bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new: usize,
) -> Result<usize> {
    type Call = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, ...) -> isize;
    let by = |at| {
        // SAFETY: a function of that name has this type; its last argument is there or not.
        let call = unsafe { transmute::<usize, Call>(at) };
        // SAFETY: the caller's contract.
        unsafe { call(pointer(old), old_bytes, new_bytes, flags, pointer(new)) }
    };
    // SAFETY: the caller's contract.
    pass(&MREMAP, by, || unsafe { raw::mremap(old, old_bytes, new_bytes, flags, new) })
}

/// `madvise`.
///
/// # Safety
/// As [`raw::madvise`].
pub(crate) unsafe fn madvise(address: usize, bytes: usize, advice: c_int) -> Result<usize> {
    type Call = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
    let by = |at| {
        // SAFETY: a function of that name has this type.
        let call = unsafe { transmute::<usize, Call>(at) };
        // SAFETY: the caller's contract.
        unsafe { call(pointer(address), bytes, advice) as isize }
    };
    // SAFETY: the caller's contract.
    pass(&MADVISE, by, || unsafe { raw::madvise(address, bytes, advice) })
}

/// `shmget`.
pub(crate) fn shmget(key: c_int, bytes: usize, flags: c_int) -> Result<usize> {
    let by = |at| {
        // SAFETY: a function of that name has this type.
        let call = unsafe { transmute::<usize, extern "C" fn(c_int, usize, c_int) -> c_int>(at) };
        call(key, bytes, flags) as isize
    };
    let args = [number(key), bytes, number(flags)];
    // SAFETY: numbers alone.
    pass(&SHMGET, by, || unsafe { raw::shm(libc::SYS_shmget, args) })
}

/// `shmat`.
///
/// # Safety
/// As the call itself: with `SHM_REMAP` it replaces what was there.
pub(crate) unsafe fn shmat(id: c_int, address: usize, flags: c_int) -> Result<usize> {
    type Call = unsafe extern "C" fn(c_int, *const c_void, c_int) -> isize;
    let by = |at| {
        // SAFETY: a function of that name has this type; an address is returned as a number is.
        let call = unsafe { transmute::<usize, Call>(at) };
        // SAFETY: the caller's contract.
        unsafe { call(id, pointer(address), flags) }
    };
    let args = [number(id), address, number(flags)];
    // SAFETY: the caller's contract.
    pass(&SHMAT, by, || unsafe { raw::shm(libc::SYS_shmat, args) })
}

/// `shmdt`.
///
/// # Safety
/// As the call itself: the memory is gone.
pub(crate) unsafe fn shmdt(address: usize) -> Result<usize> {
    type Call = unsafe extern "C" fn(*const c_void) -> c_int;
    let by = |at| {
        // SAFETY: a function of that name has this type.
        let call = unsafe { transmute::<usize, Call>(at) };
        // SAFETY: the caller's contract.
        unsafe { call(pointer(address)) as isize }
    };
    // SAFETY: the caller's contract.
    pass(&SHMDT, by, || unsafe { raw::shm(libc::SYS_shmdt, [address, 0, 0]) })
}

/// `shmctl`.
///
/// # Safety
/// As the call itself: it writes to a structure of the caller's.
pub(crate) unsafe fn shmctl(id: c_int, command: c_int, out: usize) -> Result<usize> {
    type Call = unsafe extern "C" fn(c_int, c_int, *mut c_void) -> c_int;
    let by = |at| {
        // SAFETY: a function of that name has this type.
        let call = unsafe { transmute::<usize, Call>(at) };
        // SAFETY: the caller's contract.
        unsafe { call(id, command, pointer(out)) as isize }
    };
    let args = [number(id), number(command), out];
    // SAFETY: the caller's contract.
    pass(&SHMCTL, by, || unsafe { raw::shm(libc::SYS_shmctl, args) })
}

fn number(value: c_int) -> usize {
    // The kernel looks at the lower half.
    value.cast_unsigned() as usize
}
