// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dlsym`: who looks a call up in the C library's own handle, as Python's `ctypes` does for
//! `ctypes.CDLL("libc.so.6").mmap`, finds this library's function, as everybody does whom the
//! dynamic linker serves.
//!
//! The answer is exchanged, not the question: what the C library's `dlsym` finds is looked for
//! among the C library's functions that this library stands before. `RTLD_NEXT` is left alone, by
//! which others who stand before the same calls find the next one, and so are the functions for
//! which this library itself goes to the next one.
//!
//! # Safety
//!
//! `dlsym` with `RTLD_DEFAULT` and `RTLD_NEXT` means something else for each caller, whom it tells
//! by the return address: so the exported function is a jump to the C library's, with all registers
//! as they came.
#![expect(unsafe_code, reason = "jumps to the C library's own function")]

use std::arch::naked_asm;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_char, c_void};

use crate::{calls, memfd_calls};

/// The C library's `dlsym`; 0 until it was looked for.
static REAL: AtomicUsize = AtomicUsize::new(0);

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Where the C library has its own `dlsym`: the version of today, and that of each architecture's
/// first.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"];

extern "C" fn find_real() -> usize {
    let versions = VERSIONS.iter().map(|version| {
        // SAFETY: names that end with a zero byte.
        unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) }.addr()
    });
    let real = versions.into_iter().find(|at| *at != 0).unwrap_or(0);
    REAL.store(real, Ordering::Relaxed);
    real
}

/// A call by this library and where the C library has its own.
struct Name {
    name: &'static CStr,
    ours: fn() -> usize,
    theirs: AtomicUsize,
}

macro_rules! names {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$(Name {
            name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero byte"),
            },
            ours: || $module::$name as *const () as usize,
            theirs: AtomicUsize::new(0),
        }),*]
    };
}

/// Those that make the system call themselves.
static NAMES: [Name; 12] = names![
    calls::mmap,
    calls::mmap64,
    calls::munmap,
    calls::mremap,
    calls::madvise,
    calls::shmget,
    calls::shmat,
    calls::shmdt,
    calls::shmctl,
    memfd_calls::memfd_create,
    memfd_calls::ftruncate,
    memfd_calls::ftruncate64,
];

/// Looks up where the C library has them.
pub(crate) fn start() {
    let real = find_real();
    if real == 0 {
        return;
    }
    // SAFETY: the C library's function of that name has this type.
    let dlsym = unsafe { std::mem::transmute::<usize, Dlsym>(real) };
    // SAFETY: a name that ends with a zero byte, of what is loaded already.
    let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if libc.is_null() {
        return;
    }
    for name in &NAMES {
        // SAFETY: an open handle, and a name that ends with a zero byte.
        let found = unsafe { dlsym(libc, name.name.as_ptr()) };
        name.theirs.store(found.addr(), Ordering::Relaxed);
    }
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
    let is_theirs = |name: &&Name| name.theirs.load(Ordering::Relaxed) == found.addr();
    NAMES
        .iter()
        .find(is_theirs)
        .map_or(found, |name| std::ptr::with_exposed_provenance_mut((name.ours)()))
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
