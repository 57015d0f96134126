// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memfd_create(MFD_HUGETLB)`.
//!
//! A memfd has no size when it is made, and no pages. It is served when its size becomes known, by
//! the first `ftruncate` or `fallocate`: the lent file takes the descriptor's place. Everything
//! else is then the file's own: mapping, `fallocate`, holes, passing the descriptor to others.
//!
//! That is right only while nobody else has the memfd. A second descriptor in this process is
//! looked for, and a fork in between ends the chance, as do a mapping and a `sendmsg` that passes
//! it on. What remains are empty memfds that another process gets by itself (`pidfd_getfd`,
//! `/proc/PID/fd`), that `posix_spawn` leaves open in another program, or that are passed on
//! without the C library.
//!
//! *Seals*: a file on a mounted hugetlbfs takes none. Those against growing and shrinking (QEMU
//! sets them) are kept here, for the program and its children; another process that was passed the
//! descriptor finds `F_SEAL_SEAL` and is not bound.
//!
//! *What a lent file cannot be*: sealed against writing; and a private mapping copies each page
//! that is written, which makes lent pages a waste if it is the first. Then a memfd of the kernel's
//! takes its place again ([`crate::exchange`]); where that cannot be, such seals are refused
//! (`EPERM`).

use std::sync::atomic::{AtomicUsize, Ordering};

use client::Loan;
use libc::{c_int, c_uint};

use crate::anonymous::{page_of, remember};
use crate::daemon::{Ask, Lender};
use crate::exchange::{descriptors_of, exchange, mappings_of, put};
use crate::maps::Piece;
use crate::raw::{self, Errno, File};
use crate::say::say;
use crate::stays::Stays;

/// The most memfds without a size that are remembered; of more the oldest is left to the kernel.
const MOST_PENDING: usize = 64;

/// How many memfds are remembered at all: nothing to do for most programs.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether any memfd is remembered.
pub(crate) fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// `F_ALL_SEALS`; the last is `F_SEAL_EXEC` (Linux 6.3).
const ALL_SEALS: c_int = libc::F_SEAL_SEAL
    | libc::F_SEAL_SHRINK
    | libc::F_SEAL_GROW
    | libc::F_SEAL_WRITE
    | libc::F_SEAL_FUTURE_WRITE
    | 0x20;

/// The flags of a memfd that can be served.
const KNOWN_FLAGS: c_uint = libc::MFD_CLOEXEC
    | libc::MFD_ALLOW_SEALING
    | libc::MFD_HUGETLB
    | (libc::MFD_HUGE_MASK << libc::MFD_HUGE_SHIFT);

/// One that has no size yet.
#[derive(Debug, Clone, Copy)]
struct Pending {
    fd: c_int,
    file: File,
    page: u64,
    flags: c_uint,
}

/// One in whose place a lent file is.
#[derive(Debug, Clone, Copy)]
struct Served {
    file: File,
    flags: c_uint,
    seals: c_int,
    page: usize,
    mapped: bool,
    /// Possibly in other hands: there is no way back.
    shared: bool,
}

/// The memfds of this process.
#[derive(Debug)]
pub(crate) struct Memfds {
    pending: Vec<Pending>,
    served: Vec<Served>,
}

impl Memfds {
    pub(crate) const fn new() -> Self {
        Self { pending: Vec::new(), served: Vec::new() }
    }

    fn count(&self) {
        COUNT.store(self.pending.len() + self.served.len(), Ordering::Relaxed);
    }

    /// Remembers a memfd that was just made.
    pub(crate) fn made(&mut self, fd: c_int, flags: c_uint, default_page: u64) {
        if flags & !KNOWN_FLAGS != 0 {
            return say(format_args!("memfd_create({flags:#x}) is not served: unknown flags"));
        }
        let Ok(file) = raw::file(fd) else { return };
        // A number is given again only after its file was closed, which nobody tells.
        self.pending.retain(|pending| pending.fd != fd);
        if self.pending.len() >= MOST_PENDING {
            self.pending.remove(0);
        }
        self.pending.push(Pending { fd, file, page: page_of(flags, default_page), flags });
        self.count();
    }

    /// After a fork each side's descriptors are the other's as well.
    pub(crate) fn forked(&mut self) {
        self.pending.clear();
        for served in &mut self.served {
            served.shared = true;
        }
        self.count();
    }

