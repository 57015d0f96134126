// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mmap(MAP_ANONYMOUS | MAP_HUGETLB)`; and large shared mappings without `MAP_HUGETLB`, where the
//! operator allows it (`PREZERO_ANONYMOUS`, `prezero run --anonymous`).
//!
//! Lent memory is a file's, mapped shared. For a shared request the kernel does the same, so the
//! program finds no difference. A private request is served only on demand: [`crate::private`].
//!
//! A loan may come in several blocks, which are as many mappings. From Linux 6.17 on the kernel
//! moves several mappings by one `mremap`. Before, a shared request is served by one block.
//!
//! # Safety
//!
//! This file maps into a range that it reserved from the kernel for this very request. With
//! `MAP_FIXED` the result then moves to where the program asked for all to be replaced.
#![expect(unsafe_code, reason = "maps memory where the program asked for it")]

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use client::{Bytes, Loan};
use libc::c_int;

use crate::config::config;
use crate::daemon::{Ask, Lender};
use crate::lent_files::LentFiles;
use crate::lent_ranges::{self, Kind, Range};
use crate::raw::{self, Errno};
use crate::say::say;

/// One call's arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) prot: c_int,
    pub(crate) flags: c_int,
    /// For a private mapping of an empty file without a name: the size of its pages.
    pub(crate) file_page: Option<u64>,
}

/// Flags of a request that a mapping of the loan keeps.
const KEPT: c_int = libc::MAP_POPULATE | libc::MAP_NONBLOCK | libc::MAP_LOCKED;
/// Page tables can be shared per GiB, see the daemon's `tables`.
const GIB: usize = 1 << 30;

/// Whether flags ask for anonymous huge pages.
pub(crate) fn is_for_huge_pages(flags: c_int) -> bool {
    let wanted = libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    flags & wanted == wanted
}

/// Plain shared mappings of at least that size are served; none without the operator's wish.
static MIN_PLAIN: AtomicU64 = AtomicU64::new(u64::MAX);

/// Has plain shared mappings of at least that size served.
pub(crate) fn serve_plain(min: u64) {
    MIN_PLAIN.store(min, Ordering::Relaxed);
}

/// Whether it is a plain shared mapping that the operator wants served.
pub(crate) fn is_large(flags: c_int, bytes: usize) -> bool {
    let is_plain = flags & libc::MAP_HUGETLB == 0 && flags & libc::MAP_TYPE == libc::MAP_SHARED;
    is_plain && bytes as u64 >= MIN_PLAIN.load(Ordering::Relaxed)
}

pub(crate) fn is_private(flags: c_int) -> bool {
    flags & libc::MAP_TYPE == libc::MAP_PRIVATE
}

impl Request {
    /// The page size that the flags name, or the default.
    fn page(&self, default: u64) -> u64 {
        self.file_page.unwrap_or_else(|| page_of(self.flags.cast_unsigned(), default))
    }

    /// Whether it asks for no huge pages: [`serve_plain`].
    fn is_plain(&self) -> bool {
        self.file_page.is_none() && !is_for_huge_pages(self.flags)
    }

