// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The address space.
//!
//! # Safety
//!
//! As [`super`] has it.
#![expect(unsafe_code, reason = "maps and unmaps memory")]
#![expect(clippy::cast_possible_truncation, reason = "addresses of 64 bits")]

use libc::{c_int, c_long};

use super::{Errno, File, Result, call, close, int, open, pread};

pub(crate) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// To a given place, where the caller has nothing or gives it up.
pub(crate) const MOVE: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

/// A mapping, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) prot: libc::c_int,
    /// Whether it is `MAP_SHARED`.
    pub(crate) shared: bool,
    /// The mapped file; 0 for memory without a file.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The offset in the file of `start`.
    pub(crate) offset: u64,
}

impl Mapping {
    pub(crate) fn is_of(&self, file: File) -> bool {
        (self.device, self.inode) == (file.device, file.inode)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.end - self.start
    }
}

/// `mmap`.
///
/// # Safety
/// With `MAP_FIXED` what lay in the range is gone: it was the caller's to give up.
pub(crate) unsafe fn mmap(
    address: usize,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Result<usize> {
    let offset = usize::try_from(offset).map_err(|_| Errno(libc::EINVAL))?;
    let args = [address, bytes, int(prot), int(flags), int(fd), offset];
    // SAFETY: the caller answers for the range.
    unsafe { call(libc::SYS_mmap, args) }
}

/// `munmap`.
///
/// # Safety
/// The range is the caller's, and no thread uses it any more.
pub(crate) unsafe fn munmap(address: usize, bytes: usize) -> Result<usize> {
    // SAFETY: the caller answers for the range.
    unsafe { call(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]) }
}

/// `mremap`.
///
/// # Safety
/// The old range, and with `MREMAP_FIXED` the new one, are the caller's.
pub(crate) unsafe fn mremap(
    old: usize,
    old_bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new: usize,
) -> Result<usize> {
    // SAFETY: the caller answers for the ranges.
    unsafe { call(libc::SYS_mremap, [old, old_bytes, new_bytes, int(flags), new, 0]) }
}

/// `mprotect`.
///
/// # Safety
/// The range is the caller's, and its users can live with the new rights.
pub(crate) unsafe fn mprotect(address: usize, bytes: usize, prot: c_int) -> Result<usize> {
    // SAFETY: the caller answers for the range.
    unsafe { call(libc::SYS_mprotect, [address, bytes, int(prot), 0, 0, 0]) }
}

/// `madvise`.
///
/// # Safety
/// Some advice throws content away: the range is the caller's, and so is its content.
pub(crate) unsafe fn madvise(address: usize, bytes: usize, advice: c_int) -> Result<usize> {
    // SAFETY: the caller answers for the range.
    unsafe { call(libc::SYS_madvise, [address, bytes, int(advice), 0, 0, 0]) }
}

/// The mapping at an address or the next one, as a descriptor of `/proc/PID/maps` says since
/// Linux 6.11 (`PROCMAP_QUERY`); `ENOTTY` before, `ENOENT` if none follows.
pub(crate) fn mapping_at(maps: c_int, address: usize) -> Result<Mapping> {
    /// `struct procmap_query` of `linux/fs.h`.
    #[repr(C)]
    #[derive(Default)]
    struct Query {
        size: u64,
        flags: u64,
        address: u64,
        start: u64,
        end: u64,
        rights: u64,
        page_size: u64,
        offset: u64,
        inode: u64,
        major: u32,
        minor: u32,
        name_size: u32,
        build_id_size: u32,
        name: u64,
        build_id: u64,
    }
    const COVERING_OR_NEXT: u64 = 0x10;
    /// `_IOWR('f', 17, struct procmap_query)`.
    const REQUEST: usize = 3 << 30 | size_of::<Query>() << 16 | 0x66 << 8 | 17;
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT,
        address: address as u64,
        ..Query::default()
    };
    let args = [int(maps), REQUEST, (&raw mut query).addr(), 0, 0, 0];
    // SAFETY: the kernel reads and writes one structure of the size that it is told.
    unsafe { call(libc::SYS_ioctl, args) }?;
    let right = |at: u64, bit| if query.rights & at != 0 { bit } else { 0 };
    Ok(Mapping {
        start: query.start as usize,
        end: query.end as usize,
        prot: right(1, libc::PROT_READ) | right(2, libc::PROT_WRITE) | right(4, libc::PROT_EXEC),
        shared: query.rights & 8 != 0,
        device: libc::makedev(query.major, query.minor),
        inode: query.inode,
        offset: query.offset,
    })
}

/// The bytes of a base page.
pub(crate) fn base_page() -> usize {
    // SAFETY: takes a number, and is a number that the process was started with.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// A segment call of System V.
///
/// # Safety
/// As the call itself: it may map over, unmap, and write to a structure of the caller's.
pub(crate) unsafe fn shm(number: c_long, args: [usize; 3]) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { call(number, [args[0], args[1], args[2], 0, 0, 0]) }
}

/// `/proc/self/pagemap`: this process's page tables. `mincore` looks at the file.
pub(crate) struct PageTables(Option<c_int>);

impl PageTables {
    pub(crate) fn open() -> Self {
        Self(open(c"/proc/self/pagemap").ok())
    }

    /// The entry of a page of 4 KiB: 8 bytes; `None` if the file is unreadable.
    fn entry(&self, address: usize) -> Option<u64> {
        let mut entry = [0; 8];
        let read = pread(self.0?, &mut entry, (address / base_page() * 8) as u64);
        (read == Ok(8)).then(|| u64::from_ne_bytes(entry))
    }

    /// Whether there is an entry for the page at an address, also for a page that is being moved.
    /// An unreadable file counts as yes.
    pub(crate) fn have(&self, address: usize) -> bool {
        /// The highest bits of an entry of 8 bytes per base page: present, and swapped or moving.
        const THERE: u64 = 3 << 62;
        self.entry(address).is_none_or(|entry| entry & THERE != 0)
    }
}

impl Drop for PageTables {
    fn drop(&mut self) {
        if let Some(fd) = self.0 {
            close(fd);
        }
    }
}
