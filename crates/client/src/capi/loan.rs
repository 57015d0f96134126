// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Borrowing, mapping, returning.
#![expect(unsafe_code, reason = "pointers of a C program: the contract is the parent module's")]

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

use linux::Mapping;
use units::{Bytes, Node, Owner, PageSize};
use wire::{Hold, LendRequest};

use super::{CallFailure, give, handle, prezero, run, text};
use crate::loan::Loan;

/// In `prezero_request.node`: any node.
pub const PREZERO_ANY_NODE: i32 = -1;
/// In `prezero_request.flags`: the loan must be one file, for programs that pass its descriptor on.
pub const PREZERO_SINGLE: u32 = 1;
/// In `prezero_request.flags`: the loan lasts while any process maps it or has it open, with or
/// without its lease's descriptor.
pub const PREZERO_HELD_BY_MEMORY: u32 = 2;

/// What to borrow. Fill it with PREZERO_REQUEST_INIT, then set what matters.
#[allow(non_camel_case_types, reason = "the header's name")]
#[repr(C)]
#[derive(Debug)]
pub struct prezero_request {
    /// sizeof(struct prezero_request): which fields the program knows.
    pub size: u32,
    /// PREZERO_SINGLE, PREZERO_HELD_BY_MEMORY.
    pub flags: u32,
    /// How much, in bytes: whole pages.
    pub bytes: u64,
    /// In pages of how many bytes; 0 leaves it to the daemon.
    pub page_bytes: u64,
    /// From which NUMA node; PREZERO_ANY_NODE takes any.
    pub node: i32,
    /// How many seconds the content stays for `owner` after its return.
    pub keep_seconds: u32,
    /// Under which name, to get the content back after a restart; null for none.
    pub owner: *const c_char,
}

/// One block of a loan.
#[allow(non_camel_case_types, reason = "the header's name")]
#[repr(C)]
#[derive(Debug)]
pub struct prezero_part {
    /// Its descriptor, which stays the loan's: duplicate it to keep it. Map it MAP_SHARED.
    pub fd: c_int,
    /// Its NUMA node.
    pub node: u32,
    /// Its length in bytes.
    pub bytes: u64,
    /// Ready pages, counted from its start; the program's own faults fill the rest.
    pub ready_bytes: u64,
}

/// A loan.
#[allow(non_camel_case_types, reason = "the header's name")]
#[derive(Debug)]
pub struct prezero_loan {
    loan: Loan,
    mapping: Option<Mapping>,
}

/// # Safety
/// `request` is null or a request with its true `size`.
unsafe fn read(request: *const prezero_request) -> Result<LendRequest, CallFailure> {
    // SAFETY: the caller's contract; the size comes first in every version.
    let size = unsafe { request.cast::<u32>().as_ref() }
        .ok_or_else(|| CallFailure::invalid("the request is null"))?;
    if (*size as usize) < size_of::<prezero_request>() {
        return Err(CallFailure::invalid("request.size is too small: use PREZERO_REQUEST_INIT"));
    }
    // SAFETY: the caller's contract: it is there and at least as large. A larger one is a later
    // version's with fields unknown to this one; they are checked for zeros below.
    let known = unsafe { &*request };
    let tail = (*size as usize) - size_of::<prezero_request>();
    // SAFETY: the bytes behind, which `size` says are there.
    let tail = unsafe { std::slice::from_raw_parts(request.wrapping_add(1).cast::<u8>(), tail) };
    if tail.iter().any(|byte| *byte != 0) {
        return Err(CallFailure::invalid("the request has fields that this version does not know"));
    }
    if known.flags & !(PREZERO_SINGLE | PREZERO_HELD_BY_MEMORY) != 0 {
        return Err(CallFailure::invalid("request.flags has an unknown flag"));
    }
    let node = match known.node {
        PREZERO_ANY_NODE => None,
        node => Some(Node(
            u32::try_from(node).map_err(|_| CallFailure::invalid("request.node is negative"))?,
        )),
    };
    let page_size = match known.page_bytes {
        0 => None,
        bytes => Some(PageSize::new(bytes).ok_or_else(|| {
            CallFailure::invalid("request.page_bytes is no page size: a power of two from 4096")
        })?),
    };
    // SAFETY: the caller's contract.
    let owner = unsafe { text(known.owner) }?;
    let parse = |name: &str| {
        name.parse::<Owner>()
            .map_err(|error| CallFailure::invalid(&format!("request.owner: {error}")))
    };
    let owner = owner.map(parse).transpose()?;
    let keep = (known.keep_seconds > 0).then(|| Duration::from_secs(known.keep_seconds.into()));
    Ok(LendRequest {
        page_size,
        node,
        owner,
        keep,
        single: known.flags & PREZERO_SINGLE != 0,
        hold: match known.flags & PREZERO_HELD_BY_MEMORY {
            0 => Hold::Descriptor,
            _ => Hold::Memory,
        },
        ..LendRequest::new(Bytes(known.bytes))
    })
}

