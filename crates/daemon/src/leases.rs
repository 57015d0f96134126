// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The leases' names: one directory of FIFOs per page size, on the mount of the pages lent.
//!
//! On that mount because it is memory: making a FIFO costs 14 us there, and 100 us and more on a
//! disk's file system that looks for a free inode. `/run` is memory on most machines, not on all.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use linux::{DaemonEnd, LeaseDir};
use units::{LeaseId, PageSize};

use crate::error::Result;

/// The directories, and which of them a lease is in.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    dirs: BTreeMap<PageSize, Arc<LeaseDir>>,
    places: BTreeMap<LeaseId, PageSize>,
}

impl Leases {
    /// Opens, and where needed makes, the directory beside the blocks of one size, whose mount's
    /// root is `root`; no-op if it is open.
    pub(crate) fn add(&mut self, size: PageSize, root: BorrowedFd<'_>, path: &Path) -> Result<()> {
        if let Entry::Vacant(place) = self.dirs.entry(size) {
            place.insert(Arc::new(LeaseDir::open_in(root, "leases", path)?));
        }
        Ok(())
    }

    /// The leases that an earlier daemon gave and somebody still holds; the names of all others
    /// are removed.
    pub(crate) fn take_over(&mut self) -> Result<BTreeMap<LeaseId, DaemonEnd>> {
        let mut alive = BTreeMap::new();
        for (page_size, dir) in &self.dirs {
            for name in dir.list()? {
                let id = name.strip_prefix('l').and_then(|n| n.parse().ok()).map(LeaseId);
                match (id, dir.reopen(&name)?) {
                    (Some(id), Some(end)) => {
                        self.places.insert(id, *page_size);
                        alive.insert(id, end);
                    }
                    _ => dir.remove(&name)?,
                }
            }
        }
        Ok(alive)
    }

    /// Begins a lease on pages of one size: the client's end, and the daemon's.
    pub(crate) fn create(
        &mut self,
        lease: LeaseId,
        page_size: PageSize,
    ) -> Result<(OwnedFd, DaemonEnd)> {
        let dir = self.dirs.get(&page_size).ok_or_else(|| crate::Error::NoSuchPages {
            page: page_size,
            known: self.dirs.keys().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        })?;
        let ends = dir.create(&lease.to_string())?;
        self.places.insert(lease, page_size);
        Ok(ends)
    }

    /// Forgets a lease. `None` if there is none of that number; else what is to be called for the
    /// end of its name. That waits for whoever tries to change the FIFO's mode by a descriptor that
    /// it has kept: 50 ms, where many do so without CPU time.
    pub(crate) fn remove(
        &mut self,
        lease: LeaseId,
    ) -> Option<impl FnOnce() -> Result<()> + Send + use<>> {
        let dir = Arc::clone(self.dirs.get(&self.places.remove(&lease)?)?);
        Some(move || Ok(dir.remove(&lease.to_string())?))
    }
}
