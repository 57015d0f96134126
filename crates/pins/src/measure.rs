// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a page at rest looks like on this kernel.

#![expect(unsafe_code, reason = "maps a page of its own and passes it to vmsplice")]
//! # Safety
//!
//! One byte of a mapping that is made and unmapped here goes to one system call, which reads it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use linux::BlockFile;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags};
use units::PageSize;

use crate::probe::{Error, PinProbe, References, Result, Unavailable};

/// A file at rest, as it was measured on this kernel. The measure has the places of its pages, the
/// references of an unpinned page, those of the name and of the inode of a file that is open once,
/// and the count of that one description.
///
/// Only [`PinProbe::measure`] makes one, and only after it has seen a pin, a watch and a lock come
/// and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    page: PageSize,
    step: u32,
    references: i32,
    names: i32,
    open: (i32, i32),
    inodes: i32,
}

impl Rest {
    /// The way to look at a file without any measure: all its pages are found, slowly.
    fn unknown(page: PageSize) -> Self {
        Self { page, step: 1, references: 0, names: 0, open: (0, 0), inodes: 0 }
    }

    /// The page size it was measured for.
    pub fn page(self) -> PageSize {
        self.page
    }

    /// From one page to the next in a file's index: base pages of a page since Linux 6.7, 1 before.
    pub(crate) fn step(self) -> u32 {
        self.step
    }

    /// The number of a page's references.
    pub fn references(self) -> i32 {
        self.references
    }

    /// The number of the directory entry's references.
    pub fn names(self) -> i32 {
        self.names
    }

    /// Descriptions that may write, and those that may only read: the caller's one.
    pub fn open(self) -> (i32, i32) {
        self.open
    }

    /// References of the inode; 0 on a kernel that counts them otherwise.
    pub(crate) fn inodes(self) -> i32 {
        self.inodes
    }

    /// What [`restore`](Self::restore) reads, for a later process under the same boot.
    pub fn to_text(self) -> String {
        let Self { page, step, references, names, open: (writers, readers), inodes } = self;
        format!("{} {step} {references} {names} {writers} {readers} {inodes}", page.bytes())
    }

    /// Takes over what an earlier process has measured since the machine was booted: `text` must
    /// come from [`to_text`](Self::to_text), from where only the caller can write. `None` for any
    /// other.
    pub fn restore(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let page = PageSize::new(words.next()?.parse().ok()?)?;
        let step = words.next()?.parse().ok()?;
        let references = words.next()?.parse().ok()?;
        let names = words.next()?.parse().ok()?;
        let open = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let inodes = words.next()?.parse().ok()?;
        let rest = Self { page, step, references, names, open, inodes };
        (rest.to_text() == text).then_some(rest)
    }
}

