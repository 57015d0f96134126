// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of many files lost a description: the end of a mapping as an event.
//!
//! A mapping holds its file's open description, and inotify reports `IN_CLOSE` when a description
//! goes. That is later than the close of its descriptor: it comes with the last `munmap`, the end
//! of its process, or SIGKILL, within 0.3 ms. `O_PATH` descriptors are reported, too.
//!
//! The kernel bounds watches by user (`fs.inotify.max_user_watches`), and the events that wait
//! (`fs.inotify.max_queued_events`): beyond that it says [`UnmapEvent::Unknown`], once.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::block_dir::BlockDir;
use crate::error::{Advise, Errno, ErrorContext, Result};

/// Room for 40 events of files, which carry a name only for directories.
const ROOM: usize = 1024;

/// The watches. Dropping it ends all of them.
#[derive(Debug)]
pub struct UnmapEvents(OwnedFd);

/// One file that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchId(i32);

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmapEvent {
    /// A description of that file went.
    One(WatchId),
    /// The file itself is gone, and its watch with it.
    Gone(WatchId),
    /// Events were lost: it may be any file.
    Unknown,
}

impl UnmapEvents {
    /// No watches yet. Its descriptor is readable when [`read`](Self::read) has something to say.
    pub fn new() -> Result<Self> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map(Self)
            .or_call(|| "inotify_init1(IN_CLOEXEC|IN_NONBLOCK)".to_owned())
            .advise(Errno::MFILE, "raise fs.inotify.max_user_instances")
    }

    /// Watches the file of a block. A file that is watched already has the same watch. Takes no
    /// lock of the file's inode that is held while something sleeps.
    ///
    /// # Errors
    /// ENOSPC if the user has used up its watches.
    pub fn watch(&self, dir: &BlockDir, state: &str, name: &str) -> Result<WatchId> {
        let path = dir.path_of(state, name)?;
        inotify::add_watch(&self.0, path.as_path(), WatchFlags::CLOSE)
            .map(WatchId)
            .or_call(|| format!("inotify_add_watch({path:?}, IN_CLOSE)"))
            .advise(Errno::NOSPC, "raise fs.inotify.max_user_watches")
    }

    /// Ends a watch. One that is gone already stays so.
    pub fn forget(&self, watch: WatchId) {
        // EINVAL: the file went, and the watch with it.
        inotify::remove_watch(&self.0, watch.0).ok();
    }

    /// The events since the last call, up to the size of one read; empty only without events.
    /// Returns at once.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn read(&self) -> Result<Vec<UnmapEvent>> {
        let mut room = [MaybeUninit::uninit(); ROOM];
        let mut reader = Reader::new(self.0.as_fd(), &mut room);
        let mut reported = Vec::new();
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    reported.push(UnmapEvent::Unknown);
                }
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    reported.push(UnmapEvent::Gone(WatchId(event.wd())));
                }
                Ok(event) => reported.push(UnmapEvent::One(WatchId(event.wd()))),
                Err(Errno::AGAIN) => return Ok(reported),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).or_call(|| "read(inotify)".to_owned()),
            }
            if reader.is_buffer_empty() {
                return Ok(reported);
            }
        }
    }
}

impl AsFd for UnmapEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
