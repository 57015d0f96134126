// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One block: one file of hugetlbfs, or of tmpfs for plain memory.
//!
//! What the file systems promise, tested in `tests/real/block_file.rs` on both:
//! - `fallocate` zeroes without mapping, and a signal ends it between two pages.
//! - Making a file shorter or punching a hole gives the pages back before the call returns, unless
//!   another process still has them pinned.
//! - Making it longer leaves a hole. It takes its pages when it is mapped (hugetlbfs: promised at
//!   `mmap`) and touched.

use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, Stat};
use units::PageSize;

use crate::error::{Advise, Errno, Error, ErrorContext, Result};

/// Bytes looked at between two reads when searching for a byte other than zero.
const SEARCH_BYTES: usize = 64 << 10;

/// An open block file: one open description of its own, which [`crate::exclusive`] counts.
///
/// Never pass a duplicate of it to another process: a duplicate is the same description, so the
/// lease proof would not see it. Open the file again instead ([`crate::BlockDir::open_block`]).
#[derive(Debug)]
pub struct BlockFile(OwnedFd);

impl BlockFile {
    /// An unnamed file of plain memory, for callers that lack root and huge pages.
    ///
    /// A memfd's counts do not fit the lease proof: [`crate::exclusive::prove`] is not for it.
    pub fn memfd(name: &str) -> Result<Self> {
        rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)
            .map(Self)
            .or_call(|| format!("memfd_create({name:?}, MFD_CLOEXEC)"))
    }

    /// Its length in bytes, holes included.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub fn len(&self) -> Result<u64> {
        let stat = self.stat()?;
        u64::try_from(stat.st_size)
            .map_err(|_| Error::invalid("file size", stat.st_size, "is negative"))
    }

    /// Bytes that have memory.
    pub fn allocated_bytes(&self) -> Result<u64> {
        allocated(&self.stat()?)
    }

    /// Makes it `bytes` long. Shorter: pages behind the new end return to the pool at once. Longer:
    /// a hole.
    ///
    /// # Errors
    /// EINVAL if `bytes` is a fraction of pages of a hugetlbfs.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.0, bytes)
            .or_call(|| format!("ftruncate({}, {bytes})", name_of(self.as_fd())))
            .advise(Errno::INVAL, "the length must be whole pages of the file system's page size")
    }

    /// Allocates and zeroes `offset..offset + len` in one call, in the caller's context, on the
    /// node of the caller's memory policy. Pages that are there already keep their content.
    ///
    /// Blocks for the whole range; a signal ends it between two pages with EINTR, and the pages
    /// made so far stay.
    ///
    /// # Errors
    /// [`Error::is_no_space`] when the pool (of that node) is exhausted; EINTR.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(FallocateFlags::empty(), offset, len)
            .advise(Errno::NOSPC, "no free page is left where the memory policy looks: give pages back or raise nr_hugepages")
    }

    /// Allocates and zeroes `range` page by page, telling `each` after every page how many bytes of
    /// the range are done. Returns that number: less than the range if `each` broke off.
    ///
    /// Bounded: one page between two calls of `each`. When a signal interrupts a page, `each` is
    /// asked with the number unchanged, and the page is tried again if it says `Continue`.
    ///
    /// # Errors
    /// [`Error::is_no_space`] when the pool is exhausted; the pages up to the last call of `each`
    /// stay allocated.
    pub fn allocate_pages(
        &self,
        range: Range<u64>,
        page: PageSize,
        each: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64> {
        let whole = |bytes: u64| bytes.is_multiple_of(page.bytes());
        if range.start > range.end || !whole(range.start) || !whole(range.end) {
            return Err(Error::invalid(
                "range",
                format!("{range:?}"),
                "is not a range of whole pages",
            ));
        }
        let mut done = 0;
        while range.start + done < range.end {
            match self.allocate(range.start + done, page.bytes()) {
                Ok(()) => done += page.bytes(),
                Err(error) if error.errno() == Some(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            if each(done).is_break() {
                break;
            }
        }
        Ok(done)
    }

    /// The offset of the first byte in `range` other than zero; holes and bytes behind the end
    /// count as zero.
    ///
    /// Reads through the descriptor, so mappings and content stay as they are.
    pub fn first_nonzero(&self, range: Range<u64>) -> Result<Option<u64>> {
        let mut buffer = vec![0_u8; SEARCH_BYTES];
        let zeros = vec![0_u8; SEARCH_BYTES];
        let mut at = range.start;
        while at < range.end {
            let want =
                usize::try_from(range.end - at).map_or(SEARCH_BYTES, |rest| rest.min(SEARCH_BYTES));
            let read = match rustix::io::pread(&self.0, &mut buffer[..want], at) {
                Err(Errno::INTR) => continue,
                result => result
                    .or_call(|| format!("pread64({}, {want}, {at})", name_of(self.as_fd())))?,
            };
            if read == 0 {
                break;
            }
            // One memcmp per buffer, which is fast in unoptimised builds as well.
            if buffer[..read] != zeros[..read] {
                let index = buffer[..read].iter().position(|&byte| byte != 0).unwrap_or(0);
                return Ok(Some(at + index as u64));
            }
            at += read as u64;
        }
        Ok(None)
    }

    /// Gives the file to one user, who alone may reopen it through `/proc/self/fd`: owner and mode
    /// 0600. Waits while another process holds the file's inode lock.
    ///
    /// A caller that may not give files away keeps it: a descriptor that it passes on is as good,
    /// and opens nothing anew.
    ///
    /// # Errors
    /// Those of `fchmod` and `fchown`; the file is the caller's then.
    pub fn give_access(&self, (uid, gid): (u32, u32)) -> Result<()> {
        // The mode first: from the change of the owner on it is the borrower's to change.
        if self.stat()?.st_mode & 0o7777 != 0o600 {
            self.make_private()?;
        }
        match self.chown(uid, gid) {
            Err(error)
                if error.errno() == Some(Errno::PERM) && !rustix::process::geteuid().is_root() =>
            {
                Ok(())
            }
            result => result,
        }
    }

    /// Takes the file back: the caller's, mode 0600. Waits while another process holds the file's
    /// inode lock.
    ///
    /// A descriptor opened with `O_PATH` is invisible to the lease proof and can be opened for real
    /// later, if the file's mode lets its holder. So take access away before proving. The owner
    /// goes first: as long as a borrower is the owner, it can change the mode by way of that
    /// descriptor.
    ///
    /// # Errors
    /// Those of `fchown` and `fchmod`, and a file that still admits others
    /// ([private](Self::is_private)) after both.
    pub fn take_access(&self) -> Result<()> {
        if !self.is_private()? {
            self.chown(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())?;
            self.make_private()?;
        }
        if self.is_private()? {
            return Ok(());
        }
        Err(Error::invalid("access", name_of(self.as_fd()), "was changed while it was taken away"))
    }

    /// Whether only the caller and root may reopen the file. Returns at once.
    ///
    /// An `open` may pass its permission check before access is taken away and return later. A
    /// proof made in between misses it: so look, and prove, again before the next use.
    pub fn is_private(&self) -> Result<bool> {
        let stat = self.stat()?;
        let ours = stat.st_uid == rustix::process::geteuid().as_raw();
        Ok(ours && stat.st_mode & 0o7777 == 0o600)
    }

    fn chown(&self, uid: u32, gid: u32) -> Result<()> {
        let owner = Some(rustix::fs::Uid::from_raw(uid));
        let group = Some(rustix::fs::Gid::from_raw(gid));
        rustix::fs::fchown(&self.0, owner, group)
            .or_call(|| format!("fchown({}, {uid}, {gid})", name_of(self.as_fd())))
            .advise(Errno::PERM, "lending to another user needs CAP_CHOWN")
    }

    fn make_private(&self) -> Result<()> {
        rustix::fs::fchmod(&self.0, Mode::RUSR | Mode::WUSR)
            .or_call(|| format!("fchmod({}, 0600)", name_of(self.as_fd())))
    }

    fn stat(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.0).or_call(|| format!("fstat({})", name_of(self.as_fd())))
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64) -> Result<()> {
        rustix::fs::fallocate(&self.0, flags, offset, len).or_call(|| {
            format!("fallocate({}, {:#x}, {offset}, {len})", name_of(self.as_fd()), flags.bits())
        })
    }
}

impl AsFd for BlockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for BlockFile {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<BlockFile> for OwnedFd {
    fn from(file: BlockFile) -> Self {
        file.0
    }
}

/// The bytes that have memory.
pub(crate) fn allocated(stat: &Stat) -> Result<u64> {
    // POSIX leaves the unit open, Linux counts 512 bytes on every file system.
    u64::try_from(stat.st_blocks)
        .map(|blocks| blocks * 512)
        .map_err(|_| Error::invalid("block count", stat.st_blocks, "is negative"))
}

/// A descriptor as `strace -y` prints it: `7</run/prezero/huge/ready/3>`. For error texts only.
pub(crate) fn name_of(fd: BorrowedFd<'_>) -> String {
    let raw = fd.as_raw_fd();
    match std::fs::read_link(format!("/proc/self/fd/{raw}")) {
        Ok(path) => format!("{raw}<{}>", path.display()),
        Err(_) => raw.to_string(),
    }
}
