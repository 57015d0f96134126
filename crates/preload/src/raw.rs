// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls, past the C library and every other library that stands before it.
//!
//! *Why the shim does not use rustix*, as `client` does: most of these calls are the program's own.
//! They carry unnamed flags, closed descriptors and invalid pointers, and the kernel answers for
//! them. Types that promise a valid descriptor or a known flag cannot hold those. rustix also goes
//! through the C library where any crate of a build asks for its `use-libc`. Then it would call the
//! functions of this library, and wait for the lock that their caller holds. `tests/rules` checks
//! that no crate asks for it.
//!
//! # Safety
//!
//! The one unsafe operation is the system call. Calls that change the address space are `unsafe`
//! here as well, and their callers answer for the range: it is the program's own argument, or one
//! that the shim mapped. All others take plain numbers, or pointers to values that live across the
//! call and are as long as the kernel is told.
#![expect(unsafe_code, reason = "system calls, some of which map and unmap memory")]
#![expect(clippy::cast_possible_truncation, reason = "numbers of 64 bits in registers of 64 bits")]

use libc::{c_int, c_long};

mod files;
mod memory;
mod nodes;
mod task;
mod words;

pub(crate) use files::*;
pub(crate) use memory::*;
pub(crate) use nodes::*;
pub(crate) use task::*;
pub(crate) use words::*;

const _: () = assert!(usize::BITS == 64, "prezero serves 64-bit programs");

/// An error number of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// Any system call.
///
/// # Safety
/// As the call itself: pointers among `args` are valid for the kernel's use, and no
/// memory that Rust code relies on is unmapped.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the registers follow the x86-64 convention, the kernel changes no others than
    // rax, rcx and r11; what it does to memory the caller answers for.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    check(result)
}

/// Any system call.
///
/// # Safety
/// As the call itself: pointers among `args` are valid for the kernel's use, and no
/// memory that Rust code relies on is unmapped.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the registers follow the arm64 convention, the kernel changes x0 alone; what it
    // does to memory the caller answers for.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number as isize,
            inlateout("x0") args[0] => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    check(result)
}

fn check(result: isize) -> Result<usize> {
    match result {
        -4095..=-1 => Err(Errno(c_int::try_from(-result).unwrap_or(libc::EIO))),
        done => Ok(done.cast_unsigned()),
    }
}

/// A call whose arguments are numbers, pointers to values of the shim, or pointers that the program
/// passes for that very call. The kernel checks the last.
fn plain(number: c_long, args: [usize; 6]) -> Result<usize> {
    // SAFETY: used below for calls that unmap nothing and write to no memory of Rust's.
    unsafe { call(number, args) }
}

pub(crate) fn int(value: c_int) -> usize {
    // The kernel looks at the lower half.
    value.cast_unsigned() as usize
}

/// This thread's `errno`.
pub(crate) fn errno() -> c_int {
    let before = swap_errno(0);
    swap_errno(before);
    before
}

/// Sets this thread's `errno` and returns the old value.
pub(crate) fn swap_errno(number: c_int) -> c_int {
    // SAFETY: takes nothing, and is this thread's for as long as it runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: a valid int that no other thread uses.
    unsafe { std::ptr::replace(errno, number) }
}

/// Sets `errno` and gives the C result of a call.
pub(crate) fn c_result(result: Result<usize>) -> isize {
    match result {
        Ok(value) => value.cast_signed(),
        Err(Errno(number)) => {
            swap_errno(number);
            -1
        }
    }
}

/// The same for calls that return an int.
pub(crate) fn c_int_result(result: Result<usize>) -> c_int {
    c_int::try_from(c_result(result)).unwrap_or(-1)
}
