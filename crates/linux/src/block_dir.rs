// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A directory of blocks: one subdirectory is one state, in it one directory is one block, which
//! holds the one file of its pages; one rename is one move.
//!
//! A rename moves the block's directory, since it waits for the inode lock of the moved file. A
//! process that fills a file holds the file's lock for the whole call. The directory's lock stays
//! free, since no descriptor of a file leads to its directory. The same holds for opening a file
//! and asking for its length and memory. Only [`BlockDir::unlink`], and calls that change the
//! file's length, owner or mode, wait for processes that have the file open.
//!
//! The file system is the journal. A rename never replaces a file (`RENAME_NOREPLACE`), so a block
//! cannot be lost to a name used twice. All calls are relative to directories held open, so that a
//! mount or a symbolic link put over the path later changes nothing.
//!
//! A move costs 3 us (`examples/costs.rs`).
//!
//! Works on every file system with a rename that refuses to replace; on hugetlbfs the pages are
//! huge, elsewhere (tmpfs) plain.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, Stat, StatxFlags};
use units::PageSize;

use crate::block_file::BlockFile;
use crate::error::{Advise, Errno, Error, ErrorContext, Result};
use crate::holders::Identity;
use crate::meminfo;
use crate::mount::hugetlb_page;

/// The name of the file in a block's directory.
const PAGES: &str = "pages";

/// An opened directory with its state subdirectories.
#[derive(Debug)]
pub struct BlockDir {
    path: PathBuf,
    root: OwnedFd,
    page: PageSize,
    states: Vec<(String, OwnedFd)>,
}

