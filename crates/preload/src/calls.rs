// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exported functions, in the place of the C library's.
//!
//! Each looks, without a lock, whether it is about anything of the shim's, and makes the untouched
//! call if not, by who stands behind it ([`crate::next`]).
//!
//! # Safety
//!
//! Each function has the contract of the call whose name it bears, and passes that on. What else is
//! unsafe is reading the C library's table of symbols: the functions found there have the types
//! that their headers give them.
#![expect(unsafe_code, reason = "functions with the C library's names and contracts")]

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_long, c_uint, c_ulong, c_void, key_t, off64_t, pid_t, shmid_ds, size_t};

use crate::anonymous::{self, Request};
use crate::config::{AtFork, config, is_malloc_told, is_off};
use crate::counts::{FOPEN, OPEN, OPEN_2, OPENAT, OPENAT_2};
use crate::guard::{Guard, State, WAIT, WAIT_LONG};
use crate::maps::Piece;
use crate::memfd_calls::{FALLOCATE, FCNTL, POSIX_FALLOCATE};
use crate::passing::{SENDMMSG, SENDMSG};
use crate::raw::{self, Errno, c_int_result, c_result};
use crate::unlinked::{self, Unlinked};
use crate::{bare, defect, lookup, memfd, next, places, private, rebind, say, segment};

/// Runs `body` behind the lock; `None` if that cannot be had.
pub(crate) fn guarded<T>(
    patience: std::time::Duration,
    body: impl FnOnce(&mut State) -> T,
) -> Option<T> {
    let mut guard = Guard::enter(patience)?;
    Some(body(guard.state()))
}

fn pointer(result: raw::Result<usize>) -> *mut c_void {
    // MAP_FAILED is -1.
    std::ptr::without_provenance_mut(c_result(result).cast_unsigned())
}

/// A function of the C library's that this one stands before, looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    at: AtomicUsize,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, at: AtomicUsize::new(0) }
    }

    /// Its address, if it was looked up; else 0.
    pub(crate) fn known(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    /// Its address; 0 if there is none.
    pub(crate) fn get(&self) -> usize {
        match self.at.load(Ordering::Relaxed) {
            0 => {
                // SAFETY: a name that ends with a zero byte.
                let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
                self.at.store(found.addr(), Ordering::Relaxed);
                found.addr()
            }
            at => at,
        }
    }
}

static FORK: Next = Next::new(c"fork");

/// Looks everything up while the process has one thread and the loader no other work: later a
/// caller may hold locks that `dlsym` wants.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        let passing = [&SENDMSG, &SENDMMSG, &OPEN, &OPEN_2, &OPENAT, &OPENAT_2, &FOPEN];
        for one in [&FORK, &FCNTL, &FALLOCATE, &POSIX_FALLOCATE].into_iter().chain(passing) {
            one.get();
        }
        next::start();
        unlinked::parts();
        defect::install();
        bare::find_real();
        lookup::start();
        guarded(WAIT, |_| is_malloc_told().then(config));
        // SAFETY: three functions that live as long as the process.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    }
    start
};

/// `mmap(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> *mut c_void {
    let start = address.addr();
    // SAFETY: the caller's contract.
    let untouched = || unsafe { next::mmap(start, bytes, prot, flags, fd, offset) };
    let request = Request { address: start, bytes, prot, flags, file: None };
    let for_huge_pages = request.is_for_huge_pages() && !is_off();
    let of_file = flags & libc::MAP_ANONYMOUS == 0;
    let of_memfd = of_file && memfd::is_any();
    let unlinked = if of_file && !is_off() { unlinked::of(fd) } else { None };
    if let Some(file) = unlinked.filter(|file| file.is_all(bytes, offset)) {
        // SAFETY: the caller's contract.
        let map = |state: &mut State| unsafe { map_unlinked(state, request, fd, file) };
        let mapped = guarded(WAIT, |state| file.is_ours(fd).then(|| map(state))).flatten();
        if let Some(mapped) = mapped {
            return pointer(mapped);
        }
    }
    if !for_huge_pages && !of_memfd {
        return pointer(untouched());
    }
    let served = guarded(WAIT, |state| {
        if of_memfd {
            let private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
            state.memfds.before_mapping(fd, private);
        }
        if for_huge_pages {
            // SAFETY: the caller's contract.
            unsafe { anonymous::map(&mut state.lender, &mut state.stays, request) }
        } else {
            untouched()
        }
    });
    pointer(served.unwrap_or_else(untouched))
}

