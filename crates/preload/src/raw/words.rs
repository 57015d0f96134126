// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that other threads may write at the same time, word by word.
//!
//! # Safety
//!
//! The caller answers for the range; what lies there is no value of Rust's.
#![expect(unsafe_code, reason = "reads and writes the program's memory")]

use super::{Errno, Result, call};

/// Zeroes memory that may be read and written at the same time, word by word.
///
/// # Safety
/// `at` is writable for `bytes`, a multiple of 8, and aligned to that, and its content is given up.
pub(crate) unsafe fn clear(at: usize, bytes: usize) {
    for word in (at..at + bytes).step_by(size_of::<u64>()) {
        // SAFETY: an aligned word inside of the range; volatile, since others may use it.
        unsafe { (word as *mut u64).write_volatile(0) };
    }
}

/// Writes a value to an address of the program's, or says `EFAULT` where nothing may be written.
pub(crate) fn put_checked<T: Copy>(value: &T, to: usize) -> Result<()> {
    copy_checked(libc::SYS_process_vm_writev, (&raw const *value).addr(), to, size_of::<T>())
}

/// Reads a value from an address of the program's, or says `EFAULT`. Any bytes must be a `T`.
pub(crate) fn get_checked<T: Copy>(from: usize, value: &mut T) -> Result<()> {
    copy_checked(libc::SYS_process_vm_readv, (&raw mut *value).addr(), from, size_of::<T>())
}

/// Between a value of this library's and the program's memory, as the kernel finds it.
fn copy_checked(number: libc::c_long, ours: usize, theirs: usize, bytes: usize) -> Result<()> {
    let lists = [[ours, bytes], [theirs, bytes]];
    let (ours, theirs) = ((&raw const lists[0]).addr(), (&raw const lists[1]).addr());
    let args = [super::process() as usize, ours, 1, theirs, 1, 0];
    // SAFETY: the bytes of one value of ours; the kernel checks the other side.
    let copied = unsafe { call(number, args) }?;
    if copied == bytes { Ok(()) } else { Err(Errno(libc::EFAULT)) }
}
