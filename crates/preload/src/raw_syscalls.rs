// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `syscall` and `prctl`.
//!
//! Programs make memfds by number, as OpenJDK's ZGC does, which was written before the C library
//! had `memfd_create`. And programs install seccomp filters by both calls
//! ([`crate::seccomp`]). All other calls pass unchanged.
//!
//! # Safety
//!
//! `syscall` is variadic and has as many arguments as its number says, one of them on the stack. So
//! the exported function jumps to the C library's own, or to one that looks at two arguments, with
//! all registers and the stack as they came.
#![expect(unsafe_code, reason = "jumps to the C library's own function")]

use std::arch::naked_asm;

use libc::{c_char, c_int, c_long, c_uint, c_ulong};

use crate::memfd_calls::memfd_create;
use crate::next::{PRCTL, SYSCALL};
use crate::raw::{self, c_int_result};
use crate::seccomp::{IS_FILTERED, will_filter};

/// Looks for the C library's, which always exists.
extern "C" fn find_real() -> usize {
    SYSCALL.find()
}

/// `syscall(SYS_memfd_create, name, flags)`.
///
/// # Safety
/// As the call itself.
unsafe extern "C" fn memfd_by_number(_: c_long, name: *const c_char, flags: c_uint) -> c_long {
    // SAFETY: the caller's contract.
    c_long::from(unsafe { memfd_create(name, flags) })
}

/// `prctl(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        will_filter();
    }
    PRCTL.call(
        // SAFETY: the caller's contract. Registers that it did not fill are not looked at.
        |prctl| unsafe { prctl(option, second, third, fourth, fifth) },
        // SAFETY: the same.
        || c_int_result(unsafe { raw::prctl(option, [second, third, fourth, fifth]) }),
    )
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
        "cmp rdi, {seccomp}",
        "je 4f",
        "cmp rdi, {prctl}",
        "jne 1f",
        "cmp rsi, {set_seccomp}",
        "jne 1f",
        "4: mov byte ptr [rip + {filtered}], 1",
        "1: mov rax, qword ptr [rip + {real}]",
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
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        set_seccomp = const libc::PR_SET_SECCOMP,
        memfd_by_number = sym memfd_by_number,
        filtered = sym IS_FILTERED,
        real = sym SYSCALL,
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
        "cmp x0, #{seccomp}",
        "b.eq 4f",
        "cmp x0, #{prctl}",
        "b.ne 1f",
        "cmp x1, #{set_seccomp}",
        "b.ne 1f",
        "4: adrp x9, {filtered}",
        "add x9, x9, :lo12:{filtered}",
        "mov w10, #1",
        "strb w10, [x9]",
        "1: adrp x9, {real}",
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
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        set_seccomp = const libc::PR_SET_SECCOMP,
        memfd_by_number = sym memfd_by_number,
        filtered = sym IS_FILTERED,
        real = sym SYSCALL,
        find = sym find_real,
    )
}
