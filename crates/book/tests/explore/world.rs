// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world around a book, as small as it can be: files of huge pages, two users' programs, two
//! workers, the agent that asks by names.
//!
//! Every process is as bad as the real one can be: a process that has a file writes into every page
//! of it all the time. A page's content is therefore the last write by a process that could write,
//! and anything less hostile is a state that is no worse.

use std::collections::BTreeMap;
use std::sync::Arc;

use book::block::{Proof, Reach, StateName, Unheld};
use book::journal::{self, Entry};
use book::{Book, Effect, JobOrder};
use units::{BlockId, JobId, LeaseId, Node, PageSize, Pages, PoolKey, Uid};
use wire::ZeroBy;

pub(crate) const PAGE: PageSize = PageSize::MIB_2;
pub(crate) const USERS: usize = 2;
/// The most pages of a file: a block of two and an unbacked part.
const MAX_FILE_PAGES: usize = 3;

pub(crate) fn uid(user: usize) -> Uid {
    Uid(1000 + u32::try_from(user).expect("two users"))
}

pub(crate) fn index(pages: Pages) -> usize {
    usize::try_from(pages.0).expect("a small world")
}

/// By what a program has a file, the least of it: each goes with what stands before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Held {
    Not,
    Pinned,
    Mapped,
    Open,
}

/// The owner in whose name a program has a file, besides its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    Nobodys,
    /// The owner's.
    Owners,
    /// The owner within the scope of that name: a different one.
    Scoped(usize),
}

/// What a page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Page {
    /// No memory.
    Unbacked,
    Zero,
    /// What a user's program wrote, in the name of its owner or not.
    Of {
        user: usize,
        owner: Whose,
    },
    /// The bytes of a worker that is out of control.
    Worker,
}

/// One file of the hugetlbfs.
#[derive(Debug, Clone)]
pub(crate) struct File {
    pub(crate) block: BlockId,
    /// Its directory, and what its name says, until it is unlinked.
    pub(crate) place: Option<(StateName, Arc<Entry>)>,
    pages: [Page; MAX_FILE_PAGES],
    len: usize,
    /// What each user's programs have of it.
    pub(crate) held: [Held; USERS],
    /// Whether they had it in the name of an owner.
    pub(crate) owner: [Whose; USERS],
    /// The workers that have it.
    pub(crate) workers: [bool; 2],
    /// The user with a watch on its inode, or with pages behind its end.
    pub(crate) left: Option<usize>,
    /// The daemon forgot it after a failure; the next start finds it.
    pub(crate) is_orphan: bool,
}

impl File {
    pub(crate) fn pages(&self) -> &[Page] {
        &self.pages[..self.len]
    }

    pub(crate) fn memory(&self) -> u64 {
        let there = self.pages().iter().filter(|page| **page != Page::Unbacked);
        u64::try_from(there.count()).expect("a small world")
    }

    pub(crate) fn missing(&self) -> u64 {
        self.len as u64 - self.memory()
    }

    /// The ways to have it.
    pub(crate) fn most_held(&self) -> Held {
        match self.workers.contains(&true) {
            true => Held::Open,
            false => self.held.into_iter().max().unwrap_or(Held::Not),
        }
    }