/// Borrows memory. Never waits for zeroing: dirty parts come as an unbacked part, which the kernel
/// zeroes when the program touches it.
///
/// Returns 0 and a loan, or a negative errno: -EINVAL (a value is not allowed), -EACCES, -EDQUOT,
/// -ENODEV (no such pages), -ENOMEM (too few), -EAGAIN (no answer in time).
///
/// # Safety
/// `connection` is a connection, `request` a request, `out` valid for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_lend(
    connection: *mut prezero,
    request: *const prezero_request,
    out: *mut *mut prezero_loan,
) -> c_int {
    run(|| {
        // SAFETY: the caller's contract.
        let connection = unsafe { handle(connection) }?;
        // SAFETY: the caller's contract.
        let request = unsafe { read(request) }?;
        if out.is_null() {
            return Err(CallFailure::invalid("the place for a result is null"));
        }
        let loan = connection.client.lend(&request)?;
        let loan = Box::new(prezero_loan { loan, mapping: None });
        // SAFETY: the caller's contract.
        unsafe { give(out, Box::into_raw(loan)) }
    })
}

/// Maps all of a loan as one range, readable and writable, shared. A second call gives the same
/// range again. It stays until prezero_return().
///
/// # Safety
/// `loan` is a loan; `address` and `bytes` are valid for writing, `bytes` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_map(
    loan: *mut prezero_loan,
    address: *mut *mut c_void,
    bytes: *mut usize,
) -> c_int {
    run(|| {
        // SAFETY: the caller's contract.
        let loan = unsafe { handle(loan) }?;
        let mapping = match &loan.mapping {
            Some(mapping) => mapping,
            None => loan.mapping.insert(loan.loan.map_parts()?),
        };
        if !bytes.is_null() {
            // SAFETY: the caller's contract.
            unsafe { give(bytes, mapping.len()) }?;
        }
        // SAFETY: the caller's contract.
        unsafe { give(address, mapping.as_ptr().cast()) }
    })
}

/// Returns a loan: unmaps what prezero_map() mapped and closes its descriptors. It ends with the
/// last duplicate and the last mapping in any process. Null is allowed.
///
/// # Safety
/// `loan` is null or a loan; the loan and its memory are not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_return(loan: *mut prezero_loan) {
    if loan.is_null() {
        return;
    }
    run(|| {
        // SAFETY: made by `Box::into_raw`, and given back once by the caller's contract.
        let loan = unsafe { Box::from_raw(loan) };
        let prezero_loan { loan, mapping } = *loan;
        drop(mapping);
        drop(loan);
        Ok(())
    });
}

/// A loan's length in bytes; 0 for null.
///
/// # Safety
/// `loan` is null or a loan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_loan_bytes(loan: *const prezero_loan) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { loan.as_ref() }.map_or(0, |loan| loan.loan.bytes().0)
}

/// The ready bytes of a loan; 0 for null.
///
/// # Safety
/// `loan` is null or a loan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_loan_ready_bytes(loan: *const prezero_loan) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { loan.as_ref() }.map_or(0, |loan| loan.loan.ready_bytes().0)
}

/// The size of a loan's pages in bytes; 0 for null.
///
/// # Safety
/// `loan` is null or a loan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_loan_page_bytes(loan: *const prezero_loan) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { loan.as_ref() }.map_or(0, |loan| loan.loan.page_size().bytes())
}

/// Whether a loan's content is what its owner left; if not it is zero.
///
/// # Safety
/// `loan` is null or a loan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_loan_is_kept(loan: *const prezero_loan) -> bool {
    // SAFETY: the caller's contract.
    unsafe { loan.as_ref() }.is_some_and(|loan| loan.loan.is_kept())
}

/// The lease's descriptor, which stays the loan's; -1 for null. The loan lasts while any duplicate
/// of it is open: pass one on to a process that must keep it alive.
///
/// # Safety
/// `loan` is null or a loan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_loan_lease_fd(loan: *const prezero_loan) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { loan.as_ref() }
        .and_then(|loan| loan.loan.lease())
        .map_or(-1, |lease| lease.as_raw_fd())
}

/// How many blocks a loan has; 0 for null.
///
/// # Safety
/// `loan` is null or a loan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_loan_parts(loan: *const prezero_loan) -> usize {
    // SAFETY: the caller's contract.
    unsafe { loan.as_ref() }.map_or(0, |loan| loan.loan.parts().len())
}

/// Describes block number `index` of a loan; -EINVAL if it has no such block.
///
/// # Safety
/// `loan` is a loan, `out` valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_loan_part(
    loan: *mut prezero_loan,
    index: usize,
    out: *mut prezero_part,
) -> c_int {
    run(|| {
        // SAFETY: the caller's contract.
        let loan = unsafe { handle(loan) }?;
        let (fd, part) = loan
            .loan
            .parts()
            .nth(index)
            .ok_or_else(|| CallFailure::invalid("the loan has fewer blocks"))?;
        let part = prezero_part {
            fd: fd.as_raw_fd(),
            node: part.node.0,
            bytes: part.bytes.0,
            ready_bytes: part.ready_bytes.0,
        };
        // SAFETY: the caller's contract.
        unsafe { give(out, part) }
    })
}
