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

use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use crate::memfd_calls::memfd_create;
use crate::next::{PRCTL, SYSCALL};
use crate::raw::{self, c_int_result};
use crate::seccomp::filtering;

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
    let call = || {
        PRCTL.call(
            // SAFETY: the caller's contract. Registers that it did not fill are not looked at.
            |prctl| unsafe { prctl(option, second, third, fourth, fifth) },
            // SAFETY: the same.
            || c_int_result(unsafe { raw::prctl(option, [second, third, fourth, fifth]) }),
        )
    };
    if option == libc::PR_SET_SECCOMP { filtering(call) } else { call() }
}

/// `syscall(SYS_prctl, option, ...)`.
///
/// # Safety
/// As the call itself.
unsafe extern "C" fn prctl_by_number(
    _: c_long,
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_long {
    // SAFETY: the caller's contract.
    c_long::from(unsafe { prctl(option, second, third, fourth, fifth) })
}

/// `syscall(SYS_seccomp, operation, flags, args)`. Operations that only ask install nothing.
///
/// # Safety
/// As the call itself.
unsafe extern "C" fn seccomp_by_number(
    _: c_long,
    operation: c_uint,
    flags: c_uint,
    args: *const c_void,
) -> c_long {
    // SAFETY: the caller's contract.
    let call = || c_int_result(unsafe { raw::seccomp(operation, flags, args) });
    let installs = [libc::SECCOMP_SET_MODE_STRICT, libc::SECCOMP_SET_MODE_FILTER];
    c_long::from(if installs.contains(&operation) { filtering(call) } else { call() })
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
        "je {seccomp_by_number}",
        "cmp rdi, {prctl}",
        "je {prctl_by_number}",
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
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        memfd_by_number = sym memfd_by_number,
        seccomp_by_number = sym seccomp_by_number,
        prctl_by_number = sym prctl_by_number,
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
        "b.eq {seccomp_by_number}",
        "cmp x0, #{prctl}",
        "b.eq {prctl_by_number}",
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
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        memfd_by_number = sym memfd_by_number,
        seccomp_by_number = sym seccomp_by_number,
        prctl_by_number = sym prctl_by_number,
        real = sym SYSCALL,
        find = sym find_real,
    )
}
