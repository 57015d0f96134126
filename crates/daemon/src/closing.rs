// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a mapping as an event, for loans that are held by their memory and for blocks that
//! linger.
//!
//! A block is watched by a description of the daemon's own, by which it is also looked at: opening
//! it for each look would be an event itself. So a watch costs a descriptor; beyond [`MOST`] blocks
//! are looked at by the clock, as are those that somebody pins, of which nothing tells.

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
    closings: Option<Closings>,
    blocks: BTreeMap<BlockId, (Option<Watch>, Arc<BlockFile>)>,
    by_watch: BTreeMap<Watch, BlockId>,
}

impl Watched {
    /// Without inotify everything is looked at by the clock.
    pub(crate) fn new() -> Self {
        let closings = Closings::new()
            .inspect_err(|error| tracing::warn!(%error, "returns are looked for by the clock"));
        Self { closings: closings.ok(), blocks: BTreeMap::new(), by_watch: BTreeMap::new() }
    }

    /// What becomes readable with each event.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        self.closings.as_ref()?.as_fd().try_clone_to_owned().ok()
    }

    /// The description by which a block is watched.
    pub(crate) fn file(&self, block: BlockId) -> Option<Arc<BlockFile>> {
        self.blocks.get(&block).map(|(_, file)| Arc::clone(file))
    }

    /// Watches a block from now on, by `file` or the description that is kept. Returns whether it
    /// does so only now: what ended before is told by a look, and by nothing else.
    pub(crate) fn watch(
        &mut self,
        block: BlockId,
        (dir, state, name): (&BlockDir, &str, &str),
        file: Option<Arc<BlockFile>>,
    ) -> bool {
        if let Some(file) = file {
            self.keep(block, file);
        }
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
    pub(crate) fn keep(&mut self, block: BlockId, file: Arc<BlockFile>) {
        if self.blocks.len() < MOST {
            self.blocks.entry(block).or_insert((None, file));
        }
    }

    /// Ends the watch, and closes the description.
    pub(crate) fn forget(&mut self, block: BlockId) {
        let Some((watch, file)) = self.blocks.remove(&block) else { return };
        if let (Some(watch), Some(closings)) = (watch, &self.closings) {
            self.by_watch.remove(&watch);
            closings.forget(watch);
        }
        drop(file);
    }

    /// The blocks of which a description went since the last call: all of them, if the kernel has
    /// lost count. `None` if nothing happened.
    pub(crate) fn closed(&mut self) -> Option<Vec<BlockId>> {
        let told = self.closings.as_ref().map(Closings::read).transpose();
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
        watched.keep(one, first);
        assert!(watched.file(one).is_some() && watched.file(two).is_none());
        assert!(watched.watch(one, at("b1"), None), "from now on");
        assert!(!watched.watch(one, at("b1"), None), "it was before");
        assert!(!watched.watch(two, at("b2"), None), "there is nothing to look at it by");
        assert_eq!(watched.closed(), None);
        let_go("b2");
        assert_eq!(watched.closed(), None, "nobody watches it");
        assert!(watched.watch(two, at("b2"), Some(second)));
        let_go("b2");
        assert_eq!(watched.closed(), Some(vec![two]));
        [two, one].into_iter().for_each(|block| watched.forget(block));
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
        (0..=MOST as u64).for_each(|id| watched.keep(BlockId(id), Arc::clone(&file)));
        assert!(watched.file(BlockId(MOST as u64 - 1)).is_some());
        assert!(watched.file(BlockId(MOST as u64)).is_none());
    }
}
