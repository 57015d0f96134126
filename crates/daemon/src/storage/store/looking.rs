// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who can reach a block: when a worker reports it, before it is lent, and after its loan.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use book::block::{Reach, StateName};
use linux::BlockFile;
use pins::Opened;
use tokio::sync::oneshot;
use units::{BlockId, Bytes, PageSize, Pages};

use super::{Place, Returned, Seen, Store, user_queue_of};
use crate::base::error::{Error, Result};
use crate::base::user_queues::{ClosedInQueue, UNLENT_NAMES, UserQueue, event};
use crate::storage::proof::Proofs;
use crate::storage::unmap_events::WatchedBlocks;

impl Store {
    /// Opens a block that is about to be lent, after a last proof that it is free. An open that was
    /// allowed before access was taken away may return only after the proof that followed.
    ///
    /// # Errors
    /// [`Error::Reached`].
    pub(crate) fn open_to_lend(&self, block: BlockId) -> Result<BlockFile> {
        let open = || self.try_open(block)?.ok_or(Error::Reached(block));
        let size = self.places.get(&block).ok_or(Error::NoFile(block))?.page_size;
        let (opened, file) = match self.tables.as_ref().and_then(|t| t.before_lending(block)) {
            // Page tables that are made in advance are of a description of their own: asked for
            // that, before there is another.
            Some(mapped) => (self.proofs.opened(&mapped, size), open()?),
            None => {
                let file = open()?;
                (self.proofs.opened(&file, size), file)
            }
        };
        if opened == Opened::Open || !file.is_private()? {
            return Err(Error::Reached(block));
        }
        Ok(file)
    }

    /// Looks up which processes can reach a block that a worker has reported, and the pages it has
    /// memory for. No process was given access to it since its last proof. Returns at once: a look
    /// takes 20 ms for 256 GiB of 2 MiB pages.
    pub(crate) fn look_at_report(&self, block: BlockId) -> Result<oneshot::Receiver<Seen>> {
        let (notify, reported) = oneshot::channel();
        let Some(file) = self.try_open(block)? else {
            drop(notify.send((Reach::Shared, Pages::ZERO)));
            return Ok(reported);
        };
        let size = self.places.get(&block).ok_or(Error::NoFile(block))?.page_size;
        let proofs = self.proofs.clone();
        self.user_queues.submit(None, move || {
            let look = || -> Result<Seen> {
                let reach = if file.is_private()? {
                    proofs.reach(block, &file, size)
                } else {
                    Reach::Shared
                };
                proofs.record_lent(block, &file, size);
                Ok((reach, Bytes(file.allocated_bytes()?).whole_pages(size)))
            };
            let report = look().unwrap_or_else(|error| {
                tracing::warn!(%error, %block, "cannot tell who holds a block");
                (Reach::Shared, Pages::ZERO)
            });
            drop(file);
            // The worker may be gone.
            drop(notify.send(report));
        });
        Ok(reported)
    }

    /// The blocks that are watched.
    pub(crate) fn watched(&self) -> &WatchedBlocks {
        &self.watched
    }

    /// The blocks with a description that went since the last call.
    pub(crate) fn closed(&mut self) -> Option<Vec<BlockId>> {
        self.watched.closed()
    }

    /// Has it told when a description of a lent or draining block goes, which the daemon has open
    /// by `file`, by its page tables, or since it was lent. Returns whether it was not told before:
    /// then a look is due.
    pub(crate) fn watch(&mut self, block: BlockId, file: Option<Arc<BlockFile>>) -> bool {
        let mapped = || self.tables.as_ref().and_then(|tables| tables.file_of(block));
        let is_there = self.places.contains_key(&block);
        if let Some(file) = file.or_else(mapped).filter(|_| is_there)
            && let Some(another) = self.watched.keep(block, file)
        {
            self.close(block, another);
        }
        let Some(place) = self.places.get(&block) else { return false };
        let Some(dir) = self.dirs.get(&place.page_size) else { return false };
        let (state, name) = (place.state.as_str(), place.name.as_str());
        self.watched.watch(block, (dir, state, name))
    }

    /// Closes a description of a block that a borrower has or had, in its user's queue: that is an
    /// event on the file, and its watcher decides how many waiters it wakes.
    pub(crate) fn close(&self, block: BlockId, file: Arc<BlockFile>) {
        let Some(last) = Arc::into_inner(file) else { return };
        self.user_queues.submit(self.user_queue(Some(block)), move || event(|| drop(last)));
    }

