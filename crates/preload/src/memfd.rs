// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of huge pages that a program makes without a name: `memfd_create(MFD_HUGETLB)`, and a
//! file in a directory of huge pages that is unlinked before it is mapped (QEMU's `mem-path=DIR`).
//!
//! A lent file takes the descriptor's place once the file's size is final, and while it has no page
//! and no mapping. From then on mapping, holes, growing and passing are the lent file's own.
//!
//! | file | is served |
//! |---|---|
//! | memfd without `MFD_ALLOW_SEALING` | after the first `ftruncate` |
//! | memfd with it and `F_SEAL_SEAL`, writable | at the first shared mapping of all of it |
//! | unlinked file | likewise |
//!
//! The kernel makes each call first, and its answer stands. So an error is the kernel's, and the
//! lent file has the seals that the kernel accepted. A file on a mounted hugetlbfs has
//! `F_SEAL_SEAL` alone: seals against growing and shrinking (QEMU sets them) are kept here.
//!
//! *Alone*: the lent file replaces one descriptor, so the program must have no other, and no other
//! process may have one. A fork or a message with descriptors since the file was made ends the
//! chance ([`crate::sharing`]). A second descriptor of this process is looked for in
//! `/proc/self/fd`. In a table of more than [`MAX_LISTED`] descriptors that would make n memfds
//! cost n² looks: there the lowest free number tells that no descriptor was made since.
//!
//! *Like the original*: flags, offset, owner, mode and user of the descriptor are those of a fresh
//! one, or the file is not served. A served file has a link count of 1 and mode 0600.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use client::Loan;
use libc::{c_int, c_uint};

use crate::anonymous::page_of;
use crate::config::config;
use crate::daemon::{Ask, Lender};
use crate::lent_files::{LentFiles, Memfd};
use crate::raw::{self, Errno, File};
use crate::say::say;
use crate::sharing;
use crate::watched_fds::{self, Kind};

/// The most files that wait for their size; of more the oldest is left to the kernel.
const MAX_PENDING: usize = 64;
/// Tables of descriptors up to that size are read whole.
const MAX_LISTED: c_int = 64;

/// The flags of a memfd that can be served.
const KNOWN_FLAGS: c_uint = libc::MFD_CLOEXEC
    | libc::MFD_ALLOW_SEALING
    | libc::MFD_HUGETLB
    | (libc::MFD_HUGE_MASK << libc::MFD_HUGE_SHIFT);

/// How many served files have seals that the kernel does not know.
static SEALED: AtomicUsize = AtomicUsize::new(0);

/// Whether the kernel's answer about seals and sizes may be incomplete.
pub(crate) fn is_any_sealed() -> bool {
    SEALED.load(Ordering::Relaxed) != 0
}

/// A file without pages.
#[derive(Debug, Clone, Copy)]
struct Pending {
    fd: c_int,
    file: File,
    page: u64,
    generation: u32,
    /// How it was made; `None` for an unlinked file.
    memfd: Option<c_uint>,
    /// The lowest free descriptor when it was made.
    lowest_free: Option<c_int>,
}

/// The files that wait for their size.
#[derive(Debug)]
pub(crate) struct Memfds(Vec<Pending>);

impl Memfds {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Remembers a memfd that was just made.
    pub(crate) fn made(&mut self, fd: c_int, flags: c_uint) {
        if !config().enabled {
            return;
        }
        if flags & !KNOWN_FLAGS != 0 {
            return say(format_args!("memfd_create({flags:#x}) is not served: unknown flags"));
        }
        let page = page_of(flags, config().default_page);
        self.add(fd, page, Some(flags), raw::lowest_free().ok());
    }

    /// Remembers a file that `mkstemp` made, if it is on a hugetlbfs.
    pub(crate) fn made_in_directory(&mut self, fd: c_int) {
        if let Some(page) = raw::huge_page_of(fd).filter(|_| config().enabled) {
            self.add(fd, page, None, None);
        }
    }

    fn add(&mut self, fd: c_int, page: u64, memfd: Option<c_uint>, lowest_free: Option<c_int>) {
        let Ok(file) = raw::file(fd) else { return };
        // A number is given again only after its file was closed.
        self.0.retain(|pending| pending.fd != fd);
        if self.0.len() >= MAX_PENDING {
            self.0.remove(0);
        }
        let generation = sharing::generation();
        self.0.push(Pending { fd, file, page, generation, memfd, lowest_free });
        watched_fds::watch(fd, Kind::Pending);
    }

    fn find(&self, fd: c_int) -> Option<Pending> {
        let pending = self.0.iter().copied().find(|pending| pending.fd == fd)?;
        raw::file(fd).is_ok_and(|file| file.is(pending.file)).then_some(pending)
    }

