// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page tables that are ready as well as the pages are.
//!
//! A client that maps 2 MiB pages takes a fault for each: 0.4 to 0.8 us, 1.5 ms for 4 GiB on a Zen
//! 4 of 2.6 GHz, which is more than all the rest of a loan. But the kernel lets the mappings of one
//! hugetlbfs file share their page tables (x86-64, arm64 and riscv: `huge_pmd_share()`), for every
//! whole GiB that each maps at a GiB's boundary with the same rights. So the daemon keeps each
//! ready and lent block of at least 1 GiB mapped, filled in, on a thread of its own. A client that
//! maps as [`linux::Mapping`] does then takes one fault per GiB: 0.04 ms for the same 4 GiB.
//!
//! The mapping must be gone before the lease proof, which would see it: it is kept while the
//! block is ready or lent, and no longer. It costs 4 KiB and 0.25 ms per GiB, and no memory else:
//! only whole files are mapped, so that nothing is allocated. Where the kernel does not share
//! (other flags, other alignment, other architecture) clients fault as without it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use book::block::Block;
use linux::{BlockFile, Mapping, numa};
use tokio::sync::watch;
use units::{BlockId, Node, PageSize};

use crate::base::error::{Error, Result};

/// The range of a table of the level above 2 MiB pages: the unit of sharing.
const TABLE_BYTES: usize = 1 << 30;

/// A block to map.
struct ToMap {
    block: BlockId,
    file: Arc<BlockFile>,
    bytes: u64,
    page: PageSize,
    node: Node,
}

/// A block that is mapped, or queued for it: `mapping` is `None` while the thread has yet to do it.
#[derive(Debug)]
pub(crate) struct Slot {
    mapping: Option<Mapping>,
    /// The one description by which the daemon has the block open.
    file: Arc<BlockFile>,
}

type Wanted = BTreeMap<BlockId, Slot>;

/// The thread, and what it has mapped.
#[derive(Debug)]
pub(crate) struct Tables {
    queue: Option<mpsc::Sender<ToMap>>,
    wanted: Arc<Mutex<Wanted>>,
    /// Wakes after every block.
    made: watch::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

/// The page tables of one block, on their way.
#[derive(Debug)]
pub(crate) struct Making {
    block: BlockId,
    wanted: Arc<Mutex<Wanted>>,
    made: watch::Receiver<()>,
}

impl Making {
    /// Waits until they are made, or unwanted.
    pub(crate) async fn end(mut self) {
        let ended =
            |(): &()| lock(&self.wanted).get(&self.block).is_none_or(|slot| slot.mapping.is_some());
        // An error is the thread's end, after which nothing is made.
        drop(self.made.wait_for(ended).await);
    }
}

impl Tables {
    pub(crate) fn start() -> Result<Self> {
        let (queue, incoming) = mpsc::channel::<ToMap>();
        let wanted = Arc::<Mutex<Wanted>>::default();
        let made = watch::Sender::new(());
        let (shared, notify) = (Arc::clone(&wanted), made.clone());
        let body = move || {
            for order in incoming {
                let filled = fill(&order, &shared);
                let mut wanted = lock(&shared);
                match filled {
                    Ok(mapping) => {
                        if let Some(slot) = wanted.get_mut(&order.block) {
                            slot.mapping = mapping;
                        }
                    }
                    // The client's own faults do it then.
                    Err(error) => {
                        tracing::debug!(%error, block = %order.block, "no page tables in advance");
                    }
                }
                if wanted.get(&order.block).is_some_and(|slot| slot.mapping.is_none()) {
                    wanted.remove(&order.block);
                }
                drop(wanted);
                // It may be lent by now, and to close it wakes the waiters for its events.
                drop(order);
                notify.send_replace(());
            }
        };
        let thread = std::thread::Builder::new()
            .name("tables".to_owned())
            .spawn(body)
            .map_err(|source| Error::Runtime { what: "cannot start a thread", source })?;
        Ok(Self { queue: Some(queue), wanted, made, thread: Some(thread) })
    }

    /// Whether sharing can gain anything for this block.
    pub(crate) fn can_share_tables(block: &Block) -> bool {
        let pool = block.pool();
        let bytes = block.pages().bytes(pool.page_size).0;
        pool.page_size.bytes() < TABLE_BYTES as u64 && bytes >= TABLE_BYTES as u64
    }

    /// Has the page tables of a ready block made. Does not wait.
    pub(crate) fn keep(&self, block: &Block, file: BlockFile) {
        let (pool, file) = (block.pool(), Arc::new(file));
        let slot = Slot { mapping: None, file: Arc::clone(&file) };
        let order = ToMap {
            block: block.id(),
            file,
            bytes: block.pages().bytes(pool.page_size).0,
            page: pool.page_size,
            node: pool.node,
        };
        lock(&self.wanted).insert(order.block, slot);
        // The thread ends only with this value.
        drop(self.queue.as_ref().map(|queue| queue.send(order)));
    }

    /// What to wait for until a block's page tables are made.
    pub(crate) fn making(&self, block: BlockId) -> Making {
        Making { block, wanted: Arc::clone(&self.wanted), made: self.made.subscribe() }
    }

    /// The description by which a block that is about to be lent is mapped. A queued mapping is
    /// given up: with its borrower's locks in the way, the thread, and its waiters, would wait for
    /// that borrower.
    pub(crate) fn before_lending(&self, block: BlockId) -> Option<Arc<BlockFile>> {
        let mut wanted = lock(&self.wanted);
        let slot = wanted.get(&block)?;
        let (file, is_made) = (Arc::clone(&slot.file), slot.mapping.is_some());
        if !is_made {
            wanted.remove(&block);
        }
        Some(file)
    }

    /// The description by which a block is mapped, or queued for it.
    pub(crate) fn file_of(&self, block: BlockId) -> Option<Arc<BlockFile>> {
        lock(&self.wanted).get(&block).map(|slot| Arc::clone(&slot.file))
    }

    /// The mapping of a block, which dropping it unmaps. A mapping that the thread has just begun
    /// is dropped within 0.3 ms.
    pub(crate) fn take(&self, block: BlockId) -> Option<Slot> {
        lock(&self.wanted).remove(&block)
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        drop(self.queue.take());
        lock(&self.wanted).clear();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that makes page tables panicked");
        }
    }
}

fn lock(wanted: &Mutex<Wanted>) -> MutexGuard<'_, Wanted> {
    // Every change is one call of the map: a panic elsewhere leaves it whole.
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `None` if it is unwanted by now, or the file is incomplete.
fn fill(order: &ToMap, wanted: &Mutex<Wanted>) -> linux::Result<Option<Mapping>> {
    let is_wanted = || lock(wanted).contains_key(&order.block);
    if order.file.allocated_bytes()? != order.bytes {
        return Ok(None);
    }
    // The tables lie where the pages do, as they would if the client had made them there.
    numa::bind_thread_to(order.node).or_else(|_| numa::reset_policy())?;
    let mapping = {
        // `mmap` waits for the file's inode lock, with this process's own lock on its mappings
        // held. So it is called while the file is free, and the file stays unlent meanwhile.
        let wanted = lock(wanted);
        if !wanted.contains_key(&order.block) {
            return Ok(None);
        }
        Mapping::map(&order.file, order.bytes, order.page)?
    };
    let mut done = 0;
    while done < mapping.len() {
        if !is_wanted() {
            return Ok(None);
        }
        let end = mapping.len().min(done + TABLE_BYTES);
        mapping.populate_range(done..end)?;
        done = end;
    }
    Ok(Some(mapping))
}
