// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a mapping as an event, for loans that are held by their memory and for blocks that
//! linger.
//!
//! A block is watched by a description of the daemon's own, by which it is also looked at: opening
//! it for each look would be an event itself. So a watch costs a descriptor; beyond [`MOST`] blocks
//! are looked at by the clock, as are those that somebody pins, of which nothing tells.
//!
//! To close a description is an event on the file, and wakes all who wait for the events of whoever
//! watches it: a hundred thousand waiters are 0.1 s. So none is dropped here: each goes back to the
//! caller, who has it closed in its user's lane.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use linux::closings::{Closed, Closings, Watch};
use linux::{BlockDir, BlockFile};
use units::BlockId;

/// The most blocks that are watched.
const MOST: usize = 4096;

/// The blocks that are watched.
#[derive(Debug)]
pub(crate) struct Watched {
    closings: Option<Arc<Closings>>,
    blocks: BTreeMap<BlockId, (Option<Watch>, Arc<BlockFile>)>,
    by_watch: BTreeMap<Watch, BlockId>,
}

impl Watched {
    /// Without inotify everything is looked at by the clock.
    pub(crate) fn new() -> Self {
        let closings = Closings::new()
            .inspect_err(|error| tracing::warn!(%error, "returns are looked for by the clock"));
        Self {
            closings: closings.ok().map(Arc::new),
            blocks: BTreeMap::new(),
            by_watch: BTreeMap::new(),
        }
    }

    /// By what it watches.
    pub(crate) fn watcher(&self) -> Option<Arc<Closings>> {
        self.closings.clone()
    }

