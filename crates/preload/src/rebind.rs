// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mbind` of lent memory.
//!
//! A program maps huge pages, binds them to a node and then touches them, as QEMU does for
//! `host-nodes` and `policy=bind`. Lent memory has its pages already, by the policy in force when
//! it was mapped. Pages may lie on a node that the new policy leaves out. If no process has touched
//! them, other memory takes their place: a loan from that node, or the kernel's own.
//!
//! Memory counts as untouched if this process's page tables have no page of it, and this process
//! alone can have it. Private memory is its own, and so is memory made after the last fork and the
//! last message with descriptors. Touched
//! memory stays where it is, as without the shim.
//!
//! # Safety
//!
//! The code replaces untouched lent memory, so zero, by memory that is zero, with the same rights,
//! flags and length. The new memory is mapped elsewhere first: a refusal leaves all as it
//! was.
#![expect(unsafe_code, reason = "puts other memory in the place of untouched memory")]

use std::os::fd::IntoRawFd;

use libc::c_int;

use crate::anonymous::{self, Request};
use crate::daemon::Ask;
use crate::guard::State;
use crate::lent_files::{LentFile, LentFiles, Memfd};
use crate::lent_ranges::Range;
use crate::maps;
use crate::memfd::{descriptors_of, kernels_own, put};
use crate::policy::RangePolicy;
use crate::raw::{self, Errno, MOVE, Mapping};
use crate::say::say;

/// After an `mbind` that succeeded: puts other memory in the place of what lies on wrong nodes, and
/// calls `bind` for it, which repeats the call.
///
/// # Safety
/// The range is the program's, which has just said where its pages belong.
pub(crate) unsafe fn bound(state: &mut State, range: Range, bind: &dyn Fn(Mapping)) {
    for mapping in maps::mappings(range.start, range.end).unwrap_or_default() {
        let Some(lent) = state.files.of(&mapping) else { continue };
        let Ok(policy) = raw::range_policy(mapping.start) else { continue };
        let policy = RangePolicy::new(policy);
        if policy.suits(lent.node) {
            continue;
        }
        let bytes = mapping.bytes();
        // SAFETY: the caller's contract.
        match unsafe { replace(state, mapping, lent, &policy) } {
            Ok(by) => {
                say(format_args!("{bytes} bytes that were bound to node {policy} are {by}"));
                bind(mapping);
            }
            Err(why) => say(format_args!(
                "{bytes} bytes stay on node {}, though bound to {policy}: {why}",
                lent.node
            )),
        }
    }
}

/// # Safety
/// As [`bound`].
unsafe fn replace(
    state: &mut State,
    mapping: Mapping,
    lent: LentFile,
    policy: &RangePolicy,
) -> Result<&'static str, String> {
    if !mapping.start.is_multiple_of(lent.page) || !mapping.end.is_multiple_of(lent.page) {
        return Err("it ends within a page".to_owned());
    }
    let tables = raw::PageTables::open();
    if (mapping.start..mapping.end).step_by(lent.page).any(|page| tables.have(page)) {
        return Err("it is in use".to_owned());
    }
    let advice = maps::advice(mapping).ok_or("it has flags that another mapping would not")?;
    if lent.is_shared() {
        return Err("other processes may have it".to_owned());
    }
    if state.segments.is_of(&mapping) {
        return Err("it is a segment of System V".to_owned());
    }
    let State { lender, files, .. } = state;
    let descriptors = descriptors_of(lent.file).ok_or("its descriptors cannot be listed")?;
    let bytes = mapping.bytes() as u64;
    let single = !descriptors.is_empty();
    let node = policy.only_node();
    let ask = Ask { bytes, page: lent.page as u64, single, last_hope: false, node };
    let loan = node.and_then(|_| lender.lend(ask).ok());
    let mut loans: Vec<_> = loan.into_iter().collect();
    if loans.iter().all(|loan| loan.ready_bytes().0 == 0) {
        loans.clear();
    }
    let by = if loans.is_empty() { "the kernel's" } else { "lent from there" };
    let replaced = match (descriptors.as_slice(), lent.memfd) {
        // SAFETY: the caller's contract.
        ([], _) => unsafe { replace_anonymous(files, mapping, lent, &loans) },
        // SAFETY: the caller's contract.
        ([fd], Some(memfd)) => unsafe {
            replace_memfd(files, mapping, lent, (*fd, memfd), loans.pop())
        },
        _ => Err(Errno(libc::EBUSY)),
    };
    replaced.map_err(|error| error.to_string())?;
    for advice in advice {
        // SAFETY: this mapping's memory; the advice changes no content.
        let _ = unsafe { raw::madvise(mapping.start, mapping.bytes(), advice) };
    }
    Ok(by)
}

/// # Safety
/// As [`bound`].
unsafe fn replace_anonymous(
    files: &mut LentFiles,
    mapping: Mapping,
    lent: LentFile,
    loans: &[client::Loan],
) -> raw::Result<()> {
    let bytes = mapping.bytes();
    let kind = if lent.private { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
    let shift = c_int::try_from(lent.page.trailing_zeros()).map_err(|_| Errno(libc::EINVAL))?;
    let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | shift << libc::MAP_HUGE_SHIFT;
    if loans.is_empty() {
        // SAFETY: at an address of the kernel's choice nothing is replaced.
        let at = unsafe { raw::mmap(0, bytes, mapping.prot, flags, -1, 0) }?;
        // SAFETY: see the module; the memory at `at` is this function's own.
        return unsafe { raw::mremap(at, bytes, bytes, MOVE, mapping.start) }
            .map(drop)
            .inspect_err(|_| {
                // SAFETY: this function's own.
                let _ = unsafe { raw::munmap(at, bytes) };
            });
    }
    for loan in loans {
        files.add(loan, lent.page, lent.private, None)?;
    }
    let flags = flags | libc::MAP_FIXED;
    let request =
        Request { address: mapping.start, bytes, prot: mapping.prot, flags, file_page: None };
    // SAFETY: see the module.
    let placed = unsafe { anonymous::place(loans, request, bytes, lent.page) };
    placed.map(drop).map_err(|_| Errno(libc::ENOMEM))
}

/// # Safety
/// As [`bound`].
unsafe fn replace_memfd(
    files: &mut LentFiles,
    mapping: Mapping,
    lent: LentFile,
    (fd, memfd): (c_int, Memfd),
    loan: Option<client::Loan>,
) -> raw::Result<()> {
    let bytes = mapping.bytes();
    let all = maps::mappings(0, usize::MAX)?.into_iter().filter(|one| one.is_of(lent.file));
    let size = raw::file(fd)?.bytes;
    if all.collect::<Vec<_>>() != [mapping] || mapping.offset != 0 || size != bytes as u64 {
        return Err(Errno(libc::EBUSY));
    }
    let file = match loan {
        Some(loan) => {
            files.add(&loan, lent.page, false, Some(memfd))?;
            let (_, mut fds) = loan.into_fds();
            fds.pop().ok_or(Errno(libc::EIO))?.into_raw_fd()
        }
        None => kernels_own(size, memfd)?,
    };
    // SAFETY: at an address of the kernel's choice nothing is replaced.
    let mapped = unsafe { raw::mmap(0, bytes, mapping.prot, libc::MAP_SHARED, file, 0) };
    let done = mapped.and_then(|at| {
        // SAFETY: see the module; the memory at `at` is this function's own.
        unsafe { raw::mremap(at, bytes, bytes, MOVE, mapping.start) }
    });
    let done = done.and_then(|_| put(file, fd)).map(|()| files.forget(lent.file));
    raw::close(file);
    done
}
