// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an earlier daemon left: files are taken over, and whose they are is read from their names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use book::Found;
use book::block::{Reach, StateName};
use book::journal;
use linux::BlockFile;
use units::{BlockId, Bytes, LeaseId, PageSize, Uid};

use super::{GONE, Place, Store, Users, lane_of};
use crate::base::error::Result;
use crate::storage::proof::Proofs;

/// How long a start waits for what its borrowers hold up: files of the layout before this one.
const WRAP_PATIENCE: Duration = Duration::from_secs(2);

impl Store {
    /// Takes over the files of the layout before this one: without directories, mode 0666. Those
    /// whose borrowers hold them up are left for the next start, with everything that they have.
    fn wrap(&self) -> Result<()> {
        for (page_size, dir) in &self.dirs {
            for state in StateName::ALL {
                dir.end_wrapping(state.as_str())?;
                for name in dir.bare(state.as_str())? {
                    let dir = Arc::clone(dir);
                    let lane = lane_of(&name, *page_size, state);
                    self.lanes.submit(lane, move || {
                        let wrapped = dir.wrap(state.as_str(), &name).and_then(|()| {
                            if state == StateName::Lent {
                                return Ok(());
                            }
                            dir.open_block(state.as_str(), &name)?.take_access()
                        });
                        if let Err(error) = wrapped {
                            tracing::warn!(%error, %name, "a file is not taken over");
                        }
                    });
                }
            }
        }
        self.lanes.wait(WRAP_PATIENCE);
        Ok(())
    }

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

    /// Every file there is. Names that are nobody's are removed: only a daemon writes here.
    pub(crate) fn scan(&mut self, lease_alive: &dyn Fn(u64) -> bool) -> Result<Vec<Found>> {
        self.wrap()?;
        let mut found = Vec::new();
        for (page_size, dir) in self.dirs.clone() {
            for name in dir.list(GONE)? {
                self.free(page_size, &dir, name, (None, None), Users::LoseIt);
            }
            for state in StateName::ALL {
                let late = dir.bare(state.as_str())?;
                for name in dir.list(state.as_str())? {
                    if late.contains(&name) {
                        tracing::warn!(%name, %state, "held by its borrower: left for another start");
                        continue;
                    }
                    let Some(entry) = journal::parse(&name, page_size) else {
                        tracing::warn!(%name, %state, "a file that no daemon made is removed");
                        dir.unlink(state.as_str(), &name)?;
                        continue;
                    };
                    let bytes = match dir.allocated_bytes(state.as_str(), &name) {
                        Ok(bytes) => bytes,
                        Err(error) if error.is_not_found() => {
                            // Of a crash between the directory and its file, or their end.
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
                        self.note_filled(entry.block);
                    }
                }
            }
        }
        Ok(found)
    }

    /// How many blocks are on the mounts that it knows nothing of: their pages are nobody's until
    /// the next start, which removes them or takes them over.
    pub(crate) fn unknown(&self) -> Result<u64> {
        let mut unknown = 0;
        for (page_size, dir) in &self.dirs {
            let there = StateName::ALL.iter().map(|state| dir.count(state.as_str()));
            let there: u64 = there.sum::<linux::Result<u64>>()?;
            let known = self.places.values().filter(|place| place.page_size == *page_size);
            unknown += there.saturating_sub(known.count() as u64);
            if !self.lanes.is_busy() {
                // Nobody is at work on what is there.
                unknown += dir.count(GONE)?;
            }
        }
        Ok(unknown)
    }
}

/// Who can reach a file that is found at start, without waiting for anybody.
fn reach_of(
    opened: linux::Result<BlockFile>,
    block: BlockId,
    proofs: &Proofs,
    size: PageSize,
) -> Result<Reach> {
    match opened {
        Ok(file) if file.is_private()? => {
            let reach = proofs.reach(block, &file, size);
            proofs.note_lent(block, &file, size);
            Ok(reach)
        }
        Ok(_) => Ok(Reach::Shared),
        Err(error) if error.is_in_use() => Ok(Reach::Shared),
        Err(error) => Err(error.into()),
    }
}