    /// What becomes readable with each event.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        self.closings.as_ref()?.as_fd().try_clone_to_owned().ok()
    }

    /// The description by which a block is watched.
    pub(crate) fn file(&self, block: BlockId) -> Option<Arc<BlockFile>> {
        self.blocks.get(&block).map(|(_, file)| Arc::clone(file))
    }

    /// Watches a block from now on, by the description that is [kept](Self::keep). Returns whether
    /// it does so only now: what ended before is told by a look, and by nothing else.
    pub(crate) fn watch(
        &mut self,
        block: BlockId,
        (dir, state, name): (&BlockDir, &str, &str),
    ) -> bool {
        let Some(closings) = &self.closings else { return false };
        let Some((is_watched @ None, _)) = self.blocks.get_mut(&block) else { return false };
        match closings.watch(dir, state, name) {
            Ok(watch) => {
                *is_watched = Some(watch);
                self.by_watch.insert(watch, block);
                true
            }
            Err(error) => {
                tracing::debug!(%error, %block, "is looked at by the clock");
                false
            }
        }
    }

    /// Keeps a description of a block that is to be watched later, if there is room and none yet.
    /// Else it is returned.
    #[must_use = "to close it may wake all who watch its file"]
    pub(crate) fn keep(&mut self, block: BlockId, file: Arc<BlockFile>) -> Option<Arc<BlockFile>> {
        if self.blocks.len() >= MOST || self.blocks.contains_key(&block) {
            return Some(file);
        }
        self.blocks.insert(block, (None, file));
        None
    }

    /// Ends the watch, and returns the description.
    #[must_use = "to close it may wake all who watch its file"]
    pub(crate) fn forget(&mut self, block: BlockId) -> Option<Arc<BlockFile>> {
        let (watch, file) = self.blocks.remove(&block)?;
        if let (Some(watch), Some(closings)) = (watch, &self.closings) {
            self.by_watch.remove(&watch);
            closings.forget(watch);
        }
        Some(file)
    }

    /// The blocks of which a description went since the last call: all of them, if the kernel has
    /// lost count. `None` if nothing happened.
    pub(crate) fn closed(&mut self) -> Option<Vec<BlockId>> {
        let told = self.closings.as_ref().map(|closings| closings.read()).transpose();
        self.heed(told)
    }

    /// What was told, or that it could not be read.
    fn heed(&mut self, told: linux::Result<Option<Vec<Closed>>>) -> Option<Vec<BlockId>> {
        let told = match told {
            Ok(told) => told.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "events of files are lost");
                vec![Closed::Unknown]
            }
        };
        if told.is_empty() {
            return None;
        }
        let mut blocks = Vec::new();
        for closed in told {
            match closed {
                Closed::One(watch) => blocks.extend(self.by_watch.get(&watch)),
                // Its file is gone, and with it whoever could wait for it.
                Closed::Gone(watch) => {
                    if let Some(block) = self.by_watch.remove(&watch) {
                        self.blocks.remove(&block);
                    }
                }
                Closed::Unknown => return Some(self.blocks.keys().copied().collect()),
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        Some(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lets_go_of_a_watched_block_is_told_and_of_no_other() {
        let place = tempfile::tempdir().unwrap();
        let dir = BlockDir::open(place.path(), &["lent"], 0o711).unwrap();
        let [first, second] = ["b1", "b2"].map(|name| Arc::new(dir.create("lent", name).unwrap()));
        let let_go = |name| drop(dir.open_block("lent", name).unwrap());
        let at = |name| (&dir, "lent", name);
        let [one, two] = [1, 2].map(BlockId);
        let mut watched = Watched::new();
        assert!(watched.descriptor().is_some());
        assert!(watched.keep(one, first).is_none());
        assert!(watched.file(one).is_some() && watched.file(two).is_none());
        assert!(watched.watch(one, at("b1")), "from now on");
        assert!(!watched.watch(one, at("b1")), "it was before");
        assert!(!watched.watch(two, at("b2")), "there is nothing to look at it by");
        assert_eq!(watched.closed(), None);
        let_go("b2");
        assert_eq!(watched.closed(), None, "nobody watches it");
        assert!(watched.keep(two, Arc::clone(&second)).is_none());
        assert!(watched.keep(two, second).is_some(), "it has one");
        assert!(watched.watch(two, at("b2")));
        let_go("b2");
        assert_eq!(watched.closed(), Some(vec![two]));
        [two, one].into_iter().for_each(|block| drop(watched.forget(block)));
        let_go("b1");
        assert_eq!(watched.closed().unwrap_or_default(), []);
        assert!(watched.file(one).is_none());
    }

    #[test]
    fn so_many_blocks_have_a_description_and_no_more() {
        let place = tempfile::tempdir().unwrap();
        let dir = BlockDir::open(place.path(), &["lent"], 0o711).unwrap();
        let file = Arc::new(dir.create("lent", "b").unwrap());
        let mut watched = Watched::new();
        (0..=MOST as u64).for_each(|id| drop(watched.keep(BlockId(id), Arc::clone(&file))));
        assert!(watched.file(BlockId(MOST as u64 - 1)).is_some());
        assert!(watched.file(BlockId(MOST as u64)).is_none());
    }

    #[test]
    fn events_that_are_lost_have_every_block_looked_at() {
        let place = tempfile::tempdir().unwrap();
        let dir = BlockDir::open(place.path(), &["lent"], 0o711).unwrap();
        let file = Arc::new(dir.create("lent", "b").unwrap());
        let mut watched = Watched::new();
        let all = [1, 2, 3].map(BlockId);
        all.into_iter().for_each(|block| drop(watched.keep(block, Arc::clone(&file))));
        assert_eq!(watched.heed(Ok(Some(vec![Closed::Unknown]))), Some(all.to_vec()));
        // Any error: they cannot be read.
        let error = dir.create("lent", "b").unwrap_err();
        assert_eq!(watched.heed(Err(error)), Some(all.to_vec()));
        assert_eq!(watched.heed(Ok(Some(vec![]))), None);
        assert_eq!(watched.heed(Ok(None)), None, "nothing is watched");
    }
}
