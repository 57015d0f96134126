// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The block files: makes the file system agree with the book.
//!
//! One directory of block files per page size, each a private hugetlbfs mount (or a tmpfs
//! directory in plain mode), with a subdirectory per state. What is where is remembered here, so
//! that an effect only says which block changed.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use book::block::{Reach, StateName};
use book::journal;
use book::{Book, Effect, Found};
use linux::{BlockDir, BlockFile, Exclusivity, HugetlbMount, exclusive, mount};
use units::{BlockId, Bytes, PageSize, Pages};

use crate::error::{Error, Result};
use crate::freeing::Freeing;
use crate::leases::Leases;
use crate::tables::{Making, Tables};

/// Where a block's file is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    page_size: PageSize,
    state: StateName,
    name: String,
}

/// The files. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Store {
    run_dir: PathBuf,
    plain: bool,
    dirs: BTreeMap<PageSize, BlockDir>,
    mounts: Vec<HugetlbMount>,
    places: BTreeMap<BlockId, Place>,
    tables: Option<Tables>,
    freeing: Freeing,
}

fn states() -> Vec<&'static str> {
    StateName::ALL.iter().map(|s| s.as_str()).collect()
}

/// A page size's directory below the run directory, and its name where descriptors have names.
pub(crate) fn directory_name(page_size: PageSize) -> String {
    format!("pages-{}kB", page_size.kib())
}

impl Store {
    /// No directories yet. `freed` is called, on another thread, whenever pages of a removed file
    /// became free.
    pub(crate) fn open(
        run_dir: &Path,
        plain: bool,
        share_tables: bool,
        freed: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        Ok(Self {
            run_dir: run_dir.to_owned(),
            plain,
            dirs: BTreeMap::new(),
            mounts: Vec::new(),
            places: BTreeMap::new(),
            tables: if share_tables && !plain { Some(Tables::start()?) } else { None },
            freeing: Freeing::start(freed)?,
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
            crate::files::make_dir(&path)?;
        } else {
            // A mount that an earlier daemon left is taken over, files and all.
            let mounted = path.exists() && mount::is_hugetlbfs(&path)? == Some(page_size);
            if let Some(root) = stored.filter(|root| !mounted && is_of(root, page_size)) {
                tracing::info!(%name, "goes on with the mount of another mount namespace");
                let dir = BlockDir::open_root(root, &path, &states(), 0o700)?;
                self.dirs.insert(page_size, dir);
                return Ok(());
            }
            self.mounts.push(if mounted {
                HugetlbMount { dir: path.clone(), page: page_size }
            } else {
                mount::mount(&path, page_size)?
            });
        }
        self.dirs.insert(page_size, BlockDir::open(&path, &states(), 0o700)?);
        Ok(())
    }

    /// The roots of all its hugetlbfs, for a service manager to keep.
    pub(crate) fn roots(&self) -> impl Iterator<Item = (PageSize, BorrowedFd<'_>)> {
        let huge = self.dirs.iter().filter(|_| !self.plain);
        huge.map(|(page_size, dir)| (*page_size, dir.root()))
    }

    /// Adds the leases' directories, beside the blocks, that are not there yet.
    pub(crate) fn add_leases(&self, leases: &mut Leases) -> Result<()> {
        self.dirs.iter().try_for_each(|(size, dir)| leases.add(*size, dir.root(), dir.path()))
    }

    /// What to wait for until a block's page tables are made.
    pub(crate) fn making_tables(&self, block: BlockId) -> Option<Making> {
        self.tables.as_ref().map(|tables| tables.making(block))
    }

    /// Pages on their way to the kernel.
    pub(crate) fn freeing(&self) -> &Freeing {
        &self.freeing
    }

    /// Whether this kernel proves that a file is held by nobody, tried on a file of no pages.
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

    /// Every file there is. Names that are nobody's are removed: only a daemon writes here.
    pub(crate) fn scan(&mut self, lease_alive: &dyn Fn(u64) -> bool) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        for (page_size, dir) in &self.dirs {
            for state in StateName::ALL {
                for name in dir.list(state.as_str())? {
                    let Some(entry) = journal::parse(&name, *page_size) else {
                        tracing::warn!(%name, %state, "a file that no daemon made is removed");
                        dir.unlink(state.as_str(), &name)?;
                        continue;
                    };
                    let file = match dir.open_block(state.as_str(), &name) {
                        Ok(file) => Some(file),
                        Err(error) if error.is_leased() => None,
                        Err(error) => return Err(error.into()),
                    };
                    let (reach, bytes) = match &file {
                        Some(file) if state == StateName::Lent => {
                            (Reach::Shared, file.allocated_bytes()?)
                        }
                        Some(file) => reach_without_access(file)?,
                        // As lent or lingering as it looks; asked again when it settles.
                        None => (Reach::Shared, 0),
                    };
                    found.push(Found {
                        state,
                        allocated: Bytes(bytes).whole_pages(*page_size),
                        reach,
                        lease_alive: entry.part.as_ref().is_some_and(|p| lease_alive(p.lease.0)),
                        entry: entry.clone(),
                    });
                    let place = Place { page_size: *page_size, state, name };
                    self.places.insert(entry.block, place);
                }
            }
        }
        Ok(found)
    }