    pub(crate) fn zero(&self) -> u64 {
        self.pages().iter().take_while(|page| **page == Page::Zero).count() as u64
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Worker {
    #[default]
    Idle,
    /// It has a job on that block, and cleared this number of pages from its start.
    Busy { job: JobId, block: BlockId, cleared: u64 },
    /// It has no job any more, and still has its block.
    Ghost { block: BlockId },
}

/// What an agent knows of a loan by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ByName {
    /// Nothing, or it asked for its return: what there may be is not its concern.
    #[default]
    Nothing,
    /// The daemon makes it.
    Pending { lease: LeaseId, user: usize, owner: Whose, kept: bool },
    /// It was told that this user has it.
    Reported { block: BlockId, user: usize },
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct World {
    pub(crate) files: Vec<File>,
    pub(crate) free: u64,
    pub(crate) total: u64,
    /// The lease that each user's program has open.
    pub(crate) leases: [Option<LeaseId>; USERS],
    pub(crate) workers: [Worker; 2],
    pub(crate) names: [ByName; 2],
    pub(crate) now: u64,
    /// Whether the configuration names the pool.
    pub(crate) configured: bool,
    /// The last numbers that were given: none may come again.
    pub(crate) last: (u64, u64, u64),
}

/// Stands for the kernel's word that a file is free.
struct Seen;

impl Proof for Seen {}

/// The moves between directories that a running daemon makes.
const EDGES: [(StateName, StateName); 11] = {
    use StateName::{Draining, Kept, Lent, Ready, Zeroable, Zeroing};
    [
        (Zeroable, Zeroing),
        (Zeroing, Ready),
        (Zeroing, Zeroable),
        (Zeroing, Draining),
        (Ready, Lent),
        (Lent, Lent),
        (Lent, Draining),
        (Draining, Kept),
        (Draining, Zeroable),
        (Kept, Lent),
        (Kept, Draining),
    ]
};

impl World {
    pub(crate) fn find(&self, block: BlockId) -> Option<usize> {
        self.files.iter().position(|f| f.block == block && f.place.is_some())
    }

    /// Of a block that is in the book.
    pub(crate) fn file(&self, block: BlockId) -> &File {
        let at = self.find(block).unwrap_or_else(|| panic!("{block} has no file"));
        &self.files[at]
    }

    pub(crate) fn file_mut(&mut self, block: BlockId) -> &mut File {
        let at = self.find(block).unwrap_or_else(|| panic!("{block} has no file"));
        &mut self.files[at]
    }

    /// What the kernel shows of a block's file.
    pub(crate) fn reach(&self, block: BlockId, shows_pins: bool) -> Reach {
        match self.file(block).most_held() {
            Held::Open => Reach::Shared,
            Held::Mapped => Reach::Mapped,
            Held::Pinned if shows_pins => Reach::Pinned,
            // Both go the same way.
            Held::Not if shows_pins && self.file(block).left == Some(0) => Reach::Marked,
            Held::Not if shows_pins && self.file(block).left.is_some() => Reach::Altered,
            Held::Not if shows_pins => Reach::Nobody(Unheld::by(Seen)),
            Held::Pinned | Held::Not => Reach::Sole,
        }
    }

    fn place_in(book: &Book, block: BlockId) -> (StateName, Arc<Entry>) {
        let (state, name) = book.place(block).expect("a block of an effect is in the book");
        let entry =
            journal::parse(&name, PAGE).unwrap_or_else(|| panic!("{name} reads as nothing"));
        (state, Arc::new(entry))
    }

    pub(crate) fn carry_out(&mut self, book: &Book, effect: &Effect, is_start: bool) {
        match effect {
            Effect::Create { block, pages, .. } => {
                assert!(block.0 > self.last.0, "{block} comes again");
                assert!(index(*pages) <= MAX_FILE_PAGES, "{block} has {pages} pages");
                self.last.0 = block.0;
                self.files.push(File {
                    block: *block,
                    place: Some(Self::place_in(book, *block)),
                    pages: [Page::Unbacked; MAX_FILE_PAGES],
                    len: index(*pages),
                    held: [Held::Not; USERS],
                    owner: [Whose::Nobodys; USERS],
                    workers: [false; 2],
                    left: None,
                    is_orphan: false,
                });
            }
            Effect::Move(block) | Effect::Mark(block) => {
                let to = Self::place_in(book, *block);
                let file = self.file_mut(*block);
                let from = file.place.replace(to.clone()).expect("it was found by its name").0;
                assert!(is_start || EDGES.contains(&(from, to.0)), "{block}: {from} to {}", to.0);
            }
            Effect::Resize { block, pages } => {
                let file = self.file_mut(*block);
                let before = file.memory();
                let len = index(*pages);
                assert!(len <= MAX_FILE_PAGES, "{block} has {pages} pages");
                let from = file.len.min(len);
                file.pages[from..].fill(Page::Unbacked);
                file.len = len;
                let freed = before - file.memory();
                self.free += freed;
            }
            Effect::Remove(block) | Effect::Unlink(block) => {
                self.file_mut(*block).place = None;
                self.reap();
            }
        }
    }

    /// Files without a name and without users are the kernel's again.
    pub(crate) fn reap(&mut self) {
        let is_gone = |f: &File| f.place.is_none() && f.most_held() == Held::Not;
        self.free += self.files.iter().filter(|f| is_gone(f)).map(File::memory).sum::<u64>();
        self.files.retain(|f| !is_gone(f));
    }

    /// Each process that has a file writes into all of its memory.
    pub(crate) fn soil(&mut self) {
        for file in &mut self.files {
            let ghost = self.workers.iter().zip(file.workers).any(|(worker, has)| {
                has && matches!(worker, Worker::Ghost { block } if *block == file.block)
            });
            let by = if ghost {
                Some(Page::Worker)
            } else {
                let user = (0..USERS).find(|user| file.held[*user] != Held::Not);
                user.map(|user| Page::Of { user, owner: file.owner[user] })
            };
            if let Some(by) = by {
                let there =
                    file.pages[..file.len].iter_mut().filter(|page| **page != Page::Unbacked);
                there.for_each(|page| *page = by);
            }
        }
    }

    /// A program gets a block's file, maps it and uses all that the kernel has pages for.
    pub(crate) fn give_to(&mut self, block: BlockId, user: usize, owner: Whose) {
        let mut free = self.free;
        let file = self.file_mut(block);
        (file.held[user], file.owner[user]) = (Held::Open, owner);
        let len = file.len;
        for page in file.pages[..len].iter_mut().filter(|page| **page == Page::Unbacked) {
            if free > 0 {
                free -= 1;
                *page = Page::Zero;
            }
        }
        self.free = free;
    }

    /// The daemon fills the unbacked parts of a file. Whether there were pages for it.
    pub(crate) fn fill(&mut self, block: BlockId) -> bool {
        let missing = self.file(block).missing();
        if missing > self.free {
            return false;
        }
        self.free -= missing;
        let file = self.file_mut(block);
        let len = file.len;
        let unbacked = file.pages[..len].iter_mut().filter(|page| **page == Page::Unbacked);
        unbacked.for_each(|page| *page = Page::Zero);
        true
    }

    /// A program frees the pages of its file.
    pub(crate) fn punch(&mut self, at: usize) {
        let file = &mut self.files[at];
        self.free += file.memory();
        file.pages.fill(Page::Unbacked);
    }

    /// A program leaves something of its own with a file.
    pub(crate) fn mark(&mut self, at: usize) {
        let file = &mut self.files[at];
        file.left = file.held.iter().position(|held| *held == Held::Open);
    }

    /// A worker clears the next page of its block. Whether there was memory for it.
    pub(crate) fn clear(&mut self, worker: usize, order: &JobOrder) -> bool {
        let Worker::Busy { job, block, cleared } = self.workers[worker] else { return false };
        let at = self.find(block).expect("a block in a worker's hands has a file");
        let nth = usize::try_from(cleared).expect("a small world");
        let file = &mut self.files[at];
        let Some(page) = file.pages[..file.len].get_mut(nth) else { return false };
        match *page {
            Page::Unbacked if self.free == 0 => return false,
            Page::Unbacked => {
                self.free -= 1;
                *page = Page::Zero;
            }
            // fallocate(2) leaves existing memory as it is.
            _ if order.by() == ZeroBy::Allocate => {}
            _ => *page = Page::Zero,
        }
        self.workers[worker] = Worker::Busy { job, block, cleared: cleared + 1 };
        true
    }

    /// A worker closes what it has.
    pub(crate) fn lets_go(&mut self, worker: usize) {
        self.files.iter_mut().for_each(|file| file.workers[worker] = false);
        self.reap();
    }

    /// Every file by its name, for a daemon that starts.
    pub(crate) fn linked(&self) -> Vec<BlockId> {
        let mut linked: BTreeMap<_, _> = BTreeMap::new();
        for file in &self.files {
            if let Some((state, entry)) = &file.place {
                linked.insert((*state, entry.block), file.block);
            }
        }
        linked.into_values().collect()
    }
}

pub(crate) fn pool_key(pages_per_block: u64) -> PoolKey {
    PoolKey { node: Node(0), page_size: PAGE, pages_per_block: Pages(pages_per_block) }
}