    /// A file gets a mapping that asks for address space and no memory: it stays the kernel's.
    pub(crate) fn mapped_sparsely(&mut self, fd: c_int) {
        if let Some(pending) = self.find(fd) {
            let bytes = raw::file(pending.fd).map_or(0, |file| file.bytes);
            log("a file", bytes, Err("MAP_NORESERVE asks for address space alone".to_owned()));
        }
        self.forget(fd);
    }

    /// A file gets a mapping: from now on it stays what it is.
    pub(crate) fn forget(&mut self, fd: c_int) {
        self.0.retain(|pending| pending.fd != fd);
    }

    /// After a memfd got its size: a lent file takes its place if it can.
    pub(crate) fn sized(&mut self, lender: &mut Lender, files: &mut LentFiles, fd: c_int) {
        let Some((pending, flags)) = self.find(fd).and_then(|one| Some((one, one.memfd?))) else {
            return;
        };
        if flags & libc::MFD_ALLOW_SEALING != 0 {
            return;
        }
        self.forget(fd);
        let bytes = raw::file(fd).map_or(0, |file| file.bytes);
        let memfd = Memfd { flags, seals: raw::seals(fd) };
        log("a memfd", bytes, exchange((lender, files), &pending, bytes, Some(memfd), false));
    }

    /// Before `fallocate` of a whole memfd without a size. The kernel may lack the pages, so the
    /// size comes first here, and is taken back where no lent file takes the memfd's place.
    pub(crate) fn allocated(
        &mut self,
        lender: &mut Lender,
        files: &mut LentFiles,
        fd: c_int,
        bytes: i64,
    ) {
        let is_empty = || raw::file(fd).is_ok_and(|file| file.bytes == 0);
        let pending = self.find(fd).filter(|_| is_empty());
        if pending.is_some_and(|pending| pending.memfd.is_some())
            && raw::ftruncate(fd, bytes).is_ok()
        {
            self.sized(lender, files, fd);
            if raw::look(fd).is_ok_and(|look| look.blocks == 0) {
                let _ = raw::ftruncate(fd, 0);
            }
        }
    }

    /// The page size of a pending file that a mapping of that length is all of.
    pub(crate) fn page_of_all(&self, fd: c_int, bytes: usize, offset: i64) -> Option<u64> {
        let pending = self.find(fd)?;
        let look = raw::look(fd).ok()?;
        let whole = (bytes as u64).checked_next_multiple_of(pending.page);
        let is_all = offset == 0 && look.file.bytes > 0 && whole == Some(look.file.bytes);
        (is_all && !look.is_linked).then_some(pending.page)
    }

    /// Whether a pending file has nothing that a private mapping would show, now or later.
    pub(crate) fn is_as_anonymous(&self, fd: c_int) -> bool {
        let is_empty = || raw::look(fd).is_ok_and(|look| look.blocks == 0);
        let pending = self.find(fd).filter(|pending| pending.memfd.is_none());
        pending.is_some_and(|pending| is_empty() && is_only_descriptor(&pending))
    }

    /// Before the first shared mapping of a pending file. `last_hope`: the kernel has no page.
    pub(crate) fn mapped(
        &mut self,
        lender: &mut Lender,
        files: &mut LentFiles,
        fd: c_int,
        last_hope: bool,
    ) {
        let Some(pending) = self.find(fd) else { return };
        let bytes = raw::file(fd).map_or(0, |file| file.bytes);
        let memfd = pending.memfd.map(|flags| Memfd { flags, seals: raw::seals(fd) });
        let harmless = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        let is_final =
            |memfd: Memfd| memfd.seals & libc::F_SEAL_SEAL != 0 && memfd.seals & !harmless == 0;
        let done = match memfd {
            Some(memfd) if !is_final(memfd) => Err("more seals may follow".to_owned()),
            _ => exchange((lender, files), &pending, bytes, memfd, last_hope),
        };
        log(if memfd.is_some() { "a memfd" } else { "a file" }, bytes, done);
    }
}

fn log(what: &str, bytes: u64, done: Result<client::Bytes, String>) {
    match done {
        Ok(ready) => say(format_args!("{what} of {bytes} bytes is served: {ready} ready")),
        Err(why) => say(format_args!("{what} of {bytes} bytes is not served: {why}")),
    }
}

/// What seals of a lent file say, where the kernel knows of none.
pub(crate) fn seals_of(files: &LentFiles, fd: c_int) -> Option<c_int> {
    files.find(raw::file(fd).ok()?)?.memfd.map(|memfd| memfd.seals)
}

