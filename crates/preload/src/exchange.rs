// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memfd of the kernel's in the place of a served one: in all descriptors of this process, where
//! it is mapped, and with its content.
//!
//! What a lent file cannot be, sealed against writing, a memfd can. Nobody else may have the file,
//! and where it is mapped no other thread may run, who could write to it meanwhile. All that can be
//! refused is done before anything is exchanged.
//!
//! # Safety
//!
//! Ranges are replaced in which the kernel says that the served file is mapped, by the memfd, with
//! the same content and rights at the same offset.
#![expect(unsafe_code, reason = "puts other memory in the place of a served memfd's")]

use libc::c_int;

use crate::maps::{self, Piece};
use crate::private::populate;
use crate::raw::{self, Errno, File, MOVE, PageTables, READ_WRITE};

/// The descriptors of this process.
fn descriptors() -> impl Iterator<Item = c_int> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Those of a file.
pub(crate) fn descriptors_of(file: File) -> Vec<c_int> {
    descriptors().filter(|fd| raw::file(*fd).is_ok_and(|found| found.is(file))).collect()
}

/// The one descriptor of this process of a mapped file, and the file's size; `None` if there is
/// none or are several.
pub(crate) fn only_descriptor(piece: &Piece) -> Option<(c_int, u64)> {
    let files = descriptors().filter_map(|fd| Some((fd, raw::file(fd).ok()?)));
    let mut its = files.filter(|(_, file)| piece.is_of(*file));
    let (fd, file) = its.next()?;
    its.next().is_none().then_some((fd, file.bytes))
}

/// Where this process has a file mapped.
///
/// # Errors
/// Where that cannot be told.
pub(crate) fn mappings_of(file: File) -> raw::Result<Vec<Piece>> {
    let mut pieces = maps::pieces(0, usize::MAX)?;
    pieces.retain(|piece| piece.is_of(file));
    Ok(pieces)
}

/// Puts the file of one descriptor in another's place, closed on exec as that one is.
pub(crate) fn put(file: c_int, fd: c_int) -> raw::Result<()> {
    let flags = if raw::closes_on_exec(fd)? { libc::O_CLOEXEC } else { 0 };
    raw::dup3(file, fd, flags).map(drop)
}

/// A mapping of the memfd's that goes where one of the file's is.
struct Mapped {
    at: usize,
    piece: Piece,
    advice: Vec<c_int>,
}

impl Mapped {
    fn new(memfd: c_int, piece: Piece) -> raw::Result<Self> {
        let kind = if piece.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let offset = i64::try_from(piece.offset).map_err(|_| Errno(libc::EOVERFLOW))?;
        let advice = maps::advice(piece).ok_or(Errno(libc::EBUSY))?;
        // SAFETY: at an address of the kernel's choice nothing is replaced.
        let at = unsafe { raw::mmap(0, piece.end - piece.start, piece.prot, kind, memfd, offset) }?;
        Ok(Self { at, piece, advice })
    }

    fn bytes(&self) -> usize {
        self.piece.end - self.piece.start
    }

    fn put_in_place(&self) -> raw::Result<()> {
        // SAFETY: see the module; the memory at `at` is this value's own.
        unsafe { raw::mremap(self.at, self.bytes(), self.bytes(), MOVE, self.piece.start) }?;
        for advice in &self.advice {
            // SAFETY: the same memory; the advice changes no content.
            let _ = unsafe { raw::madvise(self.piece.start, self.bytes(), *advice) };
        }
        Ok(())
    }
}

/// Puts `memfd`, of the same length, in the place of a file whose pages have that size.
///
/// # Errors
/// `EBUSY` where something else could happen to it meanwhile, `ENOMEM` and the like where the
/// kernel has not the pages; then nothing has changed.
pub(crate) fn exchange(file: File, page: usize, memfd: c_int) -> raw::Result<()> {
    let busy = Errno(libc::EBUSY);
    let fds = descriptors_of(file);
    let writable = fds.iter().copied().find(|fd| raw::access_mode(*fd) == Ok(libc::O_RDWR));
    let pieces = mappings_of(file)?;
    if !pieces.is_empty() && std::fs::read_dir("/proc/self/task").map_or(2, Iterator::count) > 1 {
        return Err(busy);
    }
    let tables = PageTables::open();
    let of_its_own = |piece: &Piece| {
        !piece.shared && (piece.start..piece.end).step_by(page).any(|page| tables.have_own(page))
    };
    if pieces.iter().any(of_its_own) {
        return Err(busy);
    }
    copy(file, page, writable.ok_or(busy)?, memfd)?;
    let mut mapped = Vec::new();
    let mut others = Vec::new();
    let made = pieces.into_iter().try_for_each(|piece| {
        mapped.push(Mapped::new(memfd, piece)?);
        Ok(())
    });
    let made = made.and_then(|()| {
        for fd in &fds {
            let mode = raw::access_mode(*fd)?;
            let description =
                if mode == libc::O_RDWR { None } else { Some(raw::reopen(memfd, mode)?) };
            others.push((*fd, description));
        }
        Ok(())
    });
    let done = made.and_then(|()| {
        mapped.iter().try_for_each(Mapped::put_in_place)?;
        others.iter().try_for_each(|(fd, description)| put(description.unwrap_or(memfd), *fd))
    });
    if done.is_err() {
        for mapped in mapped {
            // SAFETY: this function's own; what was moved is not there any more.
            let _ = unsafe { raw::munmap(mapped.at, mapped.bytes()) };
        }
    }
    others.into_iter().filter_map(|(_, description)| description).for_each(raw::close);
    done
}

/// Copies what is in the file; what is zero there stays a hole.
fn copy(file: File, page: usize, fd: c_int, memfd: c_int) -> raw::Result<()> {
    let bytes = usize::try_from(file.bytes).map_err(|_| Errno(libc::ENOMEM))?;
    if bytes == 0 {
        return Ok(());
    }
    let map = |fd, prot| {
        // SAFETY: at an address of the kernel's choice nothing is replaced.
        unsafe { raw::mmap(0, bytes, prot, libc::MAP_SHARED, fd, 0) }
    };
    let from = map(fd, libc::PROT_READ)?;
    let copied = map(memfd, READ_WRITE).and_then(|to| {
        let copied = (0..bytes).step_by(page).try_for_each(|at| {
            // SAFETY: a page of this function's mapping; the advice changes no content.
            match unsafe { raw::madvise(from + at, page, libc::MADV_POPULATE_READ) } {
                // A hole for which the kernel has no page: nothing is there.
                Err(Errno(libc::EFAULT)) => return Ok(()),
                answer => answer?,
            };
            // SAFETY: a page of this function's mapping, which has its memory.
            if unsafe { raw::is_zero(from + at, page) } {
                return Ok(());
            }
            populate(to + at, page)?;
            // SAFETY: the same, and a page of the other, which has its memory now.
            unsafe { raw::copy_unless_zero(from + at, to + at, page) };
            Ok(())
        });
        // SAFETY: this function's own.
        let _ = unsafe { raw::munmap(to, bytes) };
        copied
    });
    // SAFETY: the same.
    let _ = unsafe { raw::munmap(from, bytes) };
    copied
}
