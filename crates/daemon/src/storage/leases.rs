// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The leases' names: one directory per page size, on the mount of the pages lent, and in it a
//! directory with a FIFO for each lease.
//!
//! On that mount because it is memory: making one costs 20 us there, and 100 us and more on a
//! disk's file system that looks for a free inode. `/run` is memory on most machines, not on all.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use linux::{DaemonEnd, LeaseDir};
use tokio::sync::mpsc;
use units::{LeaseId, PageSize, Uid};

use crate::base::error::Result;
use crate::base::user_queues::{UNLENT_NAMES, UserQueues};

/// The directory of leases.
const DIRECTORY: &str = "loans";

/// What a user queue found out about an earlier daemon's lease: the daemon's end, if it is held.
pub(crate) type FoundLease = (LeaseId, linux::Result<Option<DaemonEnd>>);

/// The leases of an earlier daemon, which user queues look for.
#[derive(Debug)]
pub(crate) struct TakenOver {
    /// Leases in an unknown state.
    asked: BTreeSet<LeaseId>,
    found: mpsc::UnboundedReceiver<FoundLease>,
}

impl TakenOver {
    /// Leases known to be held. Those in an unknown state may be.
    pub(crate) fn held(&mut self) -> Result<BTreeMap<LeaseId, DaemonEnd>> {
        let mut held = BTreeMap::new();
        while let Ok((lease, end)) = self.found.try_recv() {
            self.asked.remove(&lease);
            held.extend(end?.map(|end| (lease, end)));
        }
        Ok(held)
    }

    /// Leases in an unknown state.
    pub(crate) fn unknown(&self) -> &BTreeSet<LeaseId> {
        &self.asked
    }

    /// Findings from now on.
    pub(crate) fn later(self) -> mpsc::UnboundedReceiver<FoundLease> {
        self.found
    }
}

fn forget(dir: &LeaseDir, name: &str) {
    if let Err(error) = dir.remove(name) {
        tracing::debug!(%error, %name, "a lease's name stays until the next start");
    }
}

/// The directories, and which of them a lease is in.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    dirs: BTreeMap<PageSize, Arc<LeaseDir>>,
    places: BTreeMap<LeaseId, PageSize>,
}

impl Leases {
    /// Opens, and where needed makes, the directory beside the blocks of one size, on the mount
    /// with `root` as its root; no-op if it is open.
    pub(crate) fn add(&mut self, size: PageSize, root: BorrowedFd<'_>, path: &Path) -> Result<()> {
        if let Entry::Vacant(place) = self.dirs.entry(size) {
            place.insert(Arc::new(LeaseDir::open_in(root, path, DIRECTORY)?));
        }
        Ok(())
    }

    /// Looks up which leases of an earlier daemon still have holders, with their accounts in
    /// `owners`; the names of all others are removed. Returns at once. To open a pipe waits for
    /// processes that change or measure it, seconds for one that 60 threads without CPU time use.
    /// So each user's are opened in its own user queue.
    pub(crate) fn take_over(
        &mut self,
        owners: &BTreeMap<LeaseId, Uid>,
        user_queues: &UserQueues,
    ) -> Result<TakenOver> {
        let (notify, found) = mpsc::unbounded_channel();
        let mut asked = BTreeSet::new();
        for (page_size, dir) in &self.dirs {
            for name in dir.list()? {
                let id = name.strip_prefix('l').and_then(|n| n.parse().ok()).map(LeaseId);
                let dir = Arc::clone(dir);
                let Some((id, owner)) = id.and_then(|id| Some((id, *owners.get(&id)?))) else {
                    // Its blocks are all gone: its holder has nothing.
                    user_queues.submit(UNLENT_NAMES, move || forget(&dir, &name));
                    continue;
                };
                self.places.insert(id, *page_size);
                asked.insert(id);
                let notify = notify.clone();
                user_queues.submit(Some(owner), move || {
                    let end = dir.reopen(&name);
                    if matches!(end, Ok(None)) {
                        forget(&dir, &name);
                    }
                    // The start may have failed.
                    notify.send((id, end)).ok();
                });
            }
        }
        Ok(TakenOver { asked, found })
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

    /// Forgets a lease. `None` if that number is unused; else returns the call that ends its name.
    /// That call waits for processes that change the FIFO's mode by a descriptor of it, 50 ms where
    /// many do so without CPU time, and delays only this user.
    pub(crate) fn remove(&mut self, lease: LeaseId) -> Option<impl FnOnce() + Send + use<>> {
        let dir = Arc::clone(self.dirs.get(&self.places.remove(&lease)?)?);
        Some(move || forget(&dir, &lease.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    // Promise P160.
    #[test]
    fn user_that_blocks_its_queue_delays_no_start() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let leases = || {
            let mut leases = Leases::default();
            leases.add(PageSize::MIB_2, root.as_fd(), dir.path()).unwrap();
            leases
        };
        let mut before = leases();
        let given = |id| before.create(LeaseId(id), PageSize::MIB_2).unwrap();
        let [(held, _), (stuck, _), (gone, _), (nobodys, _)] = [1, 2, 3, 4].map(given);
        drop(gone);

        let (user_queues, mut after) = (UserQueues::new(), leases());
        let release = user_queues.hold_up(Some(Uid(2)));
        // Of the fourth no block is left.
        let owners = [(1, 1), (2, 2), (3, 1)].map(|(id, uid)| (LeaseId(id), Uid(uid)));
        let mut taken_over = after.take_over(&owners.into(), &user_queues).unwrap();
        let (mut found, end) = (BTreeMap::new(), Instant::now() + Duration::from_secs(20));
        while found.is_empty() || taken_over.unknown().len() > 1 {
            assert!(Instant::now() < end, "what nobody holds up takes no time: {found:?}");
            found.extend(taken_over.held().unwrap());
            std::thread::yield_now();
        }
        assert!(found.keys().eq(&[LeaseId(1)]), "{found:?}");
        assert!(taken_over.unknown().iter().eq(&[LeaseId(2)]), "it may be held");
        drop(release);
        user_queues.wait(Duration::from_secs(20));
        let (lease, end) = taken_over.later().try_recv().unwrap();
        assert_eq!((lease, end.unwrap().is_some()), (LeaseId(2), true));
        let names = std::fs::read_dir(dir.path().join(DIRECTORY)).unwrap();
        let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["l1", "l2"], "the names of all others are gone");
        drop((held, stuck, nobodys));
    }
}
