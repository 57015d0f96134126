// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exported calls that make files of huge pages, and calls that give them length and seals.
//!
//! # Safety
//!
//! Each function has the contract of the call that it is named after, and passes that on.
#![expect(unsafe_code, reason = "functions with the C library's names and contracts")]

use libc::{c_char, c_int, c_uint, off64_t};

use crate::config::is_off;
use crate::guard::{LENT_LOCK_TIMEOUT, LOAN_LOCK_TIMEOUT, State, guarded, may_serve};
use crate::next::{
    FALLOCATE, FALLOCATE64, FCNTL, FCNTL64, FSTATFS, FSTATFS64, FTRUNCATE, FTRUNCATE64,
    MEMFD_CREATE, MKOSTEMP, MKOSTEMP64, MKSTEMP, MKSTEMP64, Next, POSIX_FALLOCATE,
    POSIX_FALLOCATE64, STATFS, STATFS64,
};
use crate::raw::{self, Errno, c_int_result};
use crate::watched_fds::{self, Kind, kind_of};
use crate::{handback, memfd};

/// `memfd_create(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    let fd = MEMFD_CREATE.call(
        // SAFETY: the caller's contract.
        |create| unsafe { create(name, flags) },
        || c_int_result(raw::memfd_create(name, flags)),
    );
    if fd >= 0 && flags & libc::MFD_HUGETLB != 0 && !is_off() && may_serve() {
        guarded(LOAN_LOCK_TIMEOUT, |state| state.memfds.made(fd, flags));
    }
    fd
}

/// After a pending file got its size.
fn sized(fd: c_int) {
    if kind_of(fd) == Some(Kind::Pending) {
        guarded(LOAN_LOCK_TIMEOUT, |State { lender, files, memfds, .. }| {
            memfds.sized(lender, files, fd);
        });
    }
}

/// Whether emulated seals forbid a new length.
fn is_forbidden(fd: c_int, bytes: off64_t) -> bool {
    let look = |state: &mut State| memfd::forbids_length(&state.files, fd, bytes);
    memfd::is_any_sealed() && guarded(LENT_LOCK_TIMEOUT, look) == Some(true)
}

fn truncate(
    next: &Next<extern "C" fn(c_int, off64_t) -> c_int>,
    fd: c_int,
    bytes: off64_t,
) -> c_int {
    if is_forbidden(fd, bytes) {
        return c_int_result(Err(Errno(libc::EPERM)));
    }
    let done =
        next.call(|ftruncate| ftruncate(fd, bytes), || c_int_result(raw::ftruncate(fd, bytes)));
    if done == 0 {
        sized(fd);
    }
    done
}

/// `ftruncate(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn ftruncate(fd: c_int, bytes: off64_t) -> c_int {
    truncate(&FTRUNCATE, fd, bytes)
}

/// `ftruncate64`, the same where `off_t` has 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn ftruncate64(fd: c_int, bytes: off64_t) -> c_int {
    truncate(&FTRUNCATE64, fd, bytes)
}

/// Before a pending file is allocated as a whole.
fn allocated(fd: c_int, mode: c_int, offset: off64_t, bytes: off64_t) {
    if mode == 0 && offset == 0 && bytes > 0 && kind_of(fd) == Some(Kind::Pending) {
        guarded(LOAN_LOCK_TIMEOUT, |State { lender, files, memfds, .. }| {
            memfds.allocated(lender, files, fd, bytes);
        });
    }
}

/// Whether emulated seals forbid an allocation, which may make a file longer.
fn is_forbidden_growth(fd: c_int, mode: c_int, offset: off64_t, bytes: off64_t) -> bool {
    if mode & libc::FALLOC_FL_KEEP_SIZE != 0 || !memfd::is_any_sealed() {
        return false;
    }
    let Some(end) = offset.checked_add(bytes).filter(|_| offset >= 0 && bytes > 0) else {
        return false;
    };
    let look = |state: &mut State| {
        let is_sealed =
            memfd::seals_of(&state.files, fd).is_some_and(|s| s & libc::F_SEAL_GROW != 0);
        let now = raw::file(fd).map_or(0, |file| file.bytes);
        is_sealed && u64::try_from(end).is_ok_and(|end| end > now)
    };
    guarded(LENT_LOCK_TIMEOUT, look) == Some(true)
}

type Fallocate = extern "C" fn(c_int, c_int, off64_t, off64_t) -> c_int;

fn allocate(
    next: &Next<Fallocate>,
    fd: c_int,
    mode: c_int,
    offset: off64_t,
    bytes: off64_t,
) -> c_int {
    if is_forbidden_growth(fd, mode, offset, bytes) {
        return c_int_result(Err(Errno(libc::EPERM)));
    }
    allocated(fd, mode, offset, bytes);
    let errno = raw::errno();
    let call = || {
        next.call(
            |fallocate| fallocate(fd, mode, offset, bytes),
            || c_int_result(raw::fallocate(fd, mode, offset, bytes)),
        )
    };
    let mut done = call();
    if done != 0 && raw::errno() == libc::ENOSPC {
        done =
            handback::retry(bytes.cast_unsigned(), || raw::huge_page_of(fd), call).unwrap_or(done);
        if done == 0 {
            raw::swap_errno(errno);
        }
    }
    done
}

/// `fallocate(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn fallocate(fd: c_int, mode: c_int, offset: off64_t, bytes: off64_t) -> c_int {
    allocate(&FALLOCATE, fd, mode, offset, bytes)
}

/// `fallocate64`, the same where `off_t` has 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn fallocate64(fd: c_int, mode: c_int, offset: off64_t, bytes: off64_t) -> c_int {
    allocate(&FALLOCATE64, fd, mode, offset, bytes)
}

