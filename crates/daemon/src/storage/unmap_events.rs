// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a mapping as an event, for loans that are held by their memory and for blocks that
//! are draining.
//!
//! A block is watched by a description of the daemon's own, which also serves the looks: opening it
//! for each look would be an event itself. So a watch costs a descriptor. Beyond
//! [`MAX_WATCHED_BLOCKS`] blocks are looked at by the clock, as are pinned ones, since nothing
//! reports the end of a pin.
//!
//! To close a description is an event on the file, and wakes all who wait for the events of its
//! watchers: a hundred thousand waiters are 0.1 s. So none is dropped here: each goes back to the
//! caller, which closes it in its user's queue.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use linux::unmap_events::{UnmapEvent, UnmapEvents, WatchId};
use linux::{BlockDir, BlockFile};
use units::BlockId;

/// The most blocks that are watched.
const MAX_WATCHED_BLOCKS: usize = 4096;

/// The blocks that are watched.
#[derive(Debug)]
pub(crate) struct WatchedBlocks {
    unmap_events: Option<Arc<UnmapEvents>>,
    blocks: BTreeMap<BlockId, (Option<WatchId>, Arc<BlockFile>)>,
    by_watch: BTreeMap<WatchId, BlockId>,
}

impl WatchedBlocks {
    /// Without inotify everything is looked at by the clock.
    pub(crate) fn new() -> Self {
        let unmap_events = UnmapEvents::new()
            .inspect_err(|error| tracing::warn!(%error, "returns are looked for by the clock"));
        Self {
            unmap_events: unmap_events.ok().map(Arc::new),
            blocks: BTreeMap::new(),
            by_watch: BTreeMap::new(),
        }
    }

    /// By what it watches.
    pub(crate) fn watcher(&self) -> Option<Arc<UnmapEvents>> {
        self.unmap_events.clone()
    }

    /// What becomes readable with each event.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        self.unmap_events.as_ref()?.as_fd().try_clone_to_owned().ok()
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
        let Some(unmap_events) = &self.unmap_events else { return false };
        let Some((is_watched @ None, _)) = self.blocks.get_mut(&block) else { return false };
        match unmap_events.watch(dir, state, name) {
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

    /// Keeps a description of a block for a later watch, if there is room and none yet. Else
    /// returns it.
    #[must_use = "to close it may wake all who watch its file"]
    pub(crate) fn keep(&mut self, block: BlockId, file: Arc<BlockFile>) -> Option<Arc<BlockFile>> {
        if self.blocks.len() >= MAX_WATCHED_BLOCKS || self.blocks.contains_key(&block) {
            return Some(file);
        }
        self.blocks.insert(block, (None, file));
        None
    }

    /// Ends the watch, and returns the description.
    #[must_use = "to close it may wake all who watch its file"]
    pub(crate) fn forget(&mut self, block: BlockId) -> Option<Arc<BlockFile>> {
        let (watch, file) = self.blocks.remove(&block)?;
        if let (Some(watch), Some(unmap_events)) = (watch, &self.unmap_events) {
            self.by_watch.remove(&watch);
            unmap_events.forget(watch);
        }
        Some(file)
    }

    /// The blocks with a description that went since the last call: all of them, if the kernel has
    /// lost count. `None` if nothing happened.
    pub(crate) fn closed(&mut self) -> Option<Vec<BlockId>> {
        let reported =
            self.unmap_events.as_ref().map(|unmap_events| unmap_events.read()).transpose();
        self.apply(reported)
    }

    /// The events, or that they could not be read.
    fn apply(&mut self, reported: linux::Result<Option<Vec<UnmapEvent>>>) -> Option<Vec<BlockId>> {
        let reported = match reported {
            Ok(reported) => reported.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "events of files are lost");
                vec![UnmapEvent::Unknown]
            }
        };
        if reported.is_empty() {
            return None;
        }
        let mut blocks = Vec::new();
        for closed in reported {
            match closed {
                UnmapEvent::One(watch) => blocks.extend(self.by_watch.get(&watch)),
                // Its file is gone, and with it every waiter.
                UnmapEvent::Gone(watch) => {
                    if let Some(block) = self.by_watch.remove(&watch) {
                        self.blocks.remove(&block);
                    }
                }
                UnmapEvent::Unknown => return Some(self.blocks.keys().copied().collect()),
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
    fn closed_watched_block_is_reported_and_no_other() {
        let place = tempfile::tempdir().unwrap();
        let dir = BlockDir::open(place.path(), &["lent"], 0o711).unwrap();
        let [first, second] = ["b1", "b2"].map(|name| Arc::new(dir.create("lent", name).unwrap()));
        let lift_limit = |name| drop(dir.open_block("lent", name).unwrap());
        let at = |name| (&dir, "lent", name);
        let [one, two] = [1, 2].map(BlockId);
        let mut watched = WatchedBlocks::new();
        assert!(watched.descriptor().is_some());
        assert!(watched.keep(one, first).is_none());
        assert!(watched.file(one).is_some() && watched.file(two).is_none());
        assert!(watched.watch(one, at("b1")), "from now on");
        assert!(!watched.watch(one, at("b1")), "it was before");
        assert!(!watched.watch(two, at("b2")), "there is nothing to look at it by");
        assert_eq!(watched.closed(), None);
        lift_limit("b2");
        assert_eq!(watched.closed(), None, "nobody watches it");
        assert!(watched.keep(two, Arc::clone(&second)).is_none());
        assert!(watched.keep(two, second).is_some(), "it has one");
        assert!(watched.watch(two, at("b2")));
        lift_limit("b2");
        assert_eq!(watched.closed(), Some(vec![two]));
        [two, one].into_iter().for_each(|block| drop(watched.forget(block)));
        lift_limit("b1");
        assert_eq!(watched.closed().unwrap_or_default(), []);
        assert!(watched.file(one).is_none());
    }

    #[test]
    fn blocks_with_a_description_are_bounded() {
        let place = tempfile::tempdir().unwrap();
        let dir = BlockDir::open(place.path(), &["lent"], 0o711).unwrap();
        let file = Arc::new(dir.create("lent", "b").unwrap());
        let mut watched = WatchedBlocks::new();
        (0..=MAX_WATCHED_BLOCKS as u64)
            .for_each(|id| drop(watched.keep(BlockId(id), Arc::clone(&file))));
        assert!(watched.file(BlockId(MAX_WATCHED_BLOCKS as u64 - 1)).is_some());
        assert!(watched.file(BlockId(MAX_WATCHED_BLOCKS as u64)).is_none());
    }

    // Promise P258.
    #[test]
    fn events_that_are_lost_have_every_block_looked_at() {
        let place = tempfile::tempdir().unwrap();
        let dir = BlockDir::open(place.path(), &["lent"], 0o711).unwrap();
        let file = Arc::new(dir.create("lent", "b").unwrap());
        let mut watched = WatchedBlocks::new();
        let all = [1, 2, 3].map(BlockId);
        all.into_iter().for_each(|block| drop(watched.keep(block, Arc::clone(&file))));
        assert_eq!(watched.apply(Ok(Some(vec![UnmapEvent::Unknown]))), Some(all.to_vec()));
        // Any error: they cannot be read.
        let error = dir.create("lent", "b").unwrap_err();
        assert_eq!(watched.apply(Err(error)), Some(all.to_vec()));
        assert_eq!(watched.apply(Ok(Some(vec![]))), None);
        assert_eq!(watched.apply(Ok(None)), None, "nothing is watched");
    }
}
