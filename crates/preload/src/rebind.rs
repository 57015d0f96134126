// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mbind` of lent memory.
//!
//! A program maps huge pages, binds them to a node and then touches them, as QEMU does for
//! `host-nodes` and `policy=bind`. Lent memory has its pages already, by the policy in force when
//! it was mapped. Where they lie on a node that the new policy does not have, and nobody has
//! touched any, other memory takes their place: a loan from that node, or the kernel's own.
//!
//! Nobody has, if no page is in this process's page tables and no other process can have the
//! memory: it is private, or there was no fork since and the descriptor was not passed on. What is
//! touched stays where it is, as without the shim.
//!
//! # Safety
//!
//! What is replaced is lent memory that nobody has touched, so zero, by memory that is zero, with
//! the same rights, flags and length. It is mapped elsewhere first: a refusal leaves all as it was.
#![expect(unsafe_code, reason = "puts other memory in the place of what was never touched")]

use std::os::fd::IntoRawFd;

use libc::c_int;

use crate::anonymous::{self, Request};
use crate::daemon::Ask;
use crate::exchange::only_descriptor;
use crate::guard::State;
use crate::maps::{self, Piece};
use crate::memfd::Memfds;
use crate::places;
use crate::policy::Range;
use crate::raw::{self, Errno, MOVE};
use crate::say::say;
use crate::stays::Stays;

/// After an `mbind` that succeeded: puts other memory in the place of what lies on wrong nodes, and
/// calls `bind` for it, which repeats the call.
///
/// # Safety
/// The range is the program's, which has just said where its pages are to be.
pub(crate) unsafe fn bound(state: &mut State, start: usize, bytes: usize, bind: &dyn Fn(Piece)) {
    for piece in maps::pieces(start, start.saturating_add(bytes)).unwrap_or_default() {
        let Some(place) = places::of(&piece) else { continue };
        let Ok(policy) = raw::range_policy(piece.start) else { continue };
        let policy = Range::new(policy);
        if policy.suits(place.node) {
            continue;
        }
        let bytes = piece.end - piece.start;
        // SAFETY: the caller's contract.
        match unsafe { replace(state, piece, place, policy.only_node()) } {
            Ok(by) => {
                say(format_args!("{bytes} bytes that were bound to node {policy} are {by}"));
                bind(piece);
            }
            Err(why) => say(format_args!(
                "{bytes} bytes stay on node {}, though bound to {policy}: {why}",
                place.node
            )),
        }
    }
}

/// # Safety
/// As [`bound`].
unsafe fn replace(
    state: &mut State,
    piece: Piece,
    place: places::Place,
    node: Option<u32>,
) -> Result<&'static str, String> {
    if !piece.start.is_multiple_of(place.page) || !piece.end.is_multiple_of(place.page) {
        return Err("it ends within a page".to_owned());
    }
    let tables = raw::PageTables::open();
    if (piece.start..piece.end).step_by(place.page).any(|page| tables.have(page)) {
        return Err("it is in use".to_owned());
    }
    let advice = maps::advice(piece).ok_or("it has flags that another mapping would not")?;
    let private = place.private.then(|| state.stays.has(&piece));
    if private.is_none() && place.shared {
        return Err("other processes may have it".to_owned());
    }
    if state.segments.is_of(&piece) {
        return Err("it is a segment of System V".to_owned());
    }
    let bytes = (piece.end - piece.start) as u64;
    let is_memfd = state.memfds.is_of(&piece);
    let ask = Ask { bytes, page: place.page as u64, single: is_memfd, last_hope: false, node };
    let loan =
        node.and_then(|_| state.lender.lend(ask).ok()).filter(|loan| loan.ready_bytes().0 > 0);
    let by = if loan.is_some() { "lent from there" } else { "the kernel's" };
    let replaced = if is_memfd {
        // SAFETY: the caller's contract.
        unsafe { replace_memfd(&mut state.memfds, &mut state.stays, piece, place.page, loan) }
    } else {
        // SAFETY: the caller's contract.
        unsafe { replace_anonymous(&mut state.stays, piece, place.page, private, loan) }
    };
    replaced.map_err(|error| error.to_string())?;
    for advice in advice {
        // Private memory that is lent has MADV_DONTFORK of the shim's own.
        if advice == libc::MADV_DONTFORK && private == Some(false) {
            continue;
        }
        // SAFETY: this piece's memory; the advice changes no content.
        let _ = unsafe { raw::madvise(piece.start, piece.end - piece.start, advice) };
    }
    Ok(by)
}

/// # Safety
/// As [`bound`].
unsafe fn replace_anonymous(
    stays: &mut Stays,
    piece: Piece,
    page: usize,
    private: Option<bool>,
    loan: Option<client::Loan>,
) -> raw::Result<()> {
    let bytes = piece.end - piece.start;
    let kind = if private.is_some() { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
    let shift = c_int::try_from(page.trailing_zeros()).map_err(|_| Errno(libc::EINVAL))?;
    let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | shift << libc::MAP_HUGE_SHIFT;
    let request = Request { address: 0, bytes, prot: piece.prot, flags, file: None };
    if let Some(loan) = &loan {
        anonymous::remember(stays, loan, page, private.is_some())?;
    }
    let at = match &loan {
        // SAFETY: at an address of its own choice nothing is replaced.
        Some(loan) => unsafe { anonymous::place(loan, request, bytes, page) }?,
        // SAFETY: the same.
        None => unsafe { raw::mmap(0, bytes, piece.prot, flags, -1, 0) }?,
    };
    // SAFETY: see the module; the memory at `at` is this function's own.
    let moved = unsafe { places::remap(at, bytes, bytes, MOVE, piece.start) };
    if let Err(error) = moved {
        // SAFETY: this function's own.
        let _ = unsafe { raw::munmap(at, bytes) };
        return Err(error);
    }
    if private == Some(true)
        && let Some(piece) = maps::first(piece.start, piece.end)?
    {
        stays.add(&piece);
    }
    Ok(())
}

/// # Safety
/// As [`bound`].
unsafe fn replace_memfd(
    memfds: &mut Memfds,
    stays: &mut Stays,
    piece: Piece,
    page: usize,
    loan: Option<client::Loan>,
) -> raw::Result<()> {
    let bytes = piece.end - piece.start;
    let is_its = |other: &Piece| (other.device, other.inode) == (piece.device, piece.inode);
    let mappings = maps::pieces(0, usize::MAX)?.into_iter().filter(is_its).collect::<Vec<_>>();
    let (fd, size) = only_descriptor(&piece).ok_or(Errno(libc::EBUSY))?;
    if mappings != [piece] || piece.offset != 0 || size != bytes as u64 {
        return Err(Errno(libc::EBUSY));
    }
    let lent = loan.is_some();
    let file = match loan {
        Some(loan) => {
            anonymous::remember(stays, &loan, page, false)?;
            let (_, mut files) = loan.into_fds();
            files.pop().ok_or(Errno(libc::EIO))?.into_raw_fd()
        }
        None => memfds.kernels_own(&piece, size)?,
    };
    // SAFETY: at an address of the kernel's choice nothing is replaced.
    let mapped = unsafe { raw::mmap(0, bytes, piece.prot, libc::MAP_SHARED, file, 0) };
    let done = mapped.and_then(|at| {
        // SAFETY: see the module; the memory at `at` is this function's own.
        unsafe { raw::mremap(at, bytes, bytes, MOVE, piece.start) }
    });
    let done = done.and_then(|_| memfds.replace(&piece, fd, file, lent));
    raw::close(file);
    done
}