impl BlockDir {
    /// Opens `path`, which must exist, and makes the missing subdirectories, each with `mode`
    /// (0o700 keeps every path to the files closed; descriptors still reach them).
    pub fn open(path: &Path, states: &[&str], mode: u32) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .or_call(|| format!("open({path:?}, O_DIRECTORY)"))?;
        Self::open_root(root, path, states, mode)
    }

    /// The same for a directory that is open already, which `path` only names: how one is reached
    /// that lies on a mount which this process does not see (any more).
    pub fn open_root(root: OwnedFd, path: &Path, states: &[&str], mode: u32) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let stat = rustix::fs::fstatfs(&root).or_call(|| format!("fstatfs({path:?})"))?;
        let page = hugetlb_page(&stat).unwrap_or_else(meminfo::base_page);
        let mode = Mode::from_raw_mode(mode);
        let open_state = |&state: &&str| {
            check_name(state)?;
            match rustix::fs::mkdirat(&root, state, mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => {
                    return Err(errno)
                        .or_call(|| format!("mkdirat({path:?}, {state:?}, {mode:?})"));
                }
            }
            let fd = rustix::fs::openat(&root, state, flags | OFlags::NOFOLLOW, Mode::empty())
                .or_call(|| format!("openat({path:?}, {state:?}, O_DIRECTORY|O_NOFOLLOW)"))?;
            Ok((state.to_owned(), fd))
        };
        let states = states.iter().map(open_state).collect::<Result<_>>()?;
        Ok(Self { path: path.to_owned(), root, page, states })
    }

    /// The directory itself: an open descriptor of it keeps its file system, mounted or not.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size of the pages that its files are made of: the hugetlbfs's, elsewhere plain pages.
    pub fn page(&self) -> PageSize {
        self.page
    }

    /// The names in `state`, sorted.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is not UTF-8: prezero makes none, so another program did.
    pub fn list(&self, state: &str) -> Result<Vec<String>> {
        let dir = self.state(state)?;
        let call = || format!("getdents64({:?})", self.path.join(state));
        let mut names = Vec::new();
        for entry in Dir::read_from(dir).or_call(call)? {
            let entry = entry.or_call(call)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let name = name.to_str().map_err(|_| {
                Error::invalid(
                    "file name",
                    format!("{name:?}"),
                    "is not prezero's: remove the file",
                )
            })?;
            names.push(name.to_owned());
        }
        names.sort();
        Ok(names)
    }

    /// The number of blocks in `state`, under any name: a directory's number of links, at the same
    /// cost for one and a million.
    pub fn count(&self, state: &str) -> Result<u64> {
        let flags = AtFlags::EMPTY_PATH;
        let stat = rustix::fs::statx(self.state(state)?, "", flags, StatxFlags::NLINK)
            .or_call(|| format!("statx({:?}, STATX_NLINK)", self.path.join(state)))?;
        // Its own name and `.`.
        Ok(u64::from(stat.stx_nlink).saturating_sub(2))
    }

    /// Makes a new empty file with mode 0600 under any umask.
    ///
    /// # Errors
    /// EEXIST if the name is taken.
    pub fn create(&self, state: &str, name: &str) -> Result<BlockFile> {
        check_name(name)?;
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let dir = self.state(state)?;
        rustix::fs::mkdirat(dir, name, Mode::RWXU)
            .or_call(|| format!("mkdirat({:?}, {name:?}, 0700)", self.path.join(state)))?;
        let fd = rustix::fs::openat(dir, in_block(name), flags, mode)
            .inspect_err(|_| {
                // The first error counts; an empty directory is ignored.
                rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR).ok();
            })
            .or_call(|| {
                let path = self.path.join(state).join(name);
                format!("openat({path:?}, {PAGES:?}, O_RDWR|O_CREAT|O_EXCL, 0600)")
            })?;
        rustix::fs::fchmod(&fd, mode).or_call(|| format!("fchmod({name:?}, 0600)"))?;
        Ok(BlockFile::from(fd))
    }

    /// Opens a file again: a *new* description, which the lease proof counts apart. Waits for
    /// nobody.
    ///
    /// # Errors
    /// [`Error::is_in_use`] while a process has a lease on the file, or runs the program in it, as
    /// its owner may.
    pub fn open_block(&self, state: &str, name: &str) -> Result<BlockFile> {
        check_name(name)?;
        // O_NONBLOCK avoids a wait for the lease's holder, for lease-break-time: 45 s.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Not openat2(2), which systemd's RestrictSUIDSGID= answers with ENOSYS. Only the daemon
        // can make a name here: the mount is its own, of mode 0700.
        let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(self.state(state)?, name, through, Mode::empty())
            .and_then(|block| rustix::fs::openat(block, PAGES, flags, Mode::empty()));
        let fd = opened.or_call(|| {
            let path = self.path.join(state).join(name);
            format!("openat({path:?}, {PAGES:?}, O_RDWR|O_NONBLOCK|O_NOFOLLOW)")
        })?;
        // It means nothing to a file's memory, but its borrower would see it.
        rustix::fs::fcntl_setfl(&fd, OFlags::RDWR)
            .or_call(|| format!("fcntl({name:?}, F_SETFL, O_RDWR)"))?;
        Ok(BlockFile::from(fd))
    }

    /// An `O_PATH` descriptor of a block's file, which is a reference of its name only: for a look,
    /// beside which the file can be lent. Returns at once.
    pub fn name_block(&self, state: &str, name: &str) -> Result<OwnedFd> {
        check_name(name)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.state(state)?, in_block(name), flags, Mode::empty())
            .or_call(|| format!("openat({:?}, O_PATH|O_NOFOLLOW)", self.file_path(state, name)))
    }

    /// Bytes of a block that have memory, by its path. Returns at once.
    pub fn allocated_bytes(&self, state: &str, name: &str) -> Result<u64> {
        crate::block_file::allocated(&self.stat(state, name)?)
    }

    fn stat(&self, state: &str, name: &str) -> Result<Stat> {
        check_name(name)?;
        rustix::fs::statat(self.state(state)?, in_block(name), AtFlags::SYMLINK_NOFOLLOW)
            .or_call(|| format!("newfstatat({:?}, {PAGES:?})", self.path.join(state).join(name)))
    }

    /// What shows in `/proc` that a file is this one. Waits for nobody.
    pub fn identity(&self, state: &str, name: &str) -> Result<Identity> {
        let stat = self.stat(state, name)?;
        let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        Ok(Identity { device, inode: stat.st_ino, tail: format!("/{name}/{PAGES}") })
    }

    /// The path of a block's file, by the path that the directory was opened by.
    pub fn file_path(&self, state: &str, name: &str) -> PathBuf {
        self.path.join(state).join(name).join(PAGES)
    }

    /// A path of a block's file, valid for the lifetime of this value under any mount.
    pub(crate) fn path_of(&self, state: &str, name: &str) -> Result<PathBuf> {
        check_name(name)?;
        let dir = self.state(state)?.as_raw_fd();
        Ok(format!("/proc/self/fd/{dir}/{}", in_block(name)).into())
    }

    /// Moves a block to another state and name in one step; descriptors and mappings stay good.
    ///
    /// # Errors
    /// EEXIST if `new_name` is taken in `to`, ENOENT if `name` is missing in `from`; then the block
    /// stays where it is.
    pub fn rename(&self, name: &str, from: &str, new_name: &str, to: &str) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        let (old, new) = (self.state(from)?, self.state(to)?);
        rustix::fs::renameat_with(old, name, new, new_name, RenameFlags::NOREPLACE)
            .or_call(|| {
                let (old, new) = (self.path.join(from), self.path.join(to));
                format!("renameat2({old:?}, {name:?}, {new:?}, {new_name:?}, RENAME_NOREPLACE)")
            })
            .advise(
                Errno::INVAL,
                "this file system cannot rename without replacing: use hugetlbfs or tmpfs",
            )
    }

    /// Removes a block, or any other file of that name; the pages go with the last description and
    /// mapping. Waits for processes that have the file open.
    pub fn unlink(&self, state: &str, name: &str) -> Result<()> {
        check_name(name)?;
        let dir = self.state(state)?;
        let call = || format!("unlinkat({:?}, {name:?})", self.path.join(state));
        match rustix::fs::unlinkat(dir, in_block(name), AtFlags::empty()) {
            // A crash may have come between the two.
            Ok(()) | Err(Errno::NOENT) => {
                rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR).or_call(call)
            }
            Err(Errno::NOTDIR) => rustix::fs::unlinkat(dir, name, AtFlags::empty()).or_call(call),
            Err(errno) => Err(errno).or_call(call),
        }
    }

    fn state(&self, state: &str) -> Result<BorrowedFd<'_>> {
        let found = self.states.iter().find(|(name, _)| name == state);
        found.map(|(_, fd)| fd.as_fd()).ok_or_else(|| {
            Error::invalid(
                "state",
                format!("{state:?}"),
                "was not named when the directory was opened",
            )
        })
    }
}

/// The path of a block's file from its state's directory.
fn in_block(name: &str) -> String {
    format!("{name}/{PAGES}")
}

/// One path component, which stays in its directory.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_component = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    if is_component && name.len() <= 255 {
        return Ok(());
    }
    Err(Error::invalid("name", format!("{name:?}"), "is not one path component of 1 to 255 bytes"))
}
