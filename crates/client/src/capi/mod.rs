// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C library: `libprezero.so`, `prezero.h`.
//!
//! The same operations with the same names. Every function that can fail returns 0 or a negative
//! errno, and leaves a text for [`prezero_last_error`]. Nothing unwinds across the border: a panic
//! becomes `-EIO`.
//!
//! # Safety
//!
//! A C program's arguments are trusted as its header says. Handles are the ones that this library
//! gave out and not yet took back, used by one thread at a time. Texts end with a zero byte, and
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

/// The largest errno: the kernel's MAX_ERRNO.
const MAX_ERRNO: c_int = 4095;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What went wrong, for the C side.
pub(crate) struct CallFailure {
    errno: Errno,
    text: String,
}

impl CallFailure {
    pub(crate) fn invalid(text: &str) -> Self {
        Self { errno: Errno::INVAL, text: text.to_owned() }
    }
}

impl From<Error> for CallFailure {
    fn from(error: Error) -> Self {
        Self { errno: error.errno(), text: error.to_string() }
    }
}

/// Runs the body of a C function: its failure's errno, negative, and its text remembered.
pub(crate) fn run(body: impl FnOnce() -> Result<(), CallFailure>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        let text = "a defect of the library, nothing was done: please report it".to_owned();
        Err(CallFailure { errno: Errno::IO, text })
    });
    match result {
        Ok(()) => 0,
        Err(CallFailure { errno, text }) => {
            // A text with a zero byte inside ends there.
            let text = text.split('\0').next().unwrap_or_default();
            let text = CString::new(text).unwrap_or_default();
            // The thread may be ending; then no caller follows.
            let _ = LAST.try_with(|last| last.replace(text));
            -errno.raw_os_error()
        }
    }
}

/// A text of the program's; `None` for null.
///
/// # Safety
/// It is null or ends with a zero byte, and stays as it is for the call.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, CallFailure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| CallFailure::invalid("a text is not UTF-8"))
}

/// A handle of the program's.
///
/// # Safety
/// It is null or one that this library gave out, not yet taken back, and unused by other code now.
pub(crate) unsafe fn handle<'a, T>(handle: *mut T) -> Result<&'a mut T, CallFailure> {
    // SAFETY: the caller's contract.
    unsafe { handle.as_mut() }.ok_or_else(|| CallFailure::invalid("a handle is null"))
}

/// Writes a result.
///
/// # Safety
/// It is null or valid for writing.
pub(crate) unsafe fn give<T>(out: *mut T, value: T) -> Result<(), CallFailure> {
    if out.is_null() {
        return Err(CallFailure::invalid("the place for a result is null"));
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
            return Err(CallFailure::invalid("the place for a result is null"));
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
    // A program may ask about any number, and not each is an errno.
    let is_errno = (-MAX_ERRNO..0).contains(&result);
    let text = match is_errno.then(|| Errno::from_raw_os_error(-result)) {
        None if result >= 0 => c"done",
        Some(Errno::NOENT | Errno::CONNREFUSED) => {
            c"no daemon listens there: start one with `prezero serve`"
        }
        Some(Errno::ACCESS) => c"the daemon does not allow it: see lend_group in its configuration",
        Some(Errno::INVAL) => c"a value is not allowed, and nothing was changed",
        Some(Errno::NODEV) => c"no pool has pages of that size on that node: see `prezero status`",
        Some(Errno::DQUOT) => c"the user's quota is used up: return some memory",
        Some(Errno::NOMEM) => {
            c"too little memory is ready or free: ask for less, or reserve more pages"
        }
        Some(Errno::AGAIN) => c"the daemon did not answer in time",
        Some(Errno::PROTO) => c"the daemon's answer was not understood: are both of one version?",
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    fn text_of(text: *const c_char) -> String {
        // SAFETY: the library's texts end with a zero byte, and nothing has failed since.
        unsafe { CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn failure_is_a_negative_errno_and_leaves_its_text() {
        assert_eq!(text_of(prezero_last_error()), "");
        let mut connection = null_mut();
        // SAFETY: a text, and a place for a pointer.
        let result = unsafe { prezero_connect(c"/nowhere/socket".as_ptr(), 0, &mut connection) };
        assert_eq!((result, connection), (-Errno::NOENT.raw_os_error(), null_mut()));
        let reported = text_of(prezero_last_error());
        assert!(reported.contains("/nowhere/socket"), "{reported}");
        // SAFETY: the call looks for null.
        let result = unsafe { prezero_connect(c"/nowhere/socket".as_ptr(), 0, null_mut()) };
        assert_eq!(result, -Errno::INVAL.raw_os_error());
        assert_eq!(text_of(prezero_last_error()), "the place for a result is null");
    }

    #[test]
    fn a_panic_does_not_cross_the_border() {
        assert_eq!(run(|| panic!("a defect")), -Errno::IO.raw_os_error());
        assert!(text_of(prezero_last_error()).contains("report it"));
        assert_eq!(run(|| Ok(())), 0);
    }

    #[test]
    fn a_result_is_explained_by_what_to_do() {
        for (errno, part) in [
            (Errno::NOENT, "start one"),
            (Errno::CONNREFUSED, "start one"),
            (Errno::ACCESS, "lend_group"),
            (Errno::INVAL, "nothing was changed"),
            (Errno::NODEV, "no pool"),
            (Errno::DQUOT, "quota"),
            (Errno::NOMEM, "reserve more"),
            (Errno::AGAIN, "in time"),
            (Errno::PROTO, "one version"),
            (Errno::IO, "prezero_last_error()"),
        ] {
            let reported = text_of(prezero_strerror(-errno.raw_os_error()));
            assert!(reported.contains(part), "{errno}: {reported}");
        }
        for fine in [0, 1] {
            assert_eq!(text_of(prezero_strerror(fine)), "done");
        }
        assert!(text_of(prezero_strerror(c_int::MIN)).contains("prezero_last_error()"));
    }

    #[test]
    fn the_version_is_the_packages() {
        assert_eq!(text_of(prezero_version()), env!("CARGO_PKG_VERSION"));
    }
}