    fn dir(&self, page_size: PageSize) -> Result<&BlockDir> {
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
            Effect::Create { block, pages } => {
                let Some((state, name)) = book.place(*block) else { return Ok(None) };
                let Some(key) = book.block(*block).map(book::block::Block::pool) else {
                    return Ok(None);
                };
                let file = self.dir(key.page_size)?.create(state.as_str(), &name)?;
                let place = Place { page_size: key.page_size, state, name };
                self.places.insert(*block, place);
                file.set_len(pages.bytes(key.page_size).0)?;
                Ok(Some(file))
            }
            Effect::Move(block) => {
                let Some((state, name)) = book.place(*block) else { return Ok(None) };
                self.drop_tables(*block, state);
                let Some(place) = self.places.get(block) else { return Ok(None) };
                if (place.state, &place.name) != (state, &name) {
                    let dir = self.dir(place.page_size)?;
                    dir.rename(&place.name, place.state.as_str(), &name, state.as_str())?;
                    let page_size = place.page_size;
                    self.places.insert(*block, Place { page_size, state, name });
                }
                self.make_tables(book, *block, state);
                Ok(None)
            }
            Effect::Resize { block, pages } => {
                let Some(place) = self.places.get(block) else { return Ok(None) };
                self.open_block(*block)?.set_len(pages.bytes(place.page_size).0)?;
                Ok(None)
            }
            Effect::Remove(block) => {
                let Some(place) = self.places.remove(block) else { return Ok(None) };
                if let Some(tables) = &self.tables {
                    tables.drop_of(*block);
                }
                let dir = self.dir(place.page_size)?;
                let file = dir.open_block(place.state.as_str(), &place.name)?;
                dir.unlink(place.state.as_str(), &place.name)?;
                self.freeing.free(file);
                Ok(None)
            }
        }
    }

    /// A block that is neither ready nor lent is nobody's to map: the lease proof must not see it.
    fn drop_tables(&self, block: BlockId, state: StateName) {
        if let Some(tables) = &self.tables
            && !matches!(state, StateName::Ready | StateName::Lent)
        {
            tables.drop_of(block);
        }
    }

    fn make_tables(&self, book: &Book, block: BlockId, state: StateName) {
        let (Some(tables), Some(known)) = (&self.tables, book.block(block)) else { return };
        if state != StateName::Ready || !Tables::are_worth_it(known) {
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

    /// Opens a block that is to be lent, after a last proof that nobody else has it. An open that was
    /// allowed before access was taken away may return only after the proof that followed.
    ///
    /// # Errors
    /// [`Error::Reached`].
    pub(crate) fn open_to_lend(&self, block: BlockId) -> Result<BlockFile> {
        let open = || self.try_open(block)?.ok_or(Error::Reached(block));
        let (proof, file) = match self.tables.as_ref().and_then(|t| t.before_lending(block)) {
            // Page tables that are made in advance are of a description of their own: asked for
            // that, before there is another.
            Some(mapped) => (reach(&mapped), open()?),
            None => {
                let file = open()?;
                (reach(&file), file)
            }
        };
        if proof == Reach::Shared || !file.is_private()? {
            return Err(Error::Reached(block));
        }
        Ok(file)
    }

    /// Who can reach a block that a worker has reported, and the pages it has memory for.
    pub(crate) fn reach(&self, block: BlockId, size: PageSize) -> Result<(Reach, Pages)> {
        let Some(file) = self.try_open(block)? else { return Ok((Reach::Shared, Pages::ZERO)) };
        let (reach, bytes) = reach_without_access(&file)?;
        Ok((reach, Bytes(bytes).whole_pages(size)))
    }

    /// Who can reach a block that is lent, its page tables made in advance apart.
    pub(crate) fn reach_while_lent(&self, block: BlockId) -> Result<Reach> {
        if let Some(tables) = &self.tables {
            tables.drop_of(block);
        }
        Ok(self.try_open(block)?.map_or(Reach::Shared, |file| reach(&file)))
    }

    /// The same of a block that a client has returned: it has memory for no page if its length is
    /// not what was lent.
    pub(crate) fn reach_after_loan(
        &self,
        block: BlockId,
        size: PageSize,
        lent: Pages,
    ) -> Result<(Reach, Pages)> {
        let Some(file) = self.try_open(block)? else { return Ok((Reach::Shared, Pages::ZERO)) };
        let (reach, bytes) = reach_without_access(&file)?;
        // After the proof, as the memory is: before it, its borrower may still cut the file.
        let as_lent = file.len()? == lent.bytes(size).0;
        Ok((reach, if as_lent { Bytes(bytes).whole_pages(size) } else { Pages::ZERO }))
    }

    /// `None` while somebody has a lease on the file, who has it open, too.
    fn try_open(&self, block: BlockId) -> Result<Option<BlockFile>> {
        match self.open_block(block) {
            Ok(file) => Ok(Some(file)),
            Err(Error::Kernel(error)) if error.is_leased() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Pages of a block that have memory.
    pub(crate) fn allocated(&self, block: BlockId, page_size: PageSize) -> Result<Pages> {
        Ok(Bytes(self.open_block(block)?.allocated_bytes()?).whole_pages(page_size))
    }

    /// Removes every file and mount: the kernel has its pages back.
    ///
    /// Memory that somebody still maps stays theirs until they let go; the kernel frees it then.
    pub(crate) fn clean_up(&mut self) -> Result<()> {
        self.tables = None;
        for dir in self.dirs.values() {
            for state in states() {
                for name in dir.list(state)? {
                    dir.unlink(state, &name)?;
                }
            }
        }
        self.places.clear();
        self.dirs.clear();
        for mounted in self.mounts.drain(..) {
            mounted.detach()?;
        }
        Ok(())
    }
}

fn is_of(root: &OwnedFd, page: PageSize) -> bool {
    matches!(mount::is_on_hugetlbfs(root), Ok(Some(found)) if found == page)
}

/// Who can reach a file once nobody may open it anew, and then the bytes that it has memory for:
/// where that is [`Reach::Sole`], nothing can change any more.
fn reach_without_access(file: &BlockFile) -> Result<(Reach, u64)> {
    file.take_access()?;
    let reach = reach(file);
    Ok((reach, file.allocated_bytes()?))
}

fn reach(file: &BlockFile) -> Reach {
    match exclusive::prove(file) {
        Ok(Exclusivity::Sole) => Reach::Sole,
        Ok(Exclusivity::Shared) => Reach::Shared,
        Ok(Exclusivity::Unsupported) => Reach::Unknown,
        // Not knowing is not being sole; the next look may tell.
        Err(error) => {
            tracing::warn!(%error, "could not ask who holds a block");
            Reach::Shared
        }
    }
}