/// The first mapping of a file without a name.
///
/// # Safety
/// As `mmap` itself.
unsafe fn map_unlinked(
    state: &mut State,
    request: Request,
    fd: c_int,
    file: Unlinked,
) -> raw::Result<usize> {
    let Request { address, bytes, prot, flags, .. } = request;
    if flags & libc::MAP_TYPE == libc::MAP_PRIVATE {
        let request = Request { file: Some((fd, file.page)), ..request };
        // SAFETY: the caller's contract.
        return unsafe { anonymous::map(&mut state.lender, &mut state.stays, request) };
    }
    // SAFETY: the caller's contract.
    let map = || unsafe { next::mmap(address, bytes, prot, flags, fd, 0) };
    let State { lender, stays, memfds, .. } = state;
    let is_served = file.serve((lender, stays, memfds), fd, false);
    match map() {
        // The pages may be the daemon's: with it, as without it, the program is to get them.
        Err(Errno(libc::ENOMEM)) if !is_served && file.serve((lender, stays, memfds), fd, true) => {
            map()
        }
        done => done,
    }
}

/// `mmap64`, the same where `off_t` has 64 bits.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { mmap(address, bytes, prot, flags, fd, offset) }
}

/// `munmap(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    let start = address.addr();
    // SAFETY: the caller's contract.
    let untouched = || unsafe { next::munmap(start, bytes) };
    if !private::may_be_in(start, bytes) {
        let done = untouched();
        if segment::is_any() {
            guarded(WAIT, |state| state.segments.tidy());
        }
        return c_int_result(done);
    }
    // The guard is there for a fork beside it, which must inherit no descriptor of the shim's; it
    // is not needed for what is done, and a fork that is under way is not waited for.
    let entered = Guard::enter_or_pass(WAIT_LONG);
    // SAFETY: the caller's contract.
    let done = unsafe { private::unmap(start, bytes) };
    drop(entered);
    c_int_result(done)
}

/// `mremap(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_bytes: size_t,
    new_bytes: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // Without these flags the caller has not passed it, and anything may be in the register.
    let has_new = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let (old, new) = (old.addr(), if has_new { new.addr() } else { 0 });
    let of_a_row = flags & libc::MREMAP_FIXED != 0 && places::is_any();
    if !of_a_row && !private::may_be_in(old, old_bytes) {
        // SAFETY: the caller's contract.
        return pointer(unsafe { next::mremap(old, old_bytes, new_bytes, flags, new) });
    }
    let entered = Guard::enter_or_pass(WAIT_LONG);
    // SAFETY: the caller's contract.
    let done = unsafe { private::remap(old, old_bytes, new_bytes, flags, new) };
    drop(entered);
    pointer(done)
}

/// `madvise(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    let start = address.addr();
    // SAFETY: the caller's contract.
    let untouched = || unsafe { next::madvise(start, bytes, advice) };
    if !private::may_be_in(start, bytes) {
        return c_int_result(untouched());
    }
    let mut entered = Guard::enter_or_pass(WAIT_LONG);
    let known = entered.guard.as_mut().map(|guard| &mut guard.state().stays);
    // SAFETY: the caller's contract.
    let mut done = unsafe { private::advise(known, start, bytes, advice) };
    if done == Err(Errno(libc::EMFILE)) {
        let known = entered.guard.as_mut().map(|guard| &mut guard.state().stays);
        // SAFETY: the caller's contract.
        let body = || unsafe { private::advise(known, start, bytes, advice) };
        done = raw::with_descriptors(body).unwrap_or(done);
    }
    drop(entered);
    c_int_result(done)
}

/// `mbind(2)`, which is libnuma's function.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mbind(
    address: *mut c_void,
    bytes: size_t,
    mode: c_int,
    nodes: *const c_ulong,
    most: size_t,
    flags: c_uint,
) -> c_long {
    let start = address.addr();
    let call = |start: usize, bytes: usize, flags: c_uint| {
        raw::mbind(start, bytes, mode, nodes.addr(), most, flags)
    };
    let result = call(start, bytes, flags);
    if result.is_ok() && places::is_any() {
        guarded(WAIT_LONG, |state| {
            let again = |piece: Piece| {
                // The same call as before, which succeeded.
                let _ = call(piece.start, piece.end - piece.start, 0);
            };
            // SAFETY: the caller's contract.
            unsafe { rebind::bound(state, start, bytes, &again) };
        });
    }
    c_result(result) as c_long
}

