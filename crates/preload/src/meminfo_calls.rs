// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `MemAvailable` with the ready pages, where the operator allows it (`PREZERO_COUNT_READY=1`,
//! `prezero run --count-ready`).
//!
//! Ready pages are the daemon's, and the kernel counts them as used. SGLang compares `MemAvailable`
//! with the size of its host cache before it maps that cache in huge pages, and gives up. Here the
//! line says what the program can have: the kernel's number and the ready bytes of that moment.
//!
//! The program reads the kernel's own file. After each `read` of `/proc/meminfo` the one number is
//! written anew in the program's buffer, in the line's own length. So offsets, later reads and
//! every other line stay the kernel's. A read that cuts the line, `pread`, and the C library's own
//! streams (`fgets`) show the kernel's number. So does each read while no daemon answers.
//!
//! # Safety
//!
//! The buffer is the program's, and `read` has just filled the part that is changed.
#![expect(unsafe_code, reason = "jumps to the C library's own function")]

use std::arch::naked_asm;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_void, size_t, ssize_t};

use crate::guard::{LOAN_LOCK_TIMEOUT, guarded, may_serve};
use crate::next::READ;
use crate::raw::{self, c_result};

static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Has ready pages counted.
pub(crate) fn count_ready() {
    IS_WANTED.store(true, Ordering::Relaxed);
}

/// `read(2)`. Where ready pages are not counted it jumps to the function behind: programs leave a
/// `read` that blocks by `siglongjmp` or by cancellation, and nothing of the shim is on their way.
///
/// # Safety
/// As the call itself.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    naked_asm!(
        "cmp byte ptr [rip + {wanted}], 0",
        "jne {counting}",
        "mov rax, qword ptr [rip + {behind}]",
        "test rax, rax",
        "jz {counting}",
        "jmp rax",
        wanted = sym IS_WANTED,
        counting = sym counting,
        behind = sym READ,
    )
}

/// The same on aarch64.
///
/// # Safety
/// As the call itself.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    naked_asm!(
        "adrp x9, {wanted}",
        "ldrb w9, [x9, :lo12:{wanted}]",
        "cbnz w9, 2f",
        "adrp x9, {behind}",
        "ldr x9, [x9, :lo12:{behind}]",
        "cbz x9, 2f",
        "br x9",
        "2: b {counting}",
        wanted = sym IS_WANTED,
        counting = sym counting,
        behind = sym READ,
    )
}

/// `read(2)` with ready pages counted, or before the function behind is known.
///
/// # Safety
/// As the call itself.
unsafe extern "C" fn counting(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    let done = READ.call(
        // SAFETY: the caller's contract.
        |read| unsafe { read(fd, buffer, bytes) },
        // SAFETY: the caller's contract.
        || c_result(unsafe { raw::read(fd, buffer, bytes) }),
    );
    if done > 0 && IS_WANTED.load(Ordering::Relaxed) {
        // SAFETY: the kernel has just written this many bytes there.
        let text =
            unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), done.cast_unsigned()) };
        count(fd, text);
    }
    done
}

#[cold]
#[inline(never)]
fn count(fd: c_int, text: &mut [u8]) {
    let Some(number) = number_of(text) else { return };
    let errno = raw::errno();
    if may_serve() && raw::is_path(fd, b"/proc/meminfo") {
        let ready = guarded(LOAN_LOCK_TIMEOUT, |state| state.lender.ready());
        add(number, ready.flatten().unwrap_or(0) / 1024);
    }
    raw::swap_errno(errno);
}

/// The spaces and digits of the line, if all of it is there.
fn number_of(text: &mut [u8]) -> Option<&mut [u8]> {
    const NAME: &[u8] = b"\nMemAvailable:";
    let at = text.windows(NAME.len()).position(|part| part == NAME)? + NAME.len();
    let length = text[at..].iter().position(|byte| !matches!(byte, b' ' | b'0'..=b'9'))?;
    let (number, rest) = text[at..].split_at_mut(length);
    // The space before the unit stays.
    let number = number.strip_suffix(b" ").map(<[u8]>::len)?;
    rest.starts_with(b"kB\n").then(move || &mut text[at..at + number])
}

/// Adds to a number that is written there with spaces before it, if there is room.
fn add(number: &mut [u8], kib: u64) {
    let Some(old) =
        std::str::from_utf8(number).ok().and_then(|text| text.trim().parse::<u64>().ok())
    else {
        return;
    };
    let new = format!("{:>1$}", old.saturating_add(kib), number.len());
    if new.len() == number.len() && new.starts_with(' ') {
        number.copy_from_slice(new.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, kib: u64) -> String {
        let mut text = text.as_bytes().to_vec();
        if let Some(number) = number_of(&mut text) {
            add(number, kib);
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn number_grows_within_its_line() {
        let text = "MemFree:  8 kB\nMemAvailable:   99999000 kB\nBuffers: 1 kB\n";
        let more = "MemFree:  8 kB\nMemAvailable:  100001000 kB\nBuffers: 1 kB\n";
        assert_eq!(with(text, 2000), more);
        assert_eq!(with(text, 0), text);
        for other in ["MemAvailable:   99 kB\n", "x\nMemAvailable:   9", "x\nMemAvailable: 9 kB\n"]
        {
            assert_eq!(with(other, 100_000), other, "cut, or without room");
        }
    }
}
