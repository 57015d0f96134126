// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mmap(MAP_ANONYMOUS | MAP_HUGETLB)`.
//!
//! Lent memory is a file's, mapped shared. For a shared request that is what the kernel itself
//! makes. A private request differs where processes part or pages are given back: see
//! [`crate::private`].
//!
//! # Safety
//!
//! What is mapped here lies in a range that this file reserved from the kernel for this very
//! request, so that nobody else has anything there. With `MAP_FIXED` it is then moved to where the
//! program itself asked for whatever was there to be replaced.
#![expect(unsafe_code, reason = "maps memory where the program asked for it")]

use std::os::fd::AsRawFd;

use client::Loan;
use libc::c_int;

use crate::config::config;
use crate::daemon::{Ask, Lender};
use crate::raw::{self, Errno};
use crate::say::say;
use crate::stays::Stays;
use crate::{next, places, private};

/// One call's arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) prot: c_int,
    pub(crate) flags: c_int,
    /// The descriptor of a file without a name and without memory, and the size of its pages: what
    /// is private of it is as anonymous.
    pub(crate) file: Option<(c_int, u64)>,
}

/// What else of a request's flags a mapping of the loan takes over.
const KEPT: c_int = libc::MAP_POPULATE | libc::MAP_NONBLOCK | libc::MAP_LOCKED;
/// Page tables can be shared per GiB, see the daemon's `tables`.
const GIB: usize = 1 << 30;

impl Request {
    pub(crate) fn is_for_huge_pages(&self) -> bool {
        let wanted = libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        self.flags & wanted == wanted
    }

    fn is_private(&self) -> bool {
        self.flags & libc::MAP_TYPE == libc::MAP_PRIVATE
    }

    /// The page size that the flags name, or the default.
    fn page(&self, default: u64) -> u64 {
        let named = self.file.map(|(_, page)| page);
        named.unwrap_or_else(|| page_of(self.flags.cast_unsigned(), default))
    }

    /// Why it is not to be served.
    fn obstacle(&self) -> Option<&'static str> {
        let kind = self.flags & libc::MAP_TYPE;
        let config = config();
        let page = self.page(config.default_page);
        let not_aligned = || !(self.address as u64).is_multiple_of(page);
        match () {
            () if !config.enabled => Some("this program is not in PREZERO_ONLY"),
            () if kind != libc::MAP_SHARED && kind != libc::MAP_PRIVATE => {
                Some("it is neither MAP_SHARED nor MAP_PRIVATE")
            }
            () if self.is_private() && config.private.is_none() => {
                Some("it is private, and PREZERO_PRIVATE=no")
            }
            () if self.flags & libc::MAP_NORESERVE != 0 => {
                Some("MAP_NORESERVE asks for address space, not for memory")
            }
            () if self.flags & libc::MAP_GROWSDOWN != 0 => Some("MAP_GROWSDOWN"),
            () if self.flags & libc::MAP_FIXED != 0 && not_aligned() => {
                Some("the address is not a multiple of the page size")
            }
            () if self.bytes == 0 => Some("it is empty"),
            () => None,
        }
    }
}

/// The page size in the flags of `mmap`, `memfd_create` and `shmget`.
pub(crate) fn page_of(flags: u32, default: u64) -> u64 {
    match flags >> libc::MAP_HUGE_SHIFT & 0x3F {
        0 => default,
        shift => 1 << shift,
    }
}

/// Serves a request, or makes the untouched call.
///
/// # Safety
/// As `mmap` itself: with `MAP_FIXED` what lies in the range is the program's to give up.
pub(crate) unsafe fn map(
    lender: &mut Lender,
    stays: &mut Stays,
    request: Request,
) -> raw::Result<usize> {
    let untouched = || {
        let Request { address, bytes, prot, flags, file } = request;
        let fd = file.map_or(-1, |(fd, _)| fd);
        // SAFETY: the program's own call, with its own arguments.
        unsafe { next::mmap(address, bytes, prot, flags, fd, 0) }
    };
    let obstacle = request.obstacle();
    let page = request.page(config().default_page);
    let rounded = (request.bytes as u64).checked_next_multiple_of(page);
    let (None, Some(bytes)) = (obstacle, rounded) else {
        let why = obstacle.unwrap_or("its length has no multiple of the page size");
        say(format_args!("mmap of {} bytes is not served: {why}", request.bytes));
        return untouched();
    };
    let ask = Ask { bytes, page, single: false, last_hope: false, node: None };
    let mut waiting = None;
    match lender.lend(ask) {
        // SAFETY: the caller's contract.
        Ok(loan) if loan.ready_bytes().0 > 0 => match unsafe { serve(stays, &loan, request, page) }
        {
            Ok(start) => return Ok(start),
            Err(error) => say(format_args!("mmap of {bytes} bytes is not served: {error}")),
        },
        // Memory that nobody has zeroed is no better than the kernel's own, as long as it has some.
        Ok(loan) => {
            say(format_args!("mmap of {bytes} bytes is not served: nothing is ready"));
            waiting = Some(loan);
        }
        Err(why) => say(format_args!("mmap of {bytes} bytes is not served: {why}")),
    }
    let refused = match untouched() {
        Err(refused @ Errno(libc::ENOMEM)) => refused,
        result => return result,
    };
    // The pages may be the daemon's: with it, as without it, the program is to get them.
    let loan = waiting.map_or_else(|| lender.lend(Ask { last_hope: true, ..ask }), Ok);
    let served = loan.and_then(|loan| {
        // SAFETY: the caller's contract.
        let served = unsafe { serve(stays, &loan, request, page) };
        served.map_err(|error| error.to_string())
    });
    served.map_err(|why| {
        say(format_args!("nor has the kernel {bytes} bytes, nor the daemon: {why}"));
        refused
    })
}