/// `shmget(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn shmget(key: key_t, bytes: size_t, flags: c_int) -> c_int {
    if flags & libc::SHM_HUGETLB != 0 && !is_off() {
        let served = guarded(WAIT, |state| {
            let State { lender, stays, segments, .. } = state;
            segment::get(lender, stays, segments, key, bytes, flags)
        });
        if let Some(Some(id)) = served {
            return id;
        }
    }
    c_int_result(next::shmget(key, bytes, flags))
}

/// `shmat(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let at = address.addr();
    if segment::is_any() {
        // SAFETY: the caller's contract.
        let served = guarded(WAIT_LONG, |state| unsafe { state.segments.attach(id, at, flags) });
        if let Some(Some(result)) = served {
            return pointer(result);
        }
    }
    // SAFETY: the caller's contract.
    pointer(unsafe { next::shmat(id, at, flags) })
}

/// `shmdt(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(address: *const c_void) -> c_int {
    let at = address.addr();
    if segment::is_any() {
        // SAFETY: the caller's contract.
        let served = guarded(WAIT_LONG, |state| unsafe { state.segments.detach(at) });
        if let Some(Some(result)) = served {
            return c_int_result(result);
        }
    }
    // SAFETY: the caller's contract.
    c_int_result(unsafe { next::shmdt(at) })
}

/// `shmctl(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmctl(id: c_int, command: c_int, out: *mut shmid_ds) -> c_int {
    if segment::is_any() {
        let served = guarded(WAIT_LONG, |state| state.segments.control(id, command, out.addr()));
        if let Some(Some(result)) = served {
            return c_int_result(result);
        }
    }
    // SAFETY: the caller's contract.
    c_int_result(unsafe { next::shmctl(id, command, out.addr()) })
}

/// Takes the lock for a fork and keeps it until the fork is over.
fn prepare() -> raw::Result<()> {
    let Some(mut guard) = Guard::enter_for_fork(WAIT_LONG) else { return Ok(()) };
    let state = guard.state();
    let result = if places::is_any_private() {
        let how = config().private.unwrap_or(AtFork::Drop);
        match state.fork.prepare(&state.stays, how) {
            Err(Errno(libc::EMFILE)) => {
                let again = raw::with_descriptors(|| state.fork.prepare(&state.stays, how));
                again.unwrap_or(Err(Errno(libc::ENOMEM)))
            }
            result => result,
        }
    } else {
        Ok(())
    };
    if result.is_ok() {
        guard.keep();
    }
    result
}

/// `fork(2)`. Here rather than in `pthread_atfork` alone, because a handler cannot refuse.
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> pid_t {
    if places::is_any_private()
        && let Err(error) = prepare()
    {
        return c_int_result(Err(error));
    }
    match FORK.get() {
        0 => {
            finish(false);
            c_int_result(Err(Errno(libc::ENOSYS)))
        }
        at => {
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe { std::mem::transmute::<usize, extern "C" fn() -> pid_t>(at) };
            next()
        }
    }
}

/// Runs before every fork of the C library's, also where `daemon` or `forkpty` make one.
extern "C" fn before_fork() {
    if Guard::is_mine() {
        return;
    }
    if let Err(error) = prepare() {
        guarded(WAIT, |_| {
            say::say(format_args!("the child does not have the private memory: {error}"));
        });
        // The lock all the same, so that the child finds it in order.
        if let Some(guard) = Guard::enter_for_fork(WAIT_LONG) {
            guard.keep();
        }
    }
}

extern "C" fn in_parent() {
    finish(false);
}

extern "C" fn in_child() {
    finish(true);
}

/// The other half of [`prepare`].
fn finish(in_child: bool) {
    unlinked::parts();
    let Some(mut guard) = Guard::kept(in_child) else { return };
    let state = guard.state();
    state.memfds.forked();
    places::forked();
    if in_child { state.fork.in_child(&mut state.stays) } else { state.fork.in_parent() }
}
