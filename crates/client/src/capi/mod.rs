// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C library: `libprezero.so`, `prezero.h`.
//!
//! The same operations with the same names, nothing more. Every function that can fail returns 0 or
//! a negative errno, and leaves a text for [`prezero_last_error`]. Nothing unwinds across the
//! border: a panic becomes `-EIO`.
//!
//! # Safety
//!
//! What a C program hands over is trusted as its header says: handles are those that this library
//! gave out and not yet took back, used by one thread at a time; texts end with a zero byte;
//! pointers for results are valid for writing. Null is caught wherever it is not allowed
//! (`-EINVAL`). No reference to the program's memory outlives a call.
#![expect(unsafe_code, reason = "pointers of a C program")]

pub mod loan;
pub mod status;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use crate::connection::{ANSWER_TIMEOUT, Client};
use crate::{DEFAULT_SOCKET, Error};

/// A connection to the daemon. To be used by one thread at a time.
#[allow(non_camel_case_types, reason = "the header's name")]
#[derive(Debug)]
pub struct prezero {
    client: Client,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What went wrong, for the C side.
pub(crate) struct Failure {
    errno: Errno,
    text: String,
}

impl Failure {
    pub(crate) fn invalid(text: &str) -> Self {
        Self { errno: Errno::INVAL, text: text.to_owned() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { errno: error.errno(), text: error.to_string() }
    }
}

/// Runs the body of a C function: its failure's errno, negative, and its text remembered.
pub(crate) fn run(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        let text = "a defect of the library, nothing was done: please report it".to_owned();
        Err(Failure { errno: Errno::IO, text })
    });
    match result {
        Ok(()) => 0,
        Err(Failure { errno, text }) => {
            // A text with a zero byte inside ends there.
            let text = text.split('\0').next().unwrap_or_default();
            let text = CString::new(text).unwrap_or_default();
            // The thread may be ending; then nobody asks.
            let _ = LAST.try_with(|last| last.replace(text));
            -errno.raw_os_error()
        }
    }
}

/// A text of the program's; `None` for null.
///
/// # Safety
/// It is null or ends with a zero byte, and stays as it is for the call.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::invalid("a text is not UTF-8"))
}

/// A handle of the program's.
///
/// # Safety
/// It is null or one that this library gave out, not yet taken back, and nobody else uses it now.
pub(crate) unsafe fn handle<'a, T>(handle: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's contract.
    unsafe { handle.as_mut() }.ok_or_else(|| Failure::invalid("a handle is null"))
}

/// Writes a result.
///
/// # Safety
/// It is null or valid for writing.
pub(crate) unsafe fn give<T>(out: *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::invalid("the place for a result is null"));
    }
    // SAFETY: not null, and valid by the caller's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// Connects to the daemon that listens at `socket`, or at the usual place if it is null.
///
/// `timeout_ms` bounds connecting and each answer; 0 stands for 10 s. Returns 0 and a connection,
/// or a negative errno: -ENOENT or -ECONNREFUSED where no daemon listens.
///
/// # Safety
/// `socket` is null or a text; `out` is valid for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_connect(
    socket: *const c_char,
    timeout_ms: u32,
    out: *mut *mut prezero,
) -> c_int {
    run(|| {
        // SAFETY: the caller's contract.
        let path = unsafe { text(socket) }?.map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from);
        let timeout = match timeout_ms {
            0 => ANSWER_TIMEOUT,
            ms => Duration::from_millis(ms.into()),
        };
        if out.is_null() {
            return Err(Failure::invalid("the place for a result is null"));
        }
        let client = Client::connect_within(path, timeout)?;
        // SAFETY: the caller's contract.
        unsafe { give(out, Box::into_raw(Box::new(prezero { client }))) }
    })
}

/// Closes a connection; loans and watches stay. Null is allowed.
///
/// # Safety
/// `connection` is null or a connection, which is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_disconnect(connection: *mut prezero) {
    if connection.is_null() {
        return;
    }
    run(|| {
        // SAFETY: made by `Box::into_raw`, and given back once by the caller's contract.
        drop(unsafe { Box::from_raw(connection) });
        Ok(())
    });
}

/// What the last failed call of this thread had to say: lower case, with the value at fault and
/// what to do about it. Empty if none has failed. Valid until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn prezero_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// What a result of this library means in general, for a negative errno as it was returned.
#[unsafe(no_mangle)]
pub extern "C" fn prezero_strerror(result: c_int) -> *const c_char {
    let text = match Errno::from_raw_os_error(result.saturating_neg().max(0)) {
        _ if result >= 0 => c"done",
        Errno::NOENT | Errno::CONNREFUSED => {
            c"no daemon listens there: start one with `prezero serve`"
        }
        Errno::ACCESS => c"the daemon does not allow it: see lend_group in its configuration",
        Errno::INVAL => c"a value is not allowed, and nothing was changed",
        Errno::NODEV => c"no pool has pages of that size on that node: see `prezero status`",
        Errno::DQUOT => c"the user's quota is used up: return some memory",
        Errno::NOMEM => c"too little memory is ready or free: ask for less, or reserve more pages",
        Errno::AGAIN => c"the daemon did not answer in time",
        Errno::PROTO => c"the daemon's answer was not understood: are both of one version?",
        _ => c"the operation failed: see prezero_last_error()",
    };
    text.as_ptr()
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn prezero_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(text) => text,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}