    /// Why the request is not served.
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
            () if is_private(self.flags) && !config.private => {
                Some("it is private, which needs PREZERO_PRIVATE=1")
            }
            () if self.flags & libc::MAP_NORESERVE != 0 => {
                Some("MAP_NORESERVE asks for address space and no memory")
            }
            () if self.flags & libc::MAP_GROWSDOWN != 0 => Some("MAP_GROWSDOWN"),
            () if self.flags & libc::MAP_FIXED != 0 && not_aligned() => {
                Some("the address is not a multiple of the page size")
            }
            () if self.bytes == 0 => Some("it is empty"),
            // The kernel unmaps whole huge pages only.
            () if self.is_plain() && !(self.bytes as u64).is_multiple_of(page) => {
                Some("its length is not a multiple of the page size")
            }
            () if self.is_plain() && self.flags & libc::MAP_FIXED != 0 => {
                Some("it is plain memory with MAP_FIXED")
            }
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

/// Serves a request: the address, or `None` if nothing was done. `last_hope`: the kernel has no
/// page for it, so that pages which are not ready serve as well.
///
/// # Safety
/// As `mmap` itself: with `MAP_FIXED` the program gives up what lies in the range.
pub(crate) unsafe fn map(
    lender: &mut Lender,
    files: &mut LentFiles,
    request: Request,
    last_hope: bool,
) -> Option<usize> {
    let not = |why: &dyn std::fmt::Display| {
        say(format_args!("mmap of {} bytes is not served: {why}", request.bytes));
        None
    };
    if let Some(why) = request.obstacle() {
        return not(&why);
    }
    let page = request.page(config().default_page);
    let Some(bytes) = (request.bytes as u64).checked_next_multiple_of(page) else {
        return not(&"its length has no multiple of the page size");
    };
    let rows_move = || raw::kernel_release().is_some_and(|release| release >= (6, 17));
    let single = !is_private(request.flags) && !rows_move();
    let loans = match lender.lend_spread(Ask { bytes, page, single, last_hope, node: None }) {
        Ok(loans) => loans,
        Err(why) => return not(&why),
    };
    let ready: Bytes = loans.iter().map(Loan::ready_bytes).sum();
    if ready.0 == 0 && !last_hope {
        return not(&"nothing is ready");
    }
    if request.is_plain() && ready.0 < bytes {
        // Its own pages would come without a limit.
        return not(&"it is plain memory, and not all of it is ready");
    }
    // SAFETY: the caller's contract.
    match unsafe { serve(files, &loans, request, page) } {
        Ok(start) => {
            let blocks: usize = loans.iter().map(|loan| loan.parts().len()).sum();
            say(format_args!(
                "mmap of {bytes} bytes at {start:#x} is served: {ready} ready, {blocks} blocks"
            ));
            Some(start)
        }
        Err(error) => not(&error),
    }
}

/// Maps the loans for the request.
///
/// # Safety
/// As [`map`].
unsafe fn serve(
    files: &mut LentFiles,
    loans: &[Loan],
    request: Request,
    page: u64,
) -> Result<usize, String> {
    let too_long = |_| "it is too long".to_owned();
    let bytes: Bytes = loans.iter().map(Loan::bytes).sum();
    let bytes = usize::try_from(bytes.0).map_err(too_long)?;
    let page = usize::try_from(page).map_err(too_long)?;
    let private = is_private(request.flags);
    for loan in loans {
        files.add(loan, page, private, None).map_err(|error| error.to_string())?;
    }
    // SAFETY: the caller's contract.
    unsafe { place(loans, request, bytes, page) }
}

/// Maps the loans' blocks in a row, and notes the range.
///
/// Where the request replaces something, the blocks are mapped elsewhere first, and moved: a
/// refusal changes nothing.
///
/// # Safety
/// As [`map`].
pub(crate) unsafe fn place(
    loans: &[Loan],
    request: Request,
    bytes: usize,
    page: usize,
) -> Result<usize, String> {
    let private = is_private(request.flags);
    let replaces = request.flags & libc::MAP_FIXED != 0;
    let elsewhere = Request { address: 0, flags: request.flags & !libc::MAP_FIXED, ..request };
    let start = reserve(if replaces { elsewhere } else { request }, bytes, page)
        .map_err(|error| error.to_string())?;
    let to = if replaces { request.address } else { start };
    let range = Range::new(to, bytes);
    if private && let Err(why) = lent_ranges::add(range, Kind::Private) {
        unmap(start, bytes);
        return Err(why.to_owned());
    }
    // SAFETY: the caller's contract, and a range of this function's own.
    let placed = unsafe { map_blocks(loans, request, start) }.and_then(|()| {
        if private {
            // A child must never share private memory. The advice changes no content.
            // SAFETY: just mapped.
            unsafe { raw::madvise(start, bytes, libc::MADV_DONTFORK) }?;
        }
        if replaces {
            // SAFETY: the program gave that range up by MAP_FIXED.
            unsafe { move_blocks(loans, start, to) }?;
        }
        Ok(())
    });
    match placed {
        Ok(()) => {
            if !private {
                // A full table costs an exchange at `mbind`, and nothing else.
                let _ = lent_ranges::add(range, Kind::Shared);
            }
            Ok(to)
        }
        Err(error) => {
            if private {
                lent_ranges::remove(range);
            }
            unmap(start, bytes);
            Err(error.to_string())
        }
    }
}

/// # Safety
/// The range from `start` on is the caller's own.
unsafe fn map_blocks(loans: &[Loan], request: Request, start: usize) -> raw::Result<()> {
    let mut at = start;
    for (fd, part) in loans.iter().flat_map(Loan::parts) {
        let bytes = usize::try_from(part.bytes.0).map_err(|_| Errno(libc::ENOMEM))?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | (request.flags & KEPT);
        // SAFETY: the caller's contract.
        unsafe { raw::mmap(at, bytes, request.prot, flags, fd.as_raw_fd(), 0) }?;
        at += bytes;
    }
    Ok(())
}

/// # Safety
/// The blocks are the caller's own, and so is the range from `to` on.
unsafe fn move_blocks(loans: &[Loan], from: usize, to: usize) -> raw::Result<()> {
    let mut ahead = 0;
    for (_, part) in loans.iter().flat_map(Loan::parts) {
        let bytes = usize::try_from(part.bytes.0).map_err(|_| Errno(libc::ENOMEM))?;
        // SAFETY: the caller's contract.
        unsafe { raw::mremap(from + ahead, bytes, bytes, raw::MOVE, to + ahead) }?;
        ahead += bytes;
    }
    Ok(())
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
    // MariaDB gives back memory outside of a multiple of 8 MiB and asks for more: the largest power
    // of two inside of the length suits it. At whole GiB page tables can be shared.
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

/// Free address space, at the hint if that is free.
fn reserve_at(hint: usize, bytes: usize, place_flags: c_int) -> raw::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | place_flags;
    // SAFETY: without MAP_FIXED nothing is replaced.
    unsafe { raw::mmap(hint, bytes, libc::PROT_NONE, flags, -1, 0) }
}

/// Gives back what this file has just mapped, before any other code has its address.
fn unmap(start: usize, bytes: usize) {
    // SAFETY: a range of this file's own.
    let result = unsafe { raw::munmap(start, bytes) };
    if let Err(error) = result {
        say(format_args!("{bytes} bytes of address space are lost: munmap: {error}"));
    }
}
