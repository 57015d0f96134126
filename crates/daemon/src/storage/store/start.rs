// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An earlier daemon's remains: files are taken over, and their names say their users.

use std::collections::BTreeMap;

use book::Found;
use book::block::{Reach, StateName};
use book::journal;
use linux::BlockFile;
use units::{BlockId, Bytes, LeaseId, PageSize, Uid};

use super::{GONE, Place, Store, Users};
use crate::base::error::Result;
use crate::storage::proof::Proofs;

impl Store {
    /// The account of each lease that a file there is says it is, or was, part of.
    pub(crate) fn lease_owners(&self) -> Result<BTreeMap<LeaseId, Uid>> {
        let mut owners = BTreeMap::new();
        for (page_size, dir) in &self.dirs {
            for state in StateName::ALL {
                let names = dir.list(state.as_str())?;
                let parts = names.iter().filter_map(|n| journal::parse(n, *page_size)?.part);
                owners.extend(parts.map(|part| (part.lease, part.account)));
            }
        }
        Ok(owners)
    }

    /// Every file there is. Unknown names are removed: only a daemon writes here.
    pub(crate) fn scan(&mut self, lease_alive: &dyn Fn(u64) -> bool) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        for (page_size, dir) in self.dirs.clone() {
            for name in dir.list(GONE)? {
                self.free(page_size, &dir, name, (None, None), Users::LoseIt);
            }
            for state in StateName::ALL {
                for name in dir.list(state.as_str())? {
                    let Some(entry) = journal::parse(&name, page_size) else {
                        tracing::warn!(%name, %state, "a file that no daemon made is removed");
                        dir.unlink(state.as_str(), &name)?;
                        continue;
                    };
                    let bytes = match dir.allocated_bytes(state.as_str(), &name) {
                        Ok(bytes) => bytes,
                        Err(error) if is_no_block(&error) => {
                            // A crash between the directory and its file, or no directory.
                            dir.unlink(state.as_str(), &name)?;
                            continue;
                        }
                        Err(error) => return Err(error.into()),
                    };
                    let reach = match state {
                        StateName::Ready | StateName::Kept => reach_of(
                            dir.open_block(state.as_str(), &name),
                            entry.block,
                            &self.proofs,
                            page_size,
                        )?,
                        // Asked when it is settled.
                        _ => Reach::Shared,
                    };
                    found.push(Found {
                        state,
                        allocated: Bytes(bytes).whole_pages(page_size),
                        reach,
                        lease_alive: entry.part.as_ref().is_some_and(|p| lease_alive(p.lease.0)),
                        entry: entry.clone(),
                    });
                    let place = Place { page_size, state, name };
                    self.places.insert(entry.block, place);
                    if state == StateName::Lent {
                        self.record_filled(entry.block);
                    }
                }
            }
        }
        Ok(found)
    }

    /// How many unknown blocks are on the mounts: their pages are unused until the next start,
    /// which removes them or takes them over.
    pub(crate) fn unknown(&self) -> Result<u64> {
        let mut unknown = 0;
        for (page_size, dir) in &self.dirs {
            let there = StateName::ALL.iter().map(|state| dir.count(state.as_str()));
            let there: u64 = there.sum::<linux::Result<u64>>()?;
            let known = self.places.values().filter(|place| place.page_size == *page_size);
            unknown += there.saturating_sub(known.count() as u64);
            if !self.user_queues.is_busy() {
                // The files there are at rest.
                unknown += dir.count(GONE)?;
            }
        }
        Ok(unknown)
    }
}

/// Whether an entry with the name of a block has no file of it.
fn is_no_block(error: &linux::Error) -> bool {
    error.is_not_found() || error.errno() == Some(linux::Errno::NOTDIR)
}

/// The processes that reach a file found at start, without waiting for any of them.
fn reach_of(
    opened: linux::Result<BlockFile>,
    block: BlockId,
    proofs: &Proofs,
    size: PageSize,
) -> Result<Reach> {
    match opened {
        Ok(file) if file.is_private()? => {
            let reach = proofs.reach(block, &file, size);
            proofs.record_lent(block, &file, size);
            Ok(reach)
        }
        Ok(_) => Ok(Reach::Shared),
        Err(error) if error.is_in_use() => Ok(Reach::Shared),
        Err(error) => Err(error.into()),
    }
}
