// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exported calls about segments of System V.
//!
//! # Safety
//!
//! Each function has the contract of the call that it is named after, and passes that on.
#![expect(unsafe_code, reason = "functions with the C library's names and contracts")]

use libc::{c_int, c_void, key_t, shmid_ds, size_t};

use crate::anonymous::page_of;
use crate::config::{config, is_off};
use crate::guard::{LENT_LOCK_TIMEOUT, LOAN_LOCK_TIMEOUT, State, guarded, may_serve};
use crate::next::{SHMAT, SHMCTL, SHMDT, SHMGET};
use crate::raw::{self, c_int_result, c_result, int};
use crate::{handback, segment};

/// `shmget(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn shmget(key: key_t, bytes: size_t, flags: c_int) -> c_int {
    let is_asked_for = flags & libc::SHM_HUGETLB != 0 && !is_off();
    if is_asked_for && may_serve() {
        let served = guarded(LOAN_LOCK_TIMEOUT, |state| {
            let State { lender, files, segments, .. } = state;
            segment::get(lender, files, segments, key, bytes, flags)
        });
        if let Some(Some(id)) = served {
            return id;
        }
    }
    let args = [int(key), bytes, int(flags)];
    let errno = raw::errno();
    let call = || {
        SHMGET.call(
            |shmget| shmget(key, bytes, flags),
            // SAFETY: numbers alone.
            || c_int_result(unsafe { raw::shm(libc::SYS_shmget, args) }),
        )
    };
    let mut done = call();
    if done < 0 && is_asked_for && raw::errno() == libc::ENOMEM {
        let page = || Some(page_of(flags.cast_unsigned(), config().default_page));
        done = handback::retry(bytes as u64, page, call).unwrap_or(done);
        if done >= 0 {
            raw::swap_errno(errno);
        }
    }
    done
}

/// `shmat(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let pointer = |done| std::ptr::without_provenance_mut(c_result(done).cast_unsigned());
    if segment::is_any() {
        let at = address.addr();
        // SAFETY: the caller's contract.
        let attach = |state: &mut State| unsafe { state.segments.attach(id, at, flags) };
        if let Some(Some(result)) = guarded(LENT_LOCK_TIMEOUT, attach) {
            return pointer(result);
        }
    }
    SHMAT.call(
        // SAFETY: the caller's contract.
        |shmat| unsafe { shmat(id, address, flags) },
        // SAFETY: the caller's contract.
        || pointer(unsafe { raw::shm(libc::SYS_shmat, [int(id), address.addr(), int(flags)]) }),
    )
}

/// `shmdt(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(address: *const c_void) -> c_int {
    if segment::is_any() {
        // SAFETY: the caller's contract.
        let detach = |state: &mut State| unsafe { state.segments.detach(address.addr()) };
        if let Some(Some(result)) = guarded(LENT_LOCK_TIMEOUT, detach) {
            return c_int_result(result);
        }
    }
    SHMDT.call(
        // SAFETY: the caller's contract.
        |shmdt| unsafe { shmdt(address) },
        // SAFETY: the caller's contract.
        || c_int_result(unsafe { raw::shm(libc::SYS_shmdt, [address.addr(), 0, 0]) }),
    )
}

/// `shmctl(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmctl(id: c_int, command: c_int, out: *mut shmid_ds) -> c_int {
    if segment::is_any() {
        let control = |state: &mut State| state.segments.control(id, command, out.addr());
        if let Some(Some(result)) = guarded(LENT_LOCK_TIMEOUT, control) {
            return c_int_result(result);
        }
    }
    SHMCTL.call(
        // SAFETY: the caller's contract.
        |shmctl| unsafe { shmctl(id, command, out) },
        // SAFETY: the caller's contract.
        || c_int_result(unsafe { raw::shm(libc::SYS_shmctl, [int(id), int(command), out.addr()]) }),
    )
}
