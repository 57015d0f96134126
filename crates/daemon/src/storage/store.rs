// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The block files: makes the file system agree with the book.
//!
//! No call of the daemon's thread waits for a borrower: calls that take a file's inode lock are
//! made in a user queue ([`crate::base::user_queues`]) for every file that a borrower has had and
//! may have still.
//!
//! One directory of block files per page size, each a private hugetlbfs mount (or a tmpfs directory
//! in plain mode), with a subdirectory per state. The places are remembered here, so that an effect
//! only says which block changed.

mod looking;
mod start;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use book::block::{Reach, StateName};
use book::journal;
use book::{Book, Effect};
use linux::holders::Identity;
use linux::{BlockDir, BlockFile, Exclusivity, HugetlbMount, exclusive, mount};
use tokio::sync::mpsc;
use units::{BlockId, Bytes, PageSize, Pages, Uid};

use crate::base::error::{Error, Result};
use crate::base::user_queues::{UserQueue, UserQueues, event};
use crate::storage::leases::Leases;
use crate::storage::proof::Proofs;
use crate::storage::tables::{Making, Slot, Tables};
use crate::storage::unmap_events::WatchedBlocks;

/// Where a block's file is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    page_size: PageSize,
    state: StateName,
    name: String,
}

/// Forgotten blocks with pages that the kernel has yet to get.
const GONE: &str = "gone";

/// What happens to processes that still have a removed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Users {
    /// Its pages are taken away, so that nothing outlives the name except pages that the kernel
    /// itself pins.
    LoseIt,
    /// The kernel frees its pages with the last user, which is unknown, and a loan lasts as long as
    /// a mapping of it.
    KeepIt,
}

/// How long the end waits for files that their borrowers hold up.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// What a user queue found out about a block that was returned.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) block: BlockId,
    pub(crate) reach: Reach,
    /// The pages it has memory for; none if its length differs from the lent one.
    pub(crate) memory: Pages,
    /// The description by which it was looked at, if it is shared.
    pub(crate) file: Option<Arc<BlockFile>>,
}

/// Who can reach a block that a worker has reported, and the pages that it has memory for.
pub(crate) type Seen = (Reach, Pages);

/// Called, on another thread, whenever pages of a removed file became free.
type Freed = Arc<dyn Fn() + Send + Sync>;

/// The files. See the module's documentation.
pub(crate) struct Store {
    run_dir: PathBuf,
    plain: bool,
    dirs: BTreeMap<PageSize, Arc<BlockDir>>,
    mounts: Vec<HugetlbMount>,
    /// The mounts that the start has made; `None` once the daemon serves.
    of_start: Option<Vec<HugetlbMount>>,
    places: BTreeMap<BlockId, Place>,
    /// Unneeded files that could not be removed yet: tried again until they are.
    unremoved: BTreeMap<BlockId, Users>,
    tables: Option<Tables>,
    proofs: Proofs,
    user_queues: UserQueues,
    /// Returned blocks that a user queue looks at.
    looked_at: BTreeSet<BlockId>,
    watched: WatchedBlocks,
    returned: mpsc::UnboundedSender<Returned>,
    freed: Freed,
    has_freed: Arc<AtomicBool>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("dirs", &self.dirs).finish_non_exhaustive()
    }
}

fn states() -> Vec<&'static str> {
    StateName::ALL.iter().map(|s| s.as_str()).chain([GONE]).collect()
}

/// A page size's directory below the run directory, and its name where descriptors have names.
pub(crate) fn directory_name(page_size: PageSize) -> String {
    format!("pages-{}kB", page_size.kib())
}

impl Store {
    /// No directories yet. `freed` is called, on another thread, whenever pages of a removed file
    /// became free; `returned` gets what becomes of [`look_at`](Self::look_at).
    pub(crate) fn open(
        run_dir: &Path,
        plain: bool,
        share_tables: bool,
        freed: impl Fn() + Send + Sync + 'static,
        returned: mpsc::UnboundedSender<Returned>,
    ) -> Result<Self> {
        let watched = WatchedBlocks::new();
        let proofs = if plain { Proofs::leases_only() } else { Proofs::load(watched.watcher()) };
        Ok(Self {
            run_dir: run_dir.to_owned(),
            plain,
            dirs: BTreeMap::new(),
            mounts: Vec::new(),
            of_start: Some(Vec::new()),
            places: BTreeMap::new(),
            unremoved: BTreeMap::new(),
            tables: if share_tables && !plain { Some(Tables::start()?) } else { None },
            proofs,
            user_queues: UserQueues::new(),
            looked_at: BTreeSet::new(),
            watched,
            returned,
            freed: Arc::new(freed),
            has_freed: Arc::default(),
        })
    }

