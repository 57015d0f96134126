// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `sendmsg` and `sendmmsg`, which pass descriptors to other processes. What the message holds is
//! not read: any control data counts as descriptors.
//!
//! # Safety
//!
//! Messages are read as the calls themselves read them, and passed on as they came.
#![expect(unsafe_code, reason = "reads the program's messages")]

use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t};

use crate::next::{SENDMMSG, SENDMSG};
use crate::raw::{self, c_int_result, c_result};
use crate::sharing;

/// `sendmsg(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract; null is an error for the kernel to find.
    if unsafe { message.as_ref() }.is_some_and(|header| !header.msg_control.is_null()) {
        sharing::advance();
    }
    SENDMSG.call(
        // SAFETY: the caller's contract.
        |sendmsg| unsafe { sendmsg(fd, message, flags) },
        || c_result(raw::sendmsg(fd, message.addr(), flags)),
    )
}

/// `sendmmsg(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    sharing::advance();
    SENDMMSG.call(
        // SAFETY: the caller's contract.
        |sendmmsg| unsafe { sendmmsg(fd, messages, count, flags) },
        // SAFETY: the caller's contract.
        || c_int_result(unsafe { raw::sendmmsg(fd, messages.addr(), count, flags) }),
    )
}
