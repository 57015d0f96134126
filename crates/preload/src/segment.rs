// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `shmget(SHM_HUGETLB)`, where the operator allows it (`PREZERO_SHM=1`).
//!
//! A segment's number is for every process on the machine, and lent memory can be attached only by
//! those that know of the loan: the program that made it and the children it forked. So segments
//! with a key are never served, and private ones only on request. Everybody else finds the number
//! unknown (`EINVAL`), loudly, and never other memory under it.
//!
//! The number comes from the kernel: a segment of one page that is removed at once, so that no
//! other segment has it. `shm_nattch` counts this process's attachments.
//!
//! # Safety
//!
//! Ranges are unmapped that were mapped here for the program's own `shmat` and that it now
//! detaches.
#![expect(unsafe_code, reason = "attaches and detaches memory, and fills the program's structures")]

use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, shmid_ds};

use crate::anonymous::{page_of, remember};
use crate::config::config;
use crate::daemon::{Ask, Lender};
use crate::maps::Piece;
use crate::raw::{self, Errno, File};
use crate::say::say;
use crate::stays::Stays;

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether any segment is served.
pub(crate) fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

#[derive(Debug)]
struct Segment {
    id: c_int,
    /// The program may close any descriptor: this one counts while it is still of that file.
    fd: c_int,
    file: File,
    bytes: usize,
    page: usize,
    mode: c_int,
    removed: bool,
    attached: Vec<usize>,
}

/// The served segments of this process.
#[derive(Debug)]
pub(crate) struct Segments(Vec<Segment>);

impl Segments {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    fn find(&mut self, id: c_int) -> Option<&mut Segment> {
        self.0.iter_mut().find(|segment| segment.id == id)
    }

    /// Whether a mapping is one of a segment.
    pub(crate) fn is_of(&self, piece: &Piece) -> bool {
        self.0.iter().any(|segment| piece.is_of(segment.file))
    }

    /// Lets go of segments that were removed and are attached nowhere.
    fn tidy(&mut self) {
        self.0.retain(|segment| {
            let stays = !segment.removed || !segment.attached.is_empty();
            if !stays && segment.is_open() {
                raw::close(segment.fd);
            }
            stays
        });
        COUNT.store(self.0.len(), Ordering::Relaxed);
    }

    /// `shmat`.
    ///
    /// # Safety
    /// As the call itself.
    pub(crate) unsafe fn attach(
        &mut self,
        id: c_int,
        address: usize,
        flags: c_int,
    ) -> Option<raw::Result<usize>> {
        let segment = self.find(id)?;
        // SAFETY: the caller's contract.
        let mapped = unsafe { segment.map(address, flags) };
        Some(mapped.inspect(|at| segment.attached.push(*at)))
    }

    /// `shmdt`.
    ///
    /// # Safety
    /// As the call itself.
    pub(crate) unsafe fn detach(&mut self, address: usize) -> Option<raw::Result<usize>> {
        let has = |segment: &&mut Segment| segment.attached.contains(&address);
        let segment = self.0.iter_mut().find(has)?;
        // SAFETY: the program detaches what `attach` mapped for it.
        let result = unsafe { raw::munmap(address, segment.bytes) };
        if result.is_ok() {
            segment.attached.retain(|at| *at != address);
            self.tidy();
        }
        Some(result.map(|_| 0))
    }

    /// `shmctl`.
    ///
    /// # Safety
    /// As the call itself: for `IPC_STAT`, `out` is a structure of the program's.
    pub(crate) unsafe fn control(
        &mut self,
        id: c_int,
        command: c_int,
        out: *mut shmid_ds,
    ) -> Option<raw::Result<usize>> {
        let segment = self.find(id)?;
        let result = match command {
            libc::IPC_RMID => {
                segment.removed = true;
                self.tidy();
                Ok(0)
            }
            libc::IPC_STAT if out.is_null() => Err(Errno(libc::EFAULT)),
            libc::IPC_STAT => {
                // SAFETY: the caller's contract.
                unsafe { out.write(segment.status()) };
                Ok(0)
            }
            // Huge pages are never swapped.
            libc::SHM_LOCK | libc::SHM_UNLOCK => Ok(0),
            _ => Err(Errno(libc::EPERM)),
        };
        Some(result)
    }
}

impl Segment {
    fn is_open(&self) -> bool {
        raw::file(self.fd).is_ok_and(|file| file.is(self.file))
    }

