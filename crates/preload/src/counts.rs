// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many huge pages are free: programs that look before they ask find those that the daemon has
//! ready among them.
//!
//! Pages that are ready are the daemon's, and not free to the kernel. A program that reads
//! `HugePages_Free` in `/proc/meminfo` or a node's, or `free_hugepages` in sysfs, and asks for no
//! more than that (DPDK's `-m`), would never ask for them. So whoever opens one of these files for
//! reading gets a file with the kernel's text, in which that count is larger by what is ready. All
//! other counts are the kernel's, and so are the files of who asks past these functions.
//!
//! # Safety
//!
//! Each function has the contract of the call whose name it bears, and passes that on. What else is
//! unsafe is calling the C library's functions with the types that their headers give them: those
//! that take `mode` only with some flags are passed whatever came in its place.
#![expect(unsafe_code, reason = "functions with the C library's names and contracts")]

use std::ffi::CStr;

use libc::{FILE, c_char, c_int, mode_t};

use crate::calls::{Next, guarded};
use crate::config::{config, is_off};
use crate::guard::{State, WAIT};
use crate::raw::{self, Errno, c_int_result};
use crate::{maps, say};

/// What is counted in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    /// The pages' size, where the file is of one; the default one in a `meminfo`.
    page: Option<u64>,
    /// The node, where it is one's.
    node: Option<u32>,
}

const MEMINFO: &str = "/proc/meminfo";
const OF_ALL: &str = "/sys/kernel/mm/";
const OF_NODE: &str = "/sys/devices/system/node/node";
/// The line in `/proc/meminfo` and in a node's.
const FREE: &str = "HugePages_Free:";

impl Counted {
    /// What the file of that very path counts. Nothing for nearly all paths there are, which is
    /// seen by their first bytes.
    fn of(path: &[u8]) -> Option<Self> {
        if path == MEMINFO.as_bytes() {
            return Some(Self { page: None, node: None });
        }
        if !path.starts_with(b"/sys/") {
            return None;
        }
        let path = std::str::from_utf8(path).ok()?;
        let (node, pool) = match path.strip_prefix(OF_ALL) {
            Some(pool) => (None, pool),
            None => {
                let (node, pool) = path.strip_prefix(OF_NODE)?.split_once('/')?;
                (Some(node.parse().ok()?), pool)
            }
        };
        if node.is_some() && pool == "meminfo" {
            return Some(Self { page: None, node });
        }
        let size = pool.strip_prefix("hugepages/hugepages-")?.strip_suffix("kB/free_hugepages")?;
        let page = size.parse::<u64>().ok()?.checked_mul(1024)?;
        Some(Self { page: Some(page), node })
    }

    /// The kernel's text with so many pages more.
    fn with(self, text: &str, more: u64) -> Option<String> {
        if self.page.is_some() {
            return Some(format!("{}\n", text.trim().parse::<u64>().ok()?.checked_add(more)?));
        }
        let (before, rest) = text.split_once(FREE)?;
        let (count, after) = rest.split_once('\n')?;
        // As wide as the kernel writes it.
        let width = count.len();
        let count = count.trim().parse::<u64>().ok()?.checked_add(more)?;
        Some(format!("{before}{FREE}{count:width$}\n{after}"))
    }
}

/// A descriptor of the file to read, if it is one of them and pages are ready.
fn answer(path: &CStr, flags: c_int) -> Option<c_int> {
    let counted = Counted::of(path.to_bytes())?;
    if flags & (libc::O_ACCMODE | libc::O_PATH | libc::O_DIRECTORY) != libc::O_RDONLY || is_off() {
        return None;
    }
    guarded(WAIT, |state| look(state, counted, path, flags & libc::O_CLOEXEC != 0)).flatten()
}

fn look(state: &mut State, counted: Counted, path: &CStr, closes: bool) -> Option<c_int> {
    let config = config();
    if !config.enabled {
        return None;
    }
    let page = counted.page.unwrap_or(config.default_page);
    let ready = state.lender.ready(page, counted.node).filter(|ready| *ready != 0)?;
    let text = String::from_utf8(maps::read(path).ok()?).ok()?;
    let fd = raw::readable(counted.with(&text, ready)?.as_bytes(), closes);
    let path = path.to_string_lossy();
    match fd {
        Ok(_) => say::say(format_args!("{path} counts {ready} ready pages as free")),
        Err(error) => say::say(format_args!("{path} does not count ready pages: {error}")),
    }
    fd.ok()
}