    /// Adds a task to the queue of the user that has or had a block.
    pub(crate) fn submit_for(&self, block: Option<BlockId>, task: impl FnOnce() + Send + 'static) {
        self.user_queues.submit(self.user_queue(block), task);
    }

    /// The queue of the user that has or had a block.
    fn user_queue(&self, block: Option<BlockId>) -> UserQueue {
        let place = block.and_then(|block| self.places.get(&block));
        place.map_or(UNLENT_NAMES, |at| user_queue_of(&at.name, at.page_size, at.state))
    }

    /// Has the daemon's copies of a loan's descriptors closed by its borrower's queue, before it
    /// looks at the returned block.
    pub(crate) fn close_sent(&self, block: Option<BlockId>, fds: Vec<OwnedFd>) -> ClosedInQueue {
        self.user_queues.closes(self.user_queue(block), fds)
    }

    /// Opens a block that is about to be lent, and held by its memory, for the daemon itself. At
    /// the time of a later look its borrower may have a lease on it: an `open` breaks that lease,
    /// and waits for readers of `/proc/locks`.
    pub(crate) fn open_to_watch(&mut self, block: BlockId) {
        if self.tables.as_ref().is_some_and(|tables| tables.file_of(block).is_some()) {
            return;
        }
        match self.open_block(block) {
            // What there is no room for is closed before its borrower has it.
            Ok(file) => drop(self.watched.keep(block, Arc::new(file))),
            Err(error) => tracing::debug!(%error, %block, "is looked at by the clock"),
        }
    }

    /// Ends that: the block is free, and others have proven it.
    pub(crate) fn unwatch(&mut self, block: BlockId) {
        if let Some(file) = self.watched.forget(block) {
            self.close(block, file);
        }
    }

    /// The one description of the daemon's by which a lent or draining block is looked at, if it
    /// has one.
    fn known(&self, block: BlockId) -> Option<Arc<BlockFile>> {
        let mapped = || self.tables.as_ref().and_then(|tables| tables.file_of(block));
        self.watched.file(block).or_else(mapped)
    }

    /// The users of a lent block, its page tables made in advance apart. `None` if the daemon has
    /// no description of it: to open one is for a user queue.
    pub(crate) fn holders_while_lent(&self, block: BlockId) -> Option<Opened> {
        let size = self.places.get(&block)?.page_size;
        Some(self.proofs.opened(&*self.known(block)?, size))
    }

    /// Has the user's queue open blocks of a loan, and find out whether another process has one of
    /// them open. The answer names the first block. Does not wait; no-op while a look is under way.
    pub(crate) fn look_at_lent(&mut self, blocks: &[BlockId]) {
        let Some(first) = blocks.first().copied() else { return };
        let Some(Place { page_size: size, state, name }) = self.places.get(&first).cloned() else {
            return;
        };
        let Some(dir) = self.dirs.get(&size).map(Arc::clone) else { return };
        if !self.looked_at.insert(first) {
            return;
        }
        let places = blocks.iter().filter_map(|block| self.places.get(block));
        let places: Vec<_> = places.map(|at| (at.state, at.name.clone())).collect();
        let (returned, proofs) = (self.returned.clone(), self.proofs.clone());
        self.user_queues.submit(user_queue_of(&name, size, state), move || {
            let is_open =
                |(state, name): &(StateName, String)| match dir.open_block(state.as_str(), name) {
                    Ok(file) => proofs.opened(&file, size) == Opened::Open,
                    Err(error) => error.is_in_use(),
                };
            let reach = if places.iter().any(is_open) { Reach::Shared } else { Reach::Sole };
            let found = Returned { block: first, reach, memory: Pages::ZERO, file: None };
            // The daemon may have ended.
            returned.send(found).ok();
        });
    }

    /// Looks, beside all else, which ready blocks have a page with a memory error, and reports it
    /// as of returned blocks. By their names: they may be lent meanwhile.
    pub(crate) fn check_memory_errors(&self) {
        let ready = self.places.iter().filter(|(_, place)| place.state == StateName::Ready);
        let ready: Vec<_> = ready.map(|(block, place)| (*block, place.clone())).collect();
        let (dirs, returned, proofs) =
            (self.dirs.clone(), self.returned.clone(), self.proofs.clone());
        self.user_queues.submit(None, move || {
            for (block, Place { page_size: size, state, name }) in ready {
                let Some(dir) = dirs.get(&size) else { continue };
                let Ok(file) = dir.name_block(state.as_str(), &name) else { continue };
                if proofs.broken(file.as_fd(), size) > 0 {
                    let (reach, memory) = (Reach::Poisoned, Pages::ZERO);
                    // The daemon may have ended.
                    returned.send(Returned { block, reach, memory, file: None }).ok();
                }
            }
        });
    }

