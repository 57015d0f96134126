// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `PREZERO_SHIM_LOG`: a line per call that was served, and per call that was not, with the reason.

use std::ffi::{CString, OsString};
use std::fmt::{Arguments, Write};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::raw;

static ON: AtomicBool = AtomicBool::new(false);
/// A file to append to; standard error without. Only ever locked behind the guard.
static PATH: Mutex<Option<CString>> = Mutex::new(None);

/// Reads the variable's value: `1` or `stderr` for standard error, else a file's path.
pub(crate) fn open(value: Option<OsString>) {
    let Some(value) = value.filter(|value| !value.is_empty() && value != "0") else { return };
    if value != "1" && value != "stderr" {
        let path = CString::new(value.into_vec()).ok();
        *PATH.lock().unwrap_or_else(PoisonError::into_inner) = path;
    }
    ON.store(true, Ordering::Relaxed);
}

/// Writes one line. It allocates, so the caller has the guard.
pub(crate) fn say(text: Arguments<'_>) {
    if !ON.load(Ordering::Relaxed) {
        return;
    }
    let mut line = String::new();
    // Writing into a string does not fail.
    let _ = writeln!(line, "prezero[{}]: {text}", raw::process());
    let path = PATH.lock().unwrap_or_else(PoisonError::into_inner);
    match &*path {
        None => raw::write(libc::STDERR_FILENO, line.as_bytes()),
        Some(path) => {
            if let Ok(fd) = raw::open_log(path) {
                raw::write(fd, line.as_bytes());
                raw::close(fd);
            }
        }
    }
}