type PosixFallocate = extern "C" fn(c_int, off64_t, off64_t) -> c_int;

fn posix_allocate(
    next: &Next<PosixFallocate>,
    fd: c_int,
    offset: off64_t,
    bytes: off64_t,
) -> c_int {
    if is_forbidden_growth(fd, 0, offset, bytes) {
        return libc::EPERM;
    }
    allocated(fd, 0, offset, bytes);
    let call = || {
        next.call(
            |fallocate| fallocate(fd, offset, bytes),
            || raw::fallocate(fd, 0, offset, bytes).map_or_else(|error| error.0, |_| 0),
        )
    };
    match call() {
        libc::ENOSPC => handback::retry(bytes.cast_unsigned(), || raw::huge_page_of(fd), call)
            .unwrap_or(libc::ENOSPC),
        done => done,
    }
}

/// `posix_fallocate(3)`, which returns its error.
#[unsafe(no_mangle)]
pub extern "C" fn posix_fallocate(fd: c_int, offset: off64_t, bytes: off64_t) -> c_int {
    posix_allocate(&POSIX_FALLOCATE, fd, offset, bytes)
}

/// `posix_fallocate64`, the same where `off_t` has 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn posix_fallocate64(fd: c_int, offset: off64_t, bytes: off64_t) -> c_int {
    posix_allocate(&POSIX_FALLOCATE64, fd, offset, bytes)
}

type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;

/// # Safety
/// As `fcntl`.
unsafe fn control(next: &Next<Fcntl>, fd: c_int, command: c_int, argument: usize) -> c_int {
    let done = next.call(
        // SAFETY: the caller's contract. A register's worth of argument lies in the same place.
        |fcntl| unsafe { fcntl(fd, command, argument) },
        // SAFETY: the caller's contract.
        || c_int_result(unsafe { raw::fcntl(fd, command, argument) }),
    );
    // A lent file has this one seal of the kernel's.
    if command == libc::F_GET_SEALS && done == libc::F_SEAL_SEAL && memfd::is_any_sealed() {
        let look = |state: &mut State| memfd::seals_of(&state.files, fd);
        return guarded(LENT_LOCK_TIMEOUT, look).flatten().unwrap_or(done);
    }
    done
}

/// `fcntl(2)`. Its third argument is an int or a pointer, which both lie in the same register.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { control(&FCNTL, fd, command, argument) }
}

/// `fcntl64`, the same where `off_t` has 64 bits.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { control(&FCNTL64, fd, command, argument) }
}

/// Watches a file that `mkstemp` made. A program that has asked for the kind of a file system
/// before, as libhugetlbfs does, makes it in a directory of huge pages.
fn made(fd: c_int) -> c_int {
    if fd >= 0 && !is_off() {
        watched_fds::watch(fd, Kind::Made);
        if watched_fds::has_seen_hugetlbfs() {
            guarded(LOAN_LOCK_TIMEOUT, |state| state.memfds.made_in_directory(fd));
        }
    }
    fd
}

/// Notes that a program has found hugetlbfs. It may ask by a descriptor of `mkstemp`'s, as QEMU
/// does.
///
/// # Safety
/// `out` is the argument of the successful call.
unsafe fn looked(done: c_int, fd: Option<c_int>, out: *const libc::statfs) -> c_int {
    // SAFETY: the caller's contract: the call has written it.
    if done == 0 && unsafe { (*out).f_type } == libc::HUGETLBFS_MAGIC && !is_off() {
        watched_fds::saw_hugetlbfs();
        if let Some(fd) = fd.filter(|fd| kind_of(*fd) == Some(Kind::Made)) {
            guarded(LOAN_LOCK_TIMEOUT, |state| state.memfds.made_in_directory(fd));
        }
    }
    done
}

fn not_implemented() -> c_int {
    c_int_result(Err(Errno(libc::ENOSYS)))
}

macro_rules! mkstemp {
    ($($(#[$doc:meta])* $name:ident => $next:ident ($($flags:ident)?);)*) => {
        $($(#[$doc])*
        ///
        /// # Safety
        /// As the call itself.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(template: *mut c_char $(, $flags: c_int)?) -> c_int {
            // SAFETY: the caller's contract.
            made($next.call(|mkstemp| unsafe { mkstemp(template $(, $flags)?) }, not_implemented))
        })*
    };
}

mkstemp! {
    /// `mkstemp(3)`.
    mkstemp => MKSTEMP();
    /// `mkstemp64`, the same where `off_t` has 64 bits.
    mkstemp64 => MKSTEMP64();
    /// `mkostemp(3)`.
    mkostemp => MKOSTEMP(flags);
    /// `mkostemp64`, the same where `off_t` has 64 bits.
    mkostemp64 => MKOSTEMP64(flags);
}

macro_rules! statfs {
    ($($(#[$doc:meta])* $name:ident => $next:ident ($of:ident: $kind:ty, $fd:expr);)*) => {
        $($(#[$doc])*
        ///
        /// # Safety
        /// As the call itself.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($of: $kind, out: *mut libc::statfs) -> c_int {
            // SAFETY: the caller's contract.
            let done = $next.call(|statfs| unsafe { statfs($of, out) }, not_implemented);
            // SAFETY: the same.
            unsafe { looked(done, $fd, out) }
        })*
    };
}

statfs! {
    /// `statfs(2)`.
    statfs => STATFS(path: *const c_char, None);
    /// `statfs64`, the same where `off_t` has 64 bits.
    statfs64 => STATFS64(path: *const c_char, None);
    /// `fstatfs(2)`.
    fstatfs => FSTATFS(fd: c_int, Some(fd));
    /// `fstatfs64`, the same where `off_t` has 64 bits.
    fstatfs64 => FSTATFS64(fd: c_int, Some(fd));
}