pub(crate) static OPEN: Next = Next::new(c"open64");
pub(crate) static OPENAT: Next = Next::new(c"openat64");
pub(crate) static FOPEN: Next = Next::new(c"fopen64");

type Open = unsafe extern "C" fn(*const c_char, c_int, mode_t) -> c_int;
type Openat = unsafe extern "C" fn(c_int, *const c_char, c_int, mode_t) -> c_int;
type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;

/// The path, if there is one.
///
/// # Safety
/// `path` is null or ends with a zero byte.
unsafe fn path_of<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's contract.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// `open(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's contract.
    if let Some(fd) = unsafe { path_of(path) }.and_then(|path| answer(path, flags)) {
        return fd;
    }
    match OPEN.get() {
        0 => c_int_result(Err(Errno(libc::ENOSYS))),
        at => {
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe { std::mem::transmute::<usize, Open>(at) };
            // SAFETY: the caller's contract.
            unsafe { next(path, flags, mode) }
        }
    }
}

/// `open64`, the same where `off_t` has 64 bits.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { open(path, flags, mode) }
}

/// `openat(2)`: what is asked for is asked for by its whole path.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the caller's contract.
    if let Some(fd) = unsafe { path_of(path) }.and_then(|path| answer(path, flags)) {
        return fd;
    }
    match OPENAT.get() {
        0 => c_int_result(Err(Errno(libc::ENOSYS))),
        at => {
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe { std::mem::transmute::<usize, Openat>(at) };
            // SAFETY: the caller's contract.
            unsafe { next(dir, path, flags, mode) }
        }
    }
}

/// `openat64`, the same where `off_t` has 64 bits.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { openat(dir, path, flags, mode) }
}

pub(crate) static OPEN_2: Next = Next::new(c"__open64_2");
pub(crate) static OPENAT_2: Next = Next::new(c"__openat64_2");

type Open2 = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type Openat2 = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;

/// `open` without a mode, as a program calls it that was built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    if let Some(fd) = unsafe { path_of(path) }.and_then(|path| answer(path, flags)) {
        return fd;
    }
    match OPEN_2.get() {
        0 => c_int_result(Err(Errno(libc::ENOSYS))),
        at => {
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe { std::mem::transmute::<usize, Open2>(at) };
            // SAFETY: the caller's contract.
            unsafe { next(path, flags) }
        }
    }
}

/// The same where `off_t` has 64 bits.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { __open_2(path, flags) }
}

/// `openat` without a mode, likewise.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    if let Some(fd) = unsafe { path_of(path) }.and_then(|path| answer(path, flags)) {
        return fd;
    }
    match OPENAT_2.get() {
        0 => c_int_result(Err(Errno(libc::ENOSYS))),
        at => {
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe { std::mem::transmute::<usize, Openat2>(at) };
            // SAFETY: the caller's contract.
            unsafe { next(dir, path, flags) }
        }
    }
}

/// The same where `off_t` has 64 bits.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { __openat_2(dir, path, flags) }
}

/// What `fopen` would open the file with, for reading alone.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    let reads = mode.first() == Some(&b'r') && !mode.contains(&b'+');
    let closes = if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    reads.then_some(libc::O_RDONLY | closes)
}

/// `fopen(3)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's contract.
    let name = unsafe { path_of(path) };
    // SAFETY: the caller's contract.
    let flags = unsafe { path_of(mode) }.and_then(|mode| flags_of(mode.to_bytes()));
    if let Some(fd) = name.zip(flags).and_then(|(path, flags)| answer(path, flags)) {
        // SAFETY: a descriptor that nobody else knows, and the caller's contract.
        let file = unsafe { libc::fdopen(fd, mode) };
        if !file.is_null() {
            return file;
        }
        raw::close(fd);
    }
    match FOPEN.get() {
        0 => {
            raw::swap_errno(libc::ENOSYS);
            std::ptr::null_mut()
        }
        at => {
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe { std::mem::transmute::<usize, Fopen>(at) };
            // SAFETY: the caller's contract.
            unsafe { next(path, mode) }
        }
    }
}

/// `fopen64`, the same where `off_t` has 64 bits.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's contract.
    unsafe { fopen(path, mode) }
}