    fn take_pending(&mut self, fd: c_int) -> Option<Pending> {
        let at = self.pending.iter().position(|pending| pending.fd == fd)?;
        let pending = self.pending.swap_remove(at);
        self.count();
        // The number may be another file's by now.
        let file = raw::file(fd).ok()?;
        (file.is(pending.file) && file.bytes == 0).then_some(pending)
    }

    fn find(&mut self, fd: c_int) -> Option<&mut Served> {
        let file = raw::file(fd).ok()?;
        self.served.iter_mut().find(|served| served.file.is(file))
    }

    /// `ftruncate`: what the seals say about it.
    pub(crate) fn check_length(&mut self, fd: c_int, bytes: i64) -> raw::Result<()> {
        let Some(served) = self.find(fd) else { return Ok(()) };
        let Ok(bytes) = u64::try_from(bytes) else { return Ok(()) };
        let now = raw::file(fd)?.bytes;
        let forbidden = bytes < now && served.seals & libc::F_SEAL_SHRINK != 0
            || bytes > now && served.seals & libc::F_SEAL_GROW != 0;
        if forbidden { Err(Errno(libc::EPERM)) } else { Ok(()) }
    }

    /// `fcntl(F_GET_SEALS)` and `fcntl(F_ADD_SEALS)` of a served memfd; `None` if it is, or has
    /// just become, the kernel's own to answer for.
    pub(crate) fn seals(&mut self, fd: c_int, add: Option<c_int>) -> Option<raw::Result<usize>> {
        let served = self.find(fd)?;
        let Some(add) = add else {
            return Some(Ok(served.seals.cast_unsigned() as usize));
        };
        if raw::access_mode(fd) == Ok(libc::O_RDONLY) {
            return Some(Err(Errno(libc::EPERM)));
        }
        if add & !ALL_SEALS != 0 {
            return Some(Err(Errno(libc::EINVAL)));
        }
        if served.seals & libc::F_SEAL_SEAL != 0 {
            return Some(Err(Errno(libc::EPERM)));
        }
        let known = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if add & !known == 0 {
            served.seals |= add;
            return Some(Ok(0));
        }
        // Only the kernel's own memfd takes the others.
        let Ok(file) = raw::file(fd) else { return Some(Err(Errno(libc::EBADF))) };
        let is_mapped = || mappings_of(file).is_ok_and(|all| all.iter().any(|one| one.shared));
        if add & libc::F_SEAL_WRITE != 0 && is_mapped() {
            return Some(Err(Errno(libc::EBUSY)));
        }
        if self.give_way(file, "sealed against writing") {
            return None;
        }
        Some(Err(Errno(libc::EPERM)))
    }

    /// Puts a memfd of the kernel's in the place of a served one that nobody else has.
    fn give_way(&mut self, file: File, why: &str) -> bool {
        let Some(at) = self.served.iter().position(|served| served.file.is(file)) else {
            return false;
        };
        let served = self.served[at];
        let given = if served.shared { Err(Errno(libc::EBUSY)) } else { put_back(file, served) };
        match given {
            Ok(()) => {
                self.served.swap_remove(at);
                self.count();
                say(format_args!("a memfd that is {why} is the kernel's again"));
            }
            Err(error) => say(format_args!("a lent memfd is {why}: {error}")),
        }
        given.is_ok()
    }

    /// A descriptor is about to be another process's as well: from now on it is what it is.
    pub(crate) fn passed(&mut self, file: File) {
        self.pending.retain(|pending| !pending.file.is(file));
        let served = self.served.iter_mut().find(|served| served.file.is(file));
        served.into_iter().for_each(|served| served.shared = true);
        self.count();
    }

    /// Whether a mapping is one of a served memfd.
    pub(crate) fn is_of(&self, piece: &Piece) -> bool {
        self.served.iter().any(|served| piece.is_of(served.file))
    }

    /// A memfd of the kernel's that could take the place of a served one.
    pub(crate) fn kernels_own(&self, piece: &Piece, bytes: u64) -> raw::Result<c_int> {
        let served = self.served.iter().find(|served| piece.is_of(served.file));
        kernels_own(bytes, *served.ok_or(Errno(libc::ENOENT))?)
    }

    /// Puts another file in the place of a served one.
    pub(crate) fn replace(
        &mut self,
        piece: &Piece,
        fd: c_int,
        by: c_int,
        lent: bool,
    ) -> raw::Result<()> {
        put(by, fd)?;
        let file = raw::file(fd)?;
        if let Some(at) = self.served.iter().position(|served| piece.is_of(served.file)) {
            if lent {
                self.served[at].file = file;
            } else {
                self.served.swap_remove(at);
            }
        }
        self.count();
        Ok(())
    }

