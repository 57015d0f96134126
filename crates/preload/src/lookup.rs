// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dlsym`: a program that looks a call up in the C library's own handle finds this library's
//! function, as every program does that the dynamic linker serves. Python's
//! `ctypes.CDLL("libc.so.6").mmap` is such a look-up.
//!
//! The answer is exchanged, and the question passes as it came. An address that the C library's
//! `dlsym` finds is compared with the C library's functions of the registry ([`crate::next`]).
//! `RTLD_NEXT` passes unchanged: other preloaded libraries find the next function by it.
//!
//! # Safety
//!
//! `dlsym` tells its caller by the return address for `RTLD_DEFAULT` and `RTLD_NEXT`. So the
//! exported function is a jump to the C library's, with all registers as they came.
#![expect(unsafe_code, reason = "jumps to the C library's own function")]

use std::arch::naked_asm;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_char, c_void};

use crate::next::ROWS;

/// The C library's `dlsym`; 0 until [`find_real`] ran.
static REAL: AtomicUsize = AtomicUsize::new(0);
/// Whether the registry has the C library's addresses.
static IS_FILLED: AtomicBool = AtomicBool::new(false);

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// The C library's versions of `dlsym`: today's, and the first one of each architecture.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"];

pub(crate) extern "C" fn find_real() -> usize {
    let versions = VERSIONS.iter().map(|version| {
        // SAFETY: names that end with a zero byte.
        unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) }.addr()
    });
    let real = versions.into_iter().find(|at| *at != 0).unwrap_or(0);
    REAL.store(real, Ordering::Relaxed);
    real
}

/// A library that is loaded already.
fn loaded(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a name that ends with a zero byte; no library is loaded anew.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!handle.is_null()).then_some(handle)
}

fn fill(dlsym: Dlsym) {
    let Some(libc) = loaded(c"libc.so.6") else { return };
    for row in ROWS {
        // SAFETY: an open handle, and a name that ends with a zero byte.
        let found = unsafe { dlsym(libc, row.name.as_ptr()) };
        row.in_libc.store(found.addr(), Ordering::Relaxed);
    }
    IS_FILLED.store(true, Ordering::Relaxed);
}

/// This library's function of a name.
fn ours(dlsym: Dlsym, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: all bytes zero is a value of the structure.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address inside this library, and a structure of ours.
    let known = unsafe { libc::dladdr(fill as *const c_void, &raw mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the path that the loader keeps for this library.
    let this = loaded(unsafe { CStr::from_ptr(info.dli_fname) })?;
    // SAFETY: an open handle, and a name that ends with a zero byte.
    let found = unsafe { dlsym(this, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// `dlsym` with a handle.
///
/// # Safety
/// As the call itself.
unsafe extern "C" fn by_handle(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let real = match REAL.load(Ordering::Relaxed) {
        0 => find_real(),
        at => at,
    };
    if real == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the C library's function of that name has this type.
    let dlsym = unsafe { std::mem::transmute::<usize, Dlsym>(real) };
    // SAFETY: the caller's contract.
    let found = unsafe { dlsym(handle, name) };
    if found.is_null() {
        return found;
    }
    if !IS_FILLED.load(Ordering::Relaxed) {
        fill(dlsym);
    }
    let row = ROWS.iter().find(|row| row.in_libc.load(Ordering::Relaxed) == found.addr());
    row.and_then(|row| ours(dlsym, row.name)).unwrap_or(found)
}
/// `dlsym(3)`.
///
/// # Safety
/// As the call itself.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        // RTLD_DEFAULT is 0 and RTLD_NEXT -1.
        "lea rax, [rdi + 1]",
        "cmp rax, 1",
        "ja 3f",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "jnz 2f",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "2: jmp rax",
        "3: jmp {by_handle}",
        real = sym REAL,
        find = sym find_real,
        by_handle = sym by_handle,
    )
}

/// `dlsym(3)`.
///
/// # Safety
/// As the call itself.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        // RTLD_DEFAULT is 0 and RTLD_NEXT -1.
        "add x9, x0, #1",
        "cmp x9, #1",
        "b.hi 3f",
        "adrp x9, {real}",
        "ldr x9, [x9, :lo12:{real}]",
        "cbnz x9, 2f",
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {find}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "2: br x9",
        "3: b {by_handle}",
        real = sym REAL,
        find = sym find_real,
        by_handle = sym by_handle,
    )
}