    /// # Safety
    /// As `shmat`.
    unsafe fn map(&self, address: usize, flags: c_int) -> raw::Result<usize> {
        let address = match address % self.page {
            0 => address,
            rest if flags & libc::SHM_RND != 0 => address - rest,
            _ => return Err(Errno(libc::EINVAL)),
        };
        if flags & libc::SHM_EXEC != 0 || address == 0 && flags & libc::SHM_REMAP != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if !self.is_open() {
            return Err(Errno(libc::EIDRM));
        }
        let write = if flags & libc::SHM_RDONLY != 0 { 0 } else { libc::PROT_WRITE };
        let fixed = match address {
            0 => 0,
            _ if flags & libc::SHM_REMAP != 0 => libc::MAP_FIXED,
            _ => libc::MAP_FIXED_NOREPLACE,
        };
        let (prot, flags) = (libc::PROT_READ | write, libc::MAP_SHARED | fixed);
        // SAFETY: something is replaced only where the program said SHM_REMAP.
        let mapped = unsafe { raw::mmap(address, self.bytes, prot, flags, self.fd, 0) };
        mapped.map_err(|error| if error.0 == libc::EEXIST { Errno(libc::EINVAL) } else { error })
    }

    fn status(&self) -> shmid_ds {
        // SAFETY: the structure is plain numbers, for which zero is a value.
        let mut status: shmid_ds = unsafe { std::mem::zeroed() };
        status.shm_segsz = self.bytes;
        status.shm_nattch = self.attached.len() as libc::shmatt_t;
        // The kernel's own mode bits: the permissions, and whether it is removed.
        let removed = if self.removed { 0o1000 } else { 0 };
        status.shm_perm.mode = mode_of(self.mode & 0o777 | removed);
        let pid = raw::process().cast_signed();
        (status.shm_cpid, status.shm_lpid) = (pid, pid);
        status
    }
}

/// `shmget` of huge pages: a number, or `None` to make the untouched call.
pub(crate) fn get(
    lender: &mut Lender,
    stays: &mut Stays,
    segments: &mut Segments,
    key: libc::key_t,
    bytes: usize,
    flags: c_int,
) -> Option<c_int> {
    let not = |why: &dyn std::fmt::Display| -> Option<c_int> {
        say(format_args!("a segment of {bytes} bytes is not served: {why}"));
        None
    };
    let config = config();
    if !config.enabled {
        return None;
    }
    if key != libc::IPC_PRIVATE {
        return not(&"it has a key, so that processes that do not know of the loan may attach it");
    }
    if !config.segments {
        return not(&"other processes may attach it by number; PREZERO_SHM=1 if none does");
    }
    let page = page_of(flags.cast_unsigned(), config.default_page);
    let Some(rounded) = (bytes as u64).checked_next_multiple_of(page).filter(|b| *b > 0) else {
        return not(&"its size is no number of pages");
    };
    let ask = Ask { bytes: rounded, page, single: true, last_hope: false, node: None };
    let loan = match lender.lend(ask) {
        Ok(loan) if loan.ready_bytes().0 > 0 => loan,
        Ok(_) => return not(&"nothing is ready"),
        Err(why) => return not(&why),
    };
    if let Err(error) = remember(stays, &loan, usize::try_from(page).ok()?, false) {
        return not(&error);
    }
    let (_, mut files) = loan.into_fds();
    let fd = files.pop()?.into_raw_fd();
    let file = raw::file(fd).ok()?;
    let id = match number() {
        Ok(id) => id,
        Err(error) => return not(&error),
    };
    let (bytes, page) = (usize::try_from(rounded).ok()?, usize::try_from(page).ok()?);
    let segment =
        Segment { id, fd, file, bytes, page, mode: flags, removed: false, attached: Vec::new() };
    segments.0.push(segment);
    segments.tidy();
    say(format_args!("a segment of {bytes} bytes is served as {id}"));
    Some(id)
}

/// A number that no other segment has, nor soon will.
fn number() -> raw::Result<c_int> {
    let flags = (libc::IPC_CREAT | libc::IPC_EXCL | 0o600).cast_unsigned() as usize;
    // SAFETY: numbers alone.
    let id = unsafe { raw::shm(libc::SYS_shmget, [0, 4096, flags]) }?;
    // SAFETY: the same; removing takes no structure.
    unsafe { raw::shm(libc::SYS_shmctl, [id, libc::IPC_RMID.cast_unsigned() as usize, 0]) }?;
    c_int::try_from(id).map_err(|_| Errno(libc::EINVAL))
}

/// The type of the field differs between architectures.
fn mode_of<T: TryFrom<c_int> + Default>(mode: c_int) -> T {
    T::try_from(mode).unwrap_or_default()
}