    /// Notes, in its user's queue, which pages a block has that was filled for its borrower, or
    /// that an earlier daemon has lent. No-op where pins are not seen.
    pub(crate) fn record_filled(&self, block: BlockId) {
        let Some(Place { page_size: size, state, name }) = self.places.get(&block).cloned() else {
            return;
        };
        if !self.proofs.sizes().contains(&size) {
            return;
        }
        let Some(dir) = self.dirs.get(&size).map(Arc::clone) else { return };
        let proofs = self.proofs.clone();
        self.user_queues.submit(user_queue_of(&name, size, state), move || {
            if let Ok(file) = dir.open_block(state.as_str(), &name) {
                proofs.record_lent(block, &file, size);
            }
        });
    }

    /// Has its user's queue take access to a returned block away, and then find out who still
    /// reaches it. Does not wait; no-op while that is being done.
    ///
    /// Access by others goes first: a descriptor opened with `O_PATH` is invisible to the lease
    /// proof and could be opened for real later.
    pub(crate) fn look_at(&mut self, block: BlockId, lent: Pages) -> Result<()> {
        if self.looked_at.contains(&block) {
            return Ok(());
        }
        let Some(Place { page_size: size, state, name }) = self.places.get(&block).cloned() else {
            return Ok(());
        };
        let known = self.known(block);
        let (dir, returned, proofs) =
            (Arc::clone(self.dir(size)?), self.returned.clone(), self.proofs.clone());
        self.looked_at.insert(block);
        self.user_queues.submit(user_queue_of(&name, size, state), move || {
            // Not before: an `open` of a file on which its borrower has a lease may wait.
            let open = || dir.open_block(state.as_str(), &name).map(Arc::new);
            let look = |file: &Arc<BlockFile>| reach_after_loan((block, file), &proofs, size, lent);
            let looked = known.map_or_else(open, Ok).map_err(Error::from);
            let looked = looked.and_then(|file| look(&file).map(|found| (found, file)));
            let ((reach, memory), file) = match looked {
                Ok((found, file)) => (found, Some(file)),
                Err(error) => {
                    if !matches!(&error, Error::Kernel(error) if error.is_in_use()) {
                        tracing::warn!(%error, %block, "cannot tell who holds a block");
                    }
                    ((Reach::Shared, Pages::ZERO), None)
                }
            };
            // Else closed before the answer is used: a proof made meanwhile would see it.
            let file = file.filter(|_| matches!(reach, Reach::Shared | Reach::Mapped));
            // The daemon may have ended.
            returned.send(Returned { block, reach, memory, file }).ok();
        });
        Ok(())
    }

    /// A user queue is done with a block.
    pub(crate) fn looked(&mut self, block: BlockId) {
        self.looked_at.remove(&block);
    }

    /// `None` while a process has a lease on the file or runs it, and so has it open, too.
    fn try_open(&self, block: BlockId) -> Result<Option<BlockFile>> {
        match self.open_block(block) {
            Ok(file) => Ok(Some(file)),
            Err(Error::Kernel(error)) if error.is_in_use() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The processes that reach a returned file after access has ended, and then the pages that it has
/// memory for: where that is [`Reach::Sole`], nothing can change any more.
///
/// The file is also cut at its length. That frees pages behind the end, and promises of pages
/// there, which a mapping makes and no count shows.
fn reach_after_loan(
    (block, file): (BlockId, &BlockFile),
    proofs: &Proofs,
    size: PageSize,
    lent: Pages,
) -> Result<(Reach, Pages)> {
    event(|| file.take_access())?;
    let reach = proofs.reach(block, file, size);
    // After the proof: before it, its borrower may still cut the file.
    let length = file.len()?;
    match reach {
        Reach::Altered => file.set_len(0)?,
        Reach::Nobody(_) | Reach::Sole => file.set_len(length)?,
        _ => {}
    }
    let memory = Bytes(file.allocated_bytes()?).whole_pages(size);
    Ok((reach, if length == lent.bytes(size).0 { memory } else { Pages::ZERO }))
}
