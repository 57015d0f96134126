// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of memory that every block test runs on.

use std::path::Path;
use std::sync::MutexGuard;

use linux::{BlockDir, BlockFile};
use tempfile::TempDir;
use testkit::child;
use testkit::hugepages::{self, GIB_1, Guard, MIB_2, Mounted};
use units::{Node, PageSize};

/// A block directory on one kind of memory. Fields are dropped in order: descriptors, mount, pages.
pub(crate) struct Memory {
    pub(crate) dir: BlockDir,
    pub(crate) page: PageSize,
    place: Place,
    guard: Option<Guard>,
    _alone: MutexGuard<'static, ()>,
}

enum Place {
    Plain(TempDir),
    Huge(Mounted),
}

impl Memory {
    /// tmpfs, 4 KiB pages.
    pub(crate) fn plain() -> Self {
        let alone = child::alone();
        let place = tempfile::tempdir_in("/dev/shm").expect("/dev/shm is writable");
        let dir = open(place.path());
        assert_eq!(dir.page(), linux::meminfo::base_page());
        Self {
            dir,
            page: linux::meminfo::base_page(),
            place: Place::Plain(place),
            guard: None,
            _alone: alone,
        }
    }

    /// hugetlbfs with at least `pages` free pages, or nothing where the test is skipped.
    pub(crate) fn huge(page: PageSize, pages: u64) -> Option<Self> {
        Self::huge_on(None, page, pages)
    }

    /// The same with the free pages on one node.
    pub(crate) fn huge_on(node: Option<Node>, page: PageSize, pages: u64) -> Option<Self> {
        let alone = child::alone();
        let guard = hugepages::reserve_all(&[(page, node, pages)])?;
        let place = hugepages::mounted(page)?;
        let dir = open(place.path());
        assert_eq!(dir.page(), page, "statfs tells the page size");
        Some(Self { dir, page, place: Place::Huge(place), guard: Some(guard), _alone: alone })
    }

    /// Runs a test on every kind, one after the other.
    pub(crate) fn each(pages: u64, test: impl Fn(&Self)) {
        test(&Self::plain());
        for page in [MIB_2, GIB_1] {
            if let Some(memory) = Self::huge(page, pages) {
                test(&memory);
            }
        }
    }

    /// Runs a test on hugetlbfs of both sizes.
    pub(crate) fn each_huge(pages: u64, test: impl Fn(&Self)) {
        for page in [MIB_2, GIB_1] {
            if let Some(memory) = Self::huge(page, pages) {
                test(&memory);
            }
        }
    }

    /// A file of `pages` pages in `ready`, all of them allocated.
    pub(crate) fn block(&self, name: &str, pages: u64) -> BlockFile {
        let file = self.dir.create("ready", name).expect("a new name");
        file.allocate(0, self.bytes(pages)).expect("free pages");
        file
    }

    /// The file's mount or directory.
    pub(crate) fn path(&self) -> &Path {
        match &self.place {
            Place::Plain(dir) => dir.path(),
            Place::Huge(mount) => mount.path(),
        }
    }

    pub(crate) fn bytes(&self, pages: u64) -> u64 {
        pages * self.page.bytes()
    }

    /// Free pages of the pool; `None` for plain memory, which has no count for one test alone.
    pub(crate) fn free(&self) -> Option<u64> {
        self.guard.as_ref().map(|guard| guard.free(self.page))
    }
}

fn open(path: &Path) -> BlockDir {
    BlockDir::open(path, &["ready", "lent"], 0o700).expect("a block directory")
}