impl PinProbe {
    /// Measures what a file of such pages looks like at rest, and that a pin is seen: gives `file`
    /// a page, pins it by `vmsplice`, and lets it go.
    ///
    /// `file` is an empty hugetlbfs file of the caller's own, open once, and never shared. It has
    /// one page afterwards. Blocks for the zeroing of that page, and 20 us.
    ///
    /// # Errors
    /// [`Unavailable`] if no page is free, or the pin is not seen as one reference more on that
    /// page, or does not go.
    pub fn measure(
        &self,
        file: &BlockFile,
        page: PageSize,
    ) -> std::result::Result<Rest, Unavailable> {
        let failed = |error: Error| Unavailable(error.to_string());
        // Behind a hole, because at the beginning of a file both ways to count an index agree.
        let taken = file.set_len(2 * page.bytes());
        let taken = taken.and_then(|()| file.allocate(page.bytes(), page.bytes()));
        taken.map_err(|error| failed(error.into()))?;
        let unknown =
            |seen: &dyn std::fmt::Debug, what: &str| Unavailable(format!("{what}: {seen:?}"));
        let seen = self.look(file.as_fd(), 2, Rest::unknown(page), None).map_err(failed)?;
        let base = page.bytes() / rustix::param::page_size() as u64;
        if seen.pages != 1 || ![1, base].contains(&seen.first) {
            return Err(unknown(&seen, "a file's page is not found in its index"));
        }
        if seen.lowest <= 0 || seen.mapped || seen.open == (0, 0) || seen.inode.is_marked() {
            return Err(unknown(&seen, "a page at rest shows as"));
        }
        let rest = Rest {
            page,
            step: u32::try_from(seen.first).unwrap_or(1),
            references: seen.lowest,
            names: seen.names,
            open: seen.open,
            inodes: seen.inode.references,
        };
        let look = || self.look(file.as_fd(), 2, rest, None).map_err(failed);
        let is_at_rest = |seen: &References| {
            let is_counted =
                (seen.inode.references, seen.inode.is_marked()) == (rest.inodes, false);
            (seen.held, seen.names, seen.open) == (0, rest.names, rest.open) && is_counted
        };
        {
            let _pin = Pin::of_second_page(file, page).map_err(failed)?;
            let pinned = look()?;
            let is_pinned = (pinned.held, pinned.first_held, pinned.mapped) == (1, 1, false);
            if !is_pinned || pinned.highest <= rest.references {
                return Err(unknown(&pinned, "a pin of the second page shows as"));
            }
        }
        if let Some(watcher) = watch(file).map_err(failed)? {
            let watched = look()?;
            if watched.inode.watches != 1 {
                return Err(unknown(&watched, "a watch shows as"));
            }
            let own = self.look(file.as_fd(), 2, rest, Some(watcher.as_fd())).map_err(failed)?;
            if (own.inode.watches, own.inode.is_watched) != (0, true) {
                return Err(unknown(&own, "a watch of its own shows as"));
            }
        }
        if flock(file, FlockOperation::NonBlockingLockShared).is_ok() {
            let locked = look()?;
            let unlocked = flock(file, FlockOperation::Unlock);
            if !locked.inode.has_locks || unlocked.is_err() {
                return Err(unknown(&locked, "a lock shows as"));
            }
        }
        let after = look()?;
        if !is_at_rest(&after) {
            return Err(unknown(&after, "what is gone still shows"));
        }
        Ok(rest)
    }
}

/// Watches a file until the descriptor is dropped. `None` where the kernel has no inotify.
fn watch(file: &BlockFile) -> Result<Option<OwnedFd>> {
    let failed = |call: &str| {
        let call = call.to_owned();
        move |errno| Error::Call { call, errno }
    };
    let watcher = match inotify::init(CreateFlags::CLOEXEC) {
        Err(Errno::NOSYS) => return Ok(None),
        other => other.map_err(failed("inotify_init1(IN_CLOEXEC)"))?,
    };
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    inotify::add_watch(&watcher, path, WatchFlags::CLOSE_WRITE)
        .map_err(failed("inotify_add_watch(IN_CLOSE_WRITE)"))?;
    Ok(Some(watcher))
}

/// A page in a pipe, while it lives.
struct Pin {
    _pipe: (OwnedFd, OwnedFd),
}

impl Pin {
    /// Pins the second page of `file`; the mapping is gone afterwards.
    fn of_second_page(file: &BlockFile, page: PageSize) -> Result<Self> {
        let failed = |call: &str| {
            let call = call.to_owned();
            move |errno| Error::Call { call, errno }
        };
        let pipe =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe2(O_CLOEXEC)"))?;
        let length = usize::try_from(page.bytes()).map_err(|_| Error::Value {
            what: "page size",
            value: page.bytes(),
            why: "is larger than the address space",
        })?;
        // The hole before it must not be mapped: it would be promised a page.
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                page.bytes(),
            )
        }
        .map_err(failed("mmap(MAP_SHARED)"))?;
        // SAFETY: one byte of a readable mapping, which lives until the call has returned; it stays
        // unchanged meanwhile, since `file` is the caller's own.
        let byte = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), 1) };
        // SAFETY: without SPLICE_F_GIFT the page stays the file's; the pipe holds a reference.
        let given = unsafe {
            rustix::pipe::vmsplice(&pipe.1, &[IoSliceRaw::from_slice(byte)], SpliceFlags::empty())
        };
        // SAFETY: the mapping was made here, and nothing points into it any more.
        let unmapped = unsafe { rustix::mm::munmap(start, length) };
        given.map_err(failed("vmsplice"))?;
        unmapped.map_err(failed("munmap"))?;
        Ok(Self { _pipe: pipe })
    }
}