/// Maps the loan for the request.
///
/// # Safety
/// As [`map`].
unsafe fn serve(stays: &mut Stays, loan: &Loan, request: Request, page: u64) -> raw::Result<usize> {
    let too_long = |_| Errno(libc::ENOMEM);
    let bytes = usize::try_from(loan.bytes().0).map_err(too_long)?;
    let page = usize::try_from(page).map_err(too_long)?;
    remember(stays, loan, page, request.is_private())?;
    // SAFETY: the caller's contract.
    let start = unsafe { place(loan, request, bytes, page) }?;
    say(format_args!(
        "mmap of {bytes} bytes at {start:#x} is served: {} ready, {} blocks",
        loan.ready_bytes(),
        loan.parts().len()
    ));
    Ok(start)
}

/// Remembers the loan's files, before anybody can see a mapping of them.
pub(crate) fn remember(
    stays: &mut Stays,
    loan: &Loan,
    page: usize,
    private: bool,
) -> raw::Result<()> {
    places::make_room(loan.parts().len())?;
    for (fd, part) in loan.parts() {
        let file = places::add(fd, part.node.0, page, private)?;
        stays.is_new(file);
    }
    Ok(())
}

/// Maps the loan's blocks in a row.
///
/// Where something is to be replaced they are mapped elsewhere first, and moved: a refusal leaves
/// what is there.
///
/// # Safety
/// As [`map`].
pub(crate) unsafe fn place(
    loan: &Loan,
    request: Request,
    bytes: usize,
    page: usize,
) -> raw::Result<usize> {
    let replaces = request.flags & libc::MAP_FIXED != 0;
    let elsewhere = Request { address: 0, flags: request.flags & !libc::MAP_FIXED, ..request };
    let start = reserve(if replaces { elsewhere } else { request }, bytes, page)?;
    let mut at = start;
    let mut placed = Ok(0);
    for (fd, part) in loan.parts() {
        let part_bytes = usize::try_from(part.bytes.0).map_err(|_| Errno(libc::ENOMEM))?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | (request.flags & KEPT);
        // SAFETY: the range was reserved above for all of the blocks.
        placed = unsafe { raw::mmap(at, part_bytes, request.prot, flags, fd.as_raw_fd(), 0) };
        if placed.is_err() {
            break;
        }
        at += part_bytes;
    }
    if placed.is_ok() && request.is_private() {
        let to = if replaces { request.address } else { start };
        private::will_be_in(to, bytes);
        // A child of a clone that the shim does not see must not share what is private.
        // SAFETY: just mapped, and the advice changes no content.
        placed = unsafe { raw::madvise(start, bytes, libc::MADV_DONTFORK) };
    }
    if placed.is_ok() && replaces {
        let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the program gave that range up by MAP_FIXED, and this one is this function's own.
        placed = unsafe { places::remap(start, bytes, bytes, moves, request.address) };
    }
    match placed {
        Ok(_) => Ok(if replaces { request.address } else { start }),
        Err(error) => {
            unmap(start, bytes);
            Err(error)
        }
    }
}

/// Below 2 GiB: x86's alone.
#[cfg(target_arch = "x86_64")]
const MAP_32BIT: libc::c_int = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const MAP_32BIT: libc::c_int = 0;

/// Address space where the request may lie, at a multiple of the page size.
fn reserve(request: Request, bytes: usize, page: usize) -> raw::Result<usize> {
    let place_flags = request.flags & (libc::MAP_FIXED_NOREPLACE | MAP_32BIT);
    if request.address != 0 && request.address.is_multiple_of(page) {
        let hinted = reserve_at(request.address, bytes, place_flags)?;
        if hinted.is_multiple_of(page) {
            return Ok(hinted);
        }
        unmap(hinted, bytes);
    }
    if request.flags & libc::MAP_FIXED_NOREPLACE != 0 {
        return Err(Errno(libc::EINVAL));
    }
    // MariaDB gives back what is not at a multiple of 8 MiB and asks for more: the largest power of
    // two that is in it suits who wants any. At whole GiB page tables can be shared.
    let align = page.max(GIB.min(1 << bytes.checked_ilog2().unwrap_or(0)));
    let padded = bytes.checked_add(align).ok_or(Errno(libc::ENOMEM))?;
    let whole = reserve_at(0, padded, place_flags)?;
    let start = whole.next_multiple_of(align);
    if start > whole {
        unmap(whole, start - whole);
    }
    let rest = whole + padded - (start + bytes);
    if rest > 0 {
        unmap(start + bytes, rest);
    }
    Ok(start)
}

/// Address space that nobody has, at the hint if it is free there.
fn reserve_at(hint: usize, bytes: usize, place_flags: c_int) -> raw::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | place_flags;
    // SAFETY: without MAP_FIXED nothing is replaced.
    unsafe { raw::mmap(hint, bytes, libc::PROT_NONE, flags, -1, 0) }
}

/// Gives back what this file has just mapped and nobody knows of.
fn unmap(start: usize, bytes: usize) {
    // SAFETY: a range of this file's own, whose address no one was told.
    let result = unsafe { raw::munmap(start, bytes) };
    if let Err(error) = result {
        say(format_args!("{bytes} bytes of address space are lost: munmap: {error}"));
    }
}
