// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The constructor, and what runs around a fork.
//!
//! # Safety
//!
//! The handlers live as long as the process.
#![expect(unsafe_code, reason = "registers functions with the C library")]

use crate::config::{Wishes, config, is_malloc_told};
use crate::guard::{self, LOAN_LOCK_TIMEOUT, guarded};
use crate::{anonymous, defect, lookup, meminfo_calls, next, private, sharing};

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        next::find_all();
        lookup::find_real();
        defect::install();
        if Wishes::are_any() {
            guarded(LOAN_LOCK_TIMEOUT, |_| {
                let wishes = Wishes::from_environment();
                if let Some(min) = wishes.anonymous {
                    anonymous::serve_plain(min);
                }
                if wishes.count_ready {
                    meminfo_calls::count_ready();
                }
            });
        }
        if is_malloc_told() {
            // No other call may ever come here to say so.
            guarded(LOAN_LOCK_TIMEOUT, |_| config());
        }
        // SAFETY: three functions that live as long as the process.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    }
    start
};

extern "C" fn before_fork() {
    sharing::advance();
    guard::before_fork();
}

extern "C" fn in_parent() {
    sharing::advance();
    guard::after_fork();
}

extern "C" fn in_child() {
    sharing::advance();
    private::hold_places();
    guard::after_fork();
}