/// Whether seals forbid a new length.
pub(crate) fn forbids_length(files: &LentFiles, fd: c_int, bytes: i64) -> bool {
    let Ok(now) = raw::file(fd) else { return false };
    let Some(lent) = files.find(now) else { return false };
    let seals = lent.memfd.map_or(0, |memfd| memfd.seals);
    // The kernel checks the length first.
    u64::try_from(bytes).is_ok_and(|bytes| {
        let in_pages = bytes.is_multiple_of(lent.page as u64);
        in_pages
            && (bytes < now.bytes && seals & libc::F_SEAL_SHRINK != 0
                || bytes > now.bytes && seals & libc::F_SEAL_GROW != 0)
    })
}

/// Whether no other descriptor of this process, and no other process, has the file.
fn is_only_descriptor(pending: &Pending) -> bool {
    if pending.generation != sharing::generation() {
        return false;
    }
    match raw::lowest_free() {
        Ok(free) if free > MAX_LISTED && pending.lowest_free.is_some() => {
            pending.lowest_free == Some(free)
        }
        Ok(_) => descriptors_of(pending.file).is_some_and(|all| all == [pending.fd]),
        Err(_) => false,
    }
}

/// The descriptors of this process that are of a file; `None` where that cannot be told.
pub(crate) fn descriptors_of(file: File) -> Option<Vec<c_int>> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?.flatten();
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<c_int>().ok());
    Some(all.filter(|fd| raw::file(*fd).is_ok_and(|its| its.is(file))).collect())
}

fn exchange(
    (lender, files): (&mut Lender, &mut LentFiles),
    pending: &Pending,
    bytes: u64,
    memfd: Option<Memfd>,
    last_hope: bool,
) -> Result<client::Bytes, String> {
    let fd = pending.fd;
    let look = raw::look(fd).map_err(|error| error.to_string())?;
    if bytes == 0 || !bytes.is_multiple_of(pending.page) || look.blocks != 0 {
        return Err("it is empty, or has pages already".to_owned());
    }
    if !is_only_descriptor(pending) {
        return Err("others may have it".to_owned());
    }
    let mode = if memfd.is_some() { 0o777 } else { 0o600 };
    if look.mode != mode || look.user != raw::effective_ids().0 {
        return Err("its mode or owner was changed".to_owned());
    }
    let ask = Ask { bytes, page: pending.page, single: true, last_hope, node: None };
    let loan = lender.lend(ask)?;
    let ready = loan.ready_bytes();
    if ready.0 == 0 && !last_hope {
        return Err("nothing is ready".to_owned());
    }
    let page = usize::try_from(pending.page).map_err(|_| "no page size".to_owned())?;
    files.add(&loan, page, false, memfd).map_err(|error| error.to_string())?;
    put_loan(loan, fd).map_err(|error| error.to_string())?;
    watched_fds::watch(fd, Kind::Served);
    if memfd.is_some_and(|memfd| memfd.seals != libc::F_SEAL_SEAL) {
        SEALED.fetch_add(1, Ordering::Relaxed);
    }
    Ok(ready)
}

/// Puts a loan of one file in a descriptor's place.
fn put_loan(loan: Loan, fd: c_int) -> raw::Result<()> {
    let (_, lent) = loan.into_fds();
    // It was asked for one file.
    let [lent] = lent.as_slice() else { return Err(Errno(libc::EPROTO)) };
    // A description with the flags of a fresh one.
    let fresh = raw::reopen(lent.as_raw_fd(), libc::O_RDWR)?;
    // QEMU finds a file's size out by its offset.
    let copied = raw::copy_offset(fd, fresh);
    let is_alike = raw::status(fresh) == raw::status(fd);
    let done =
        if is_alike { copied.and_then(|()| put(fresh, fd)) } else { Err(Errno(libc::EBUSY)) };
    raw::close(fresh);
    done
}

/// Puts the file of one descriptor in another's place, closed on exec as that one is.
pub(crate) fn put(file: c_int, fd: c_int) -> raw::Result<()> {
    let flags = if raw::closes_on_exec(fd)? { libc::O_CLOEXEC } else { 0 };
    raw::dup3(file, fd, flags).map(drop)
}

/// A memfd of the kernel's like a served one.
pub(crate) fn kernels_own(bytes: u64, memfd: Memfd) -> raw::Result<c_int> {
    let fd = raw::memfd_create(c"prezero".as_ptr(), memfd.flags)?;
    let fd = c_int::try_from(fd).map_err(|_| Errno(libc::EBADF))?;
    let bytes = i64::try_from(bytes).map_err(|_| Errno(libc::EFBIG))?;
    let made = raw::ftruncate(fd, bytes).and_then(|_| {
        let sealable = memfd.flags & libc::MFD_ALLOW_SEALING != 0;
        if sealable { raw::add_seals(fd, memfd.seals) } else { Ok(0) }
    });
    made.map(|_| fd).inspect_err(|_| raw::close(fd))
}
