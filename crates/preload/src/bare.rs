// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `syscall`: programs that make memfds by its number, as OpenJDK's ZGC does, which was written
//! when the C library had no `memfd_create` yet. What else is called by number is left alone.
//!
//! # Safety
//!
//! `syscall` is variadic and has as many arguments as its number says, one of them on the stack: so
//! the exported function jumps, to the C library's own or to one that looks at two of them, with
//! all registers and the stack as they came.
#![expect(unsafe_code, reason = "jumps to the C library's own function")]

use std::arch::naked_asm;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_char, c_long, c_uint};

use crate::memfd_calls::memfd_create;

/// The C library's `syscall`; 0 until it was looked for.
static REAL: AtomicUsize = AtomicUsize::new(0);

/// Looks for the C library's, of which there always is one.
pub(crate) extern "C" fn find_real() -> usize {
    // SAFETY: a name that ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) };
    REAL.store(found.addr(), Ordering::Relaxed);
    found.addr()
}

/// `syscall(SYS_memfd_create, name, flags)`.
///
/// # Safety
/// As the call itself.
unsafe extern "C" fn memfd_by_number(_: c_long, name: *const c_char, flags: c_uint) -> c_long {
    // SAFETY: the caller's contract.
    c_long::from(unsafe { memfd_create(name, flags) })
}

/// `syscall(2)`.
///
/// # Safety
/// As the call of that number.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(number: c_long) -> c_long {
    naked_asm!(
        "cmp rdi, {memfd_create}",
        "je {memfd_by_number}",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "jnz 2f",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "2: jmp rax",
        memfd_create = const libc::SYS_memfd_create,
        memfd_by_number = sym memfd_by_number,
        real = sym REAL,
        find = sym find_real,
    )
}

/// `syscall(2)`.
///
/// # Safety
/// As the call of that number.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(number: c_long) -> c_long {
    naked_asm!(
        "cmp x0, #{memfd_create}",
        "b.eq {memfd_by_number}",
        "adrp x9, {real}",
        "ldr x9, [x9, :lo12:{real}]",
        "cbnz x9, 2f",
        "stp x29, x30, [sp, #-80]!",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "str x6, [sp, #64]",
        "bl {find}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "2: br x9",
        memfd_create = const libc::SYS_memfd_create,
        memfd_by_number = sym memfd_by_number,
        real = sym REAL,
        find = sym find_real,
    )
}