    /// Opens, and where needed mounts, the directory of a page size, unless it is open. `stored` is
    /// its root as a service manager has kept it.
    ///
    /// # Errors
    /// Those of mounting; nothing is changed then.
    pub(crate) fn add(&mut self, page_size: PageSize, stored: Option<OwnedFd>) -> Result<()> {
        if self.has(page_size) {
            return Ok(());
        }
        let name = directory_name(page_size);
        let path = self.run_dir.join(&name);
        if self.plain {
            crate::base::files::make_dir(&path)?;
        } else {
            // A mount that an earlier daemon left is taken over, files and all.
            let mounted = path.exists() && mount::is_hugetlbfs(&path)? == Some(page_size);
            if let Some(root) = stored.filter(|root| !mounted && is_of(root, page_size)) {
                tracing::info!(%name, "goes on with the mount of another mount namespace");
                let dir = BlockDir::open_root(root, &path, &states(), 0o700)?;
                self.proofs.measure(&self.run_dir, &dir, GONE, page_size);
                self.dirs.insert(page_size, Arc::new(dir));
                return Ok(());
            }
            self.mounts.push(if mounted {
                HugetlbMount { dir: path.clone(), page: page_size }
            } else {
                let made = mount::mount(&path, page_size)?;
                self.of_start.iter_mut().for_each(|mounts| mounts.push(made.clone()));
                made
            });
        }
        let dir = BlockDir::open(&path, &states(), 0o700)?;
        self.proofs.measure(&self.run_dir, &dir, GONE, page_size);
        self.dirs.insert(page_size, Arc::new(dir));
        Ok(())
    }

    /// The daemon serves: from now on its mounts outlive it.
    pub(crate) fn keep_mounts(&mut self) {
        self.of_start = None;
    }

    /// The roots of all its hugetlbfs, for a service manager to keep.
    pub(crate) fn roots(&self) -> impl Iterator<Item = (PageSize, BorrowedFd<'_>)> {
        let huge = self.dirs.iter().filter(|_| !self.plain);
        huge.map(|(page_size, dir)| (*page_size, dir.root()))
    }

    /// Adds missing directories of leases, beside the blocks.
    pub(crate) fn add_leases(&self, leases: &mut Leases) -> Result<()> {
        self.dirs.iter().try_for_each(|(size, dir)| leases.add(*size, dir.root(), dir.path()))
    }

    /// What it is that shows who can reach a block.
    pub(crate) fn proofs(&self) -> &Proofs {
        &self.proofs
    }

    /// Retries failed measures, aside.
    pub(crate) fn measure_again(&self, sizes: impl Iterator<Item = PageSize>) {
        for size in sizes.filter(|size| self.proofs.is_due(*size)) {
            let Some(dir) = self.dirs.get(&size).map(Arc::clone) else { continue };
            let (proofs, run_dir) = (self.proofs.clone(), self.run_dir.clone());
            self.user_queues.submit(None, move || proofs.measure(&run_dir, &dir, GONE, size));
        }
    }

    /// What to wait for until a block's page tables are made.
    pub(crate) fn tables_in_progress(&self, block: BlockId) -> Option<Making> {
        self.tables.as_ref().map(|tables| tables.making(block))
    }

    /// Returned blocks and pages on their way to the kernel.
    pub(crate) fn user_queues(&self) -> &UserQueues {
        &self.user_queues
    }

    /// Whether pages became free since this was asked last.
    pub(crate) fn has_freed(&self) -> bool {
        self.has_freed.swap(false, Ordering::Acquire)
    }

