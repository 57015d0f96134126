// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memfd_create`, and the calls by descriptor that give a memfd its length, its memory and its
//! seals.
//!
//! # Safety
//!
//! `fcntl` has the contract of the call, and passes that on. What else is unsafe is calling the C
//! library's functions with the types that their headers give them.
#![expect(unsafe_code, reason = "functions with the C library's names and contracts")]

use libc::{c_char, c_int, c_uint, off64_t};

use crate::calls::{Next, guarded};
use crate::config::{config, is_off};
use crate::guard::{State, WAIT};
use crate::memfd;
use crate::raw::{self, Errno, c_int_result};

pub(crate) static FCNTL: Next = Next::new(c"fcntl64");
pub(crate) static FALLOCATE: Next = Next::new(c"fallocate64");
pub(crate) static POSIX_FALLOCATE: Next = Next::new(c"posix_fallocate64");

/// `memfd_create(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    let fd = c_int_result(raw::memfd_create(name, flags));
    if fd >= 0 && flags & libc::MFD_HUGETLB != 0 && !is_off() {
        guarded(WAIT, |state| {
            if config().enabled {
                state.memfds.made(fd, flags, config().default_page);
            }
        });
    }
    fd
}

fn sized(state: &mut State, fd: c_int, bytes: off64_t) {
    state.memfds.sized(&mut state.lender, &mut state.stays, fd, bytes);
}

/// `ftruncate(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn ftruncate(fd: c_int, bytes: off64_t) -> c_int {
    if memfd::is_any() {
        let allowed = guarded(WAIT, |state| {
            sized(state, fd, bytes);
            state.memfds.check_length(fd, bytes)
        });
        if let Some(Err(error)) = allowed {
            return c_int_result(Err(error));
        }
    }
    c_int_result(raw::ftruncate(fd, bytes))
}

/// `ftruncate64`, the same where `off_t` has 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn ftruncate64(fd: c_int, bytes: off64_t) -> c_int {
    ftruncate(fd, bytes)
}

/// What `fallocate` of a whole empty memfd means, and what seals say about any other.
fn before_allocation(fd: c_int, mode: c_int, offset: off64_t, bytes: off64_t) -> raw::Result<()> {
    let Some(end) = offset.checked_add(bytes).filter(|_| mode == 0 && memfd::is_any()) else {
        return Ok(());
    };
    let allowed = guarded(WAIT, |state| {
        if offset == 0 {
            sized(state, fd, end);
        }
        let now = raw::file(fd).map_or(0, |file| file.bytes);
        let is_longer = u64::try_from(end).is_ok_and(|end| end > now);
        if is_longer { state.memfds.check_length(fd, end) } else { Ok(()) }
    });
    allowed.unwrap_or(Ok(()))
}

/// `fallocate(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn fallocate(fd: c_int, mode: c_int, offset: off64_t, bytes: off64_t) -> c_int {
    if let Err(error) = before_allocation(fd, mode, offset, bytes) {
        return c_int_result(Err(error));
    }
    match FALLOCATE.get() {
        0 => c_int_result(raw::fallocate(fd, mode, offset, bytes)),
        at => {
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe {
                std::mem::transmute::<usize, extern "C" fn(c_int, c_int, off64_t, off64_t) -> c_int>(
                    at,
                )
            };
            next(fd, mode, offset, bytes)
        }
    }
}

/// `fallocate64`, the same where `off_t` has 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn fallocate64(fd: c_int, mode: c_int, offset: off64_t, bytes: off64_t) -> c_int {
    fallocate(fd, mode, offset, bytes)
}

/// `posix_fallocate(3)`, which returns its error.
#[unsafe(no_mangle)]
pub extern "C" fn posix_fallocate(fd: c_int, offset: off64_t, bytes: off64_t) -> c_int {
    if let Err(Errno(number)) = before_allocation(fd, 0, offset, bytes) {
        return number;
    }
    match POSIX_FALLOCATE.get() {
        0 => raw::fallocate(fd, 0, offset, bytes).map_or_else(|error| error.0, |_| 0),
        at => {
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe {
                std::mem::transmute::<usize, extern "C" fn(c_int, off64_t, off64_t) -> c_int>(at)
            };
            next(fd, offset, bytes)
        }
    }
}

/// `posix_fallocate64`, the same where `off_t` has 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn posix_fallocate64(fd: c_int, offset: off64_t, bytes: off64_t) -> c_int {
    posix_fallocate(fd, offset, bytes)
}

/// `fcntl(2)`. Its third argument is an int or a pointer, which both lie in the same register.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if matches!(command, libc::F_ADD_SEALS | libc::F_GET_SEALS) && memfd::is_any() {
        #[expect(clippy::cast_possible_truncation, reason = "an int in a register")]
        let seals = argument as c_int;
        let add = (command == libc::F_ADD_SEALS).then_some(seals);
        if let Some(Some(result)) = guarded(WAIT, |state| state.memfds.seals(fd, add)) {
            return c_int_result(result);
        }
    }
    match FCNTL.get() {
        // SAFETY: the caller's contract.
        0 => c_int_result(unsafe { raw::fcntl(fd, command, argument) }),
        at => {
            // SAFETY: the C library's function is variadic; a register's worth of argument is
            // passed to it in the same place.
            let next = unsafe {
                std::mem::transmute::<usize, unsafe extern "C" fn(c_int, c_int, ...) -> c_int>(at)
            };
            // SAFETY: the caller's contract.
            unsafe { next(fd, command, argument) }
        }
    }
}

/// `fcntl64`, the same where `off_t` has 64 bits.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { fcntl(fd, command, argument) }
}