    /// A mapping of the descriptor is about to be made. Where the first one is private, the program
    /// is better off with a memfd of the kernel's.
    pub(crate) fn before_mapping(&mut self, fd: c_int, private: bool) {
        let Ok(file) = raw::file(fd) else { return };
        self.pending.retain(|pending| !pending.file.is(file));
        if let Some(served) = self.served.iter_mut().find(|served| served.file.is(file)) {
            let was_mapped = std::mem::replace(&mut served.mapped, true);
            if private && !was_mapped {
                self.give_way(file, "mapped private");
            }
        }
        self.count();
    }

    /// The first `ftruncate` or `fallocate` of a memfd: puts a lent file in its place if it can.
    pub(crate) fn sized(&mut self, lender: &mut Lender, stays: &mut Stays, fd: c_int, bytes: i64) {
        let Some(pending) = self.take_pending(fd) else { return };
        let Ok(bytes) = u64::try_from(bytes) else { return };
        let not = |why: &dyn std::fmt::Display| {
            say(format_args!("a memfd of {bytes} bytes is not served: {why}"));
        };
        if bytes == 0 || !bytes.is_multiple_of(pending.page) {
            return not(&"its size is not whole pages");
        }
        // What was sealed while it was empty is the kernel's to refuse.
        if raw::seals(fd) & !libc::F_SEAL_SEAL != 0 {
            return not(&"it is sealed");
        }
        if descriptors_of(pending.file) != [fd] {
            return not(&"it has a second descriptor");
        }
        let ask = Ask { bytes, page: pending.page, single: true, last_hope: false, node: None };
        let loan = match lender.lend(ask) {
            Ok(loan) => loan,
            Err(why) => return not(&why),
        };
        let ready = loan.ready_bytes();
        if ready.0 == 0 {
            return not(&"nothing is ready");
        }
        match self.put_in_place(stays, loan, fd, pending.page, pending.flags) {
            Ok(()) => say(format_args!("a memfd of {bytes} bytes is served: {ready} ready")),
            Err(error) => not(&error),
        }
    }

    /// Puts a loan of one file in the place of one without a name, which is about to be mapped
    /// shared.
    pub(crate) fn take_place(
        &mut self,
        stays: &mut Stays,
        loan: Loan,
        fd: c_int,
        page: u64,
    ) -> raw::Result<()> {
        let size = page.ilog2() << libc::MFD_HUGE_SHIFT;
        self.put_in_place(stays, loan, fd, page, libc::MFD_HUGETLB | size)?;
        let last = self.served.last_mut();
        last.into_iter().for_each(|served| served.mapped = true);
        Ok(())
    }

    fn put_in_place(
        &mut self,
        stays: &mut Stays,
        loan: Loan,
        fd: c_int,
        page: u64,
        flags: c_uint,
    ) -> raw::Result<()> {
        let page = usize::try_from(page).unwrap_or_default();
        remember(stays, &loan, page, false)?;
        let (_, files) = loan.into_fds();
        // It was asked for one file.
        let [file] = files.as_slice() else { return Err(Errno(libc::EPROTO)) };
        put(std::os::fd::AsRawFd::as_raw_fd(file), fd)?;
        let file = raw::file(fd)?;
        let sealable = flags & libc::MFD_ALLOW_SEALING != 0;
        let seals = if sealable { 0 } else { libc::F_SEAL_SEAL };
        self.served.push(Served { file, flags, seals, page, mapped: false, shared: false });
        self.count();
        Ok(())
    }
}

fn put_back(file: File, served: Served) -> raw::Result<()> {
    let memfd = kernels_own(file.bytes, served)?;
    let done = exchange(file, served.page, memfd);
    raw::close(memfd);
    done
}

/// A memfd of the kernel's with the size, flags and seals of a served one.
fn kernels_own(bytes: u64, served: Served) -> raw::Result<c_int> {
    let memfd = raw::memfd_create(c"prezero".as_ptr(), served.flags)?;
    let memfd = c_int::try_from(memfd).map_err(|_| Errno(libc::EBADF))?;
    let bytes = i64::try_from(bytes).map_err(|_| Errno(libc::EFBIG))?;
    let made = raw::ftruncate(memfd, bytes).and_then(|_| {
        let sealable = served.flags & libc::MFD_ALLOW_SEALING != 0;
        if sealable && served.seals != 0 { raw::add_seals(memfd, served.seals) } else { Ok(0) }
    });
    made.map(|_| memfd).inspect_err(|_| raw::close(memfd))
}
