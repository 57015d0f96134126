// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `sendmsg` and `sendmmsg`, which pass descriptors on to other processes.
//!
//! # Safety
//!
//! Messages are read as the calls themselves read them, and passed on as they came. What else is
//! unsafe is calling the C library's functions with the types that their headers give them.
#![expect(unsafe_code, reason = "reads the program's messages")]

use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t};

use crate::calls::{Next, guarded};
use crate::guard::{State, WAIT};
use crate::raw::{self, c_int_result, c_result};
use crate::{memfd, places, unlinked};

pub(crate) static SENDMSG: Next = Next::new(c"sendmsg");
pub(crate) static SENDMMSG: Next = Next::new(c"sendmmsg");

/// What messages pass on to other processes is not to be exchanged for something else any more.
///
/// # Safety
/// They are as `sendmsg` wants them.
unsafe fn before_passing(messages: &[mmsghdr]) {
    if messages.iter().all(|message| message.msg_hdr.msg_control.is_null()) {
        return;
    }
    unlinked::parts();
    if !memfd::is_any() {
        return;
    }
    guarded(WAIT, |state| {
        for message in messages {
            // SAFETY: the caller's contract.
            unsafe { note_passed(state, &message.msg_hdr) };
        }
    });
}

/// # Safety
/// As [`before_passing`].
unsafe fn note_passed(state: &mut State, header: &msghdr) {
    if header.msg_control.is_null() {
        return;
    }
    // SAFETY: the caller's contract: so many bytes of control messages.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: the same; the macros stay within these bytes.
    while let Some(rights) = unsafe { control.as_ref() } {
        if (rights.cmsg_level, rights.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: computes a length.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = rights.cmsg_len.saturating_sub(head) / size_of::<c_int>();
            // SAFETY: behind a control message's head lies its data.
            let data = unsafe { libc::CMSG_DATA(control) }.cast::<c_int>();
            for at in 0..count {
                let fd = data.wrapping_add(at);
                // SAFETY: one of its descriptors, which need not be aligned.
                let Ok(file) = raw::file(unsafe { fd.read_unaligned() }) else { continue };
                state.memfds.passed(file);
                places::passed(file);
            }
        }
        // SAFETY: as above.
        control = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
}

/// `sendmsg(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract; null is an error for the kernel to find.
    let header = unsafe { message.as_ref() };
    if let Some(header) = header {
        // SAFETY: the caller's contract.
        unsafe { before_passing(&[mmsghdr { msg_hdr: *header, msg_len: 0 }]) };
    }
    match SENDMSG.get() {
        0 => c_result(raw::sendmsg(fd, message.addr(), flags)),
        at => {
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe {
                std::mem::transmute::<
                    usize,
                    unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t,
                >(at)
            };
            // SAFETY: the caller's contract.
            unsafe { next(fd, message, flags) }
        }
    }
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
    if !messages.is_null() {
        // SAFETY: the caller's contract: so many of them.
        let messages = unsafe { std::slice::from_raw_parts(messages, count as usize) };
        // SAFETY: the caller's contract.
        unsafe { before_passing(messages) };
    }
    match SENDMMSG.get() {
        // SAFETY: the caller's contract.
        0 => c_int_result(unsafe { raw::sendmmsg(fd, messages.addr(), count, flags) }),
        at => {
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe {
                std::mem::transmute::<
                    usize,
                    unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int,
                >(at)
            };
            // SAFETY: the caller's contract.
            unsafe { next(fd, messages, count, flags) }
        }
    }
}