    /// Whether this kernel proves that a file is free, tried on a file of no pages.
    pub(crate) fn can_prove(&self) -> Result<bool> {
        for dir in self.dirs.values() {
            let name = "probe";
            // Left by a daemon that was killed right here.
            if dir.list(StateName::Zeroable.as_str())?.iter().any(|n| n == name) {
                dir.unlink(StateName::Zeroable.as_str(), name)?;
            }
            let file = dir.create(StateName::Zeroable.as_str(), name)?;
            let proof = exclusive::prove(&file);
            dir.unlink(StateName::Zeroable.as_str(), name)?;
            if proof? == Exclusivity::Unsupported {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives the pages of a block to the kernel that has been moved to [`GONE`].
    fn free(
        &self,
        page_size: PageSize,
        dir: &Arc<BlockDir>,
        name: String,
        open: (Option<Slot>, Option<Arc<BlockFile>>),
        users: Users,
    ) {
        let user_queue = user_queue_of(&name, page_size, StateName::Draining);
        let dir = Arc::clone(dir);
        let (freed, flag) = (Arc::clone(&self.freed), Arc::clone(&self.has_freed));
        self.user_queues.submit(user_queue, move || {
            event(|| drop(open));
            if users == Users::LoseIt {
                let emptied = dir.open_block(GONE, &name).and_then(|file| file.set_len(0));
                if let Err(error) = emptied {
                    tracing::warn!(%error, "pages are free only when their last user is gone");
                }
            }
            event(|| {
                if let Err(error) = dir.unlink(GONE, &name) {
                    tracing::error!(%error, "a file stays until the next start");
                }
                flag.store(true, Ordering::Release);
                freed();
            });
        });
    }

    fn dir(&self, page_size: PageSize) -> Result<&Arc<BlockDir>> {
        self.dirs.get(&page_size).ok_or_else(|| Error::NoSuchPages {
            page: page_size,
            known: self.dirs.keys().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        })
    }

    /// Whether it has a directory for pages of that size.
    pub(crate) fn has(&self, page_size: PageSize) -> bool {
        self.dirs.contains_key(&page_size)
    }

    /// Carries one effect out.
    ///
    /// A file that was just made is returned open: it needs no second description.
    pub(crate) fn carry_out(&mut self, book: &Book, effect: &Effect) -> Result<Option<BlockFile>> {
        match effect {
            Effect::Create { block, pages, .. } => {
                let Some((state, name)) = book.place(*block) else { return Ok(None) };
                let Some(key) = book.block(*block).map(book::block::Block::pool) else {
                    return Ok(None);
                };
                // Known before it is there: what fails in the midst of making it is removed by
                // name.
                let place = Place { page_size: key.page_size, state, name: name.clone() };
                self.places.insert(*block, place);
                let file = self.dir(key.page_size)?.create(state.as_str(), &name)?;
                file.set_len(pages.bytes(key.page_size).0)?;
                Ok(Some(file))
            }
            Effect::Move(block) | Effect::Mark(block) => {
                let Some((state, name)) = book.place(*block) else { return Ok(None) };
                let slot = self.unneeded_tables(*block, state);
                let Some(place) = self.places.get(block) else { return Ok(None) };
                if (place.state, &place.name) != (state, &name) {
                    let dir = self.dir(place.page_size)?;
                    dir.rename(&place.name, place.state.as_str(), &name, state.as_str())?;
                    let (page_size, user_queue) =
                        (place.page_size, user_queue_of(&name, place.page_size, state));
                    self.places.insert(*block, Place { page_size, state, name });
                    if let Some(slot) = slot {
                        // Unmapping waits for locks that its borrower may hold.
                        self.user_queues.submit(user_queue, move || drop(slot));
                    }
                }
                self.make_tables(book, *block, state);
                Ok(None)
            }
            Effect::Resize { block, pages } => {
                let Some(place) = self.places.get(block) else { return Ok(None) };
                let (file, bytes) = (self.open_block(*block)?, pages.bytes(place.page_size).0);
                // Also where that is its length: pages, and promises of some, may lie behind it.
                file.set_len(bytes)?;
                Ok(None)
            }
            Effect::Remove(block) => self.remove(*block, Users::LoseIt).map(|()| None),
            Effect::Unlink(block) => self.remove(*block, Users::KeepIt).map(|()| None),
        }
    }

    /// Removes a file. One that cannot be removed now keeps its place, and is tried again.
    fn remove(&mut self, block: BlockId, users: Users) -> Result<()> {
        let Some(place) = self.places.get(&block).cloned() else { return Ok(()) };
        let dir = Arc::clone(self.dir(place.page_size)?);
        // A name that says its user, and that no other block ever has.
        match dir.rename(&place.name, place.state.as_str(), &place.name, GONE) {
            Ok(()) => {
                let slot = self.tables.as_ref().and_then(|tables| tables.take(block));
                let file = self.watched.forget(block);
                self.free(place.page_size, &dir, place.name, (slot, file), users);
            }
            // It was missing from the start.
            Err(error) if error.errno() == Some(linux::Errno::NOENT) => {}
            Err(error) => {
                self.unremoved.insert(block, users);
                return Err(error.into());
            }
        }
        self.unremoved.remove(&block);
        self.unwatch(block);
        self.proofs.forget(block);
        self.places.remove(&block);
        self.looked_at.remove(&block);
        Ok(())
    }

    /// Tries again to remove files, at most `most`. Returns whether one was removed.
    pub(crate) fn remove_again(&mut self, most: usize) -> bool {
        let blocks: Vec<_> =
            self.unremoved.iter().map(|(block, users)| (*block, *users)).take(most).collect();
        blocks.into_iter().filter(|(block, users)| self.remove(*block, *users).is_ok()).count() > 0
    }

    /// Only ready and lent blocks may be mapped here: the lease proof must not see others mapped.
    fn unneeded_tables(&self, block: BlockId, state: StateName) -> Option<Slot> {
        let is_over = !matches!(state, StateName::Ready | StateName::Lent);
        self.tables.as_ref().filter(|_| is_over).and_then(|tables| tables.take(block))
    }

    fn make_tables(&self, book: &Book, block: BlockId, state: StateName) {
        let (Some(tables), Some(known)) = (&self.tables, book.block(block)) else { return };
        if state != StateName::Ready || !Tables::can_share_tables(known) {
            return;
        }
        match self.open_block(block) {
            Ok(file) => tables.keep(known, file),
            Err(error) => tracing::debug!(%error, %block, "no page tables in advance"),
        }
    }

    /// Opens a block's file: a description of its own.
    pub(crate) fn open_block(&self, block: BlockId) -> Result<BlockFile> {
        let place = self.places.get(&block).ok_or(Error::NoFile(block))?;
        Ok(self.dir(place.page_size)?.open_block(place.state.as_str(), &place.name)?)
    }

    /// Pages of a block that have memory.
    pub(crate) fn allocated(&self, block: BlockId, page_size: PageSize) -> Result<Pages> {
        let place = self.places.get(&block).ok_or(Error::NoFile(block))?;
        let bytes =
            self.dir(place.page_size)?.allocated_bytes(place.state.as_str(), &place.name)?;
        Ok(Bytes(bytes).whole_pages(page_size))
    }

    /// What shows in `/proc` that a file is this block's. Opens nothing.
    pub(crate) fn identity(&self, block: BlockId) -> Result<Identity> {
        let place = self.places.get(&block).ok_or(Error::NoFile(block))?;
        Ok(self.dir(place.page_size)?.identity(place.state.as_str(), &place.name)?)
    }

    /// The path of a block's file.
    pub(crate) fn path_of(&self, block: BlockId) -> Option<PathBuf> {
        let place = self.places.get(&block)?;
        let dir = self.dirs.get(&place.page_size)?;
        Some(dir.file_path(place.state.as_str(), &place.name))
    }

    /// Removes every file and mount: the kernel has its pages back.
    ///
    /// Memory that a process still maps stays its own until it lets go; the kernel frees it then.
    pub(crate) fn clean_up(&mut self) -> Result<()> {
        self.tables = None;
        for (page_size, dir) in self.dirs.clone() {
            for state in StateName::ALL {
                for name in dir.list(state.as_str())? {
                    dir.rename(&name, state.as_str(), &name, GONE)?;
                    self.free(page_size, &dir, name, (None, None), Users::LoseIt);
                }
            }
        }
        // What a borrower holds up goes with its file, which has no path any more.
        let end = Instant::now() + SHUTDOWN_TIMEOUT;
        while *self.user_queues.ours().borrow() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.user_queues.wait(end.saturating_duration_since(Instant::now()));
        self.places.clear();
        self.dirs.clear();
        for mounted in self.mounts.drain(..) {
            mounted.detach()?;
        }
        Ok(())
    }
}

impl Drop for Store {
    /// After a failed start: what it has mounted has no file that anything needs.
    fn drop(&mut self) {
        for made in self.of_start.take().into_iter().flatten() {
            if let Err(error) = made.detach() {
                tracing::warn!(%error, "a mount of the failed start stays");
            }
        }
    }
}

fn is_of(root: &OwnedFd, page: PageSize) -> bool {
    matches!(mount::is_on_hugetlbfs(root), Ok(Some(found)) if found == page)
}

/// The user queue of the user that has or had the block.
fn user_queue_of(name: &str, page_size: PageSize, state: StateName) -> UserQueue {
    if matches!(state, StateName::Ready | StateName::Zeroable | StateName::Zeroing) {
        return None;
    }
    let part = journal::parse(name, page_size).and_then(|entry| entry.part)?;
    // All of an agent's loans are on its account: those whom it serves must not hold up each other.
    Some(part.scope().map_or(part.account, scope_queue))
}

/// A number of a scope in place of an account's, above the numbers of users. The key is this
/// process's: a tenant that chooses its scope's text cannot choose the user queue that it shares.
fn scope_queue(scope: &str) -> Uid {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    Uid((1 << 31) | (KEY.hash_one(scope) & 0x3fff_ffff) as u32)
}
