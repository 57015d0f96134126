// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated hugetlbfs and the kernel's pool of pages behind it.
//!
//! As with the real one, a page is zero when it is allocated and keeps its content until it is
//! freed. `fallocate` allocates missing pages and leaves the rest alone. A page is free again when
//! its last reference is gone, pins included. A mapping reserves the pages it misses.

use std::collections::{BTreeMap, BTreeSet};

use units::{BlockId, Domain};

use crate::block::{Proof, Reach, StateName, Unheld};
use crate::journal;

pub(super) type Shape = Domain;

/// A process that can have a block's file: the nth client or worker of the world's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Actor {
    Client(usize),
    Worker(usize),
}

/// What a page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Zero,
    /// Bytes that this actor wrote.
    Of(Actor),
}

/// Unseen by every process.
pub(super) struct Seen;

impl Proof for Seen {}

/// One file. `None` pages have no memory yet.
#[derive(Debug)]
pub(super) struct File {
    pub(super) shape: Shape,
    /// The block of this file.
    pub(super) block: BlockId,
    /// Its directory and name, until it is unlinked.
    pub(super) place: Option<(StateName, String)>,
    pub(super) pages: Vec<Option<Content>>,
    /// Holders of a descriptor or a mapping: the lease proof sees them.
    pub(super) holders: BTreeSet<Actor>,
    /// Holders of pages through GUP: only the reference counts of pages show them.
    pub(super) pinners: BTreeSet<Actor>,
}

impl File {
    pub(super) fn allocated(&self) -> u64 {
        count(self.pages.iter().flatten())
    }

    pub(super) fn missing(&self) -> u64 {
        count(self.pages.iter().filter(|p| p.is_none()))
    }

    pub(super) fn len(&self) -> u64 {
        count(self.pages.iter())
    }

    pub(super) fn is_reachable(&self) -> bool {
        !self.holders.is_empty()
    }
}

pub(super) fn count(items: impl Iterator) -> u64 {
    u64::try_from(items.count()).expect("a simulation is small")
}

pub(super) fn index(n: u64) -> usize {
    usize::try_from(n).expect("a simulation is small")
}

/// The kernel's pools and all files, linked or only held.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    pub(super) total: BTreeMap<Shape, u64>,
    pub(super) free: BTreeMap<Shape, u64>,
    /// Pages that programs outside have.
    pub(super) outside: BTreeMap<Shape, u64>,
    pub(super) files: BTreeMap<usize, File>,
    /// Whether it shows who pins pages.
    pub(super) shows_pins: bool,
    next: usize,
}

impl Kernel {
    pub(super) fn new(pools: impl IntoIterator<Item = (Shape, u64)>) -> Self {
        let total: BTreeMap<_, _> = pools.into_iter().collect();
        Self { free: total.clone(), total, ..Self::default() }
    }

    pub(super) fn create(&mut self, shape: Shape, place: (StateName, String), len: u64) -> usize {
        let same =
            |f: &&File| f.place.as_ref() == Some(&place) && f.shape.page_size == shape.page_size;
        assert!(!self.files.values().any(|f| same(&f)), "{place:?} exists");
        self.next += 1;
        let pages = vec![None; index(len)];
        let block =
            journal::parse(&place.1, shape.page_size).expect("only the book names files").block;
        let (holders, pinners) = Default::default();
        let place = Some(place);
        self.files.insert(self.next, File { shape, block, place, pages, holders, pinners });
        self.next
    }

    pub(super) fn find(&self, block: BlockId) -> Option<usize> {
        self.linked().find(|(_, f)| f.block == block).map(|(no, _)| no)
    }

    pub(super) fn linked(&self) -> impl Iterator<Item = (usize, &File)> {
        self.files.iter().filter(|(_, f)| f.place.is_some()).map(|(no, f)| (*no, f))
    }

    pub(super) fn file(&self, no: usize) -> &File {
        &self.files[&no]
    }

    pub(super) fn file_mut(&mut self, no: usize) -> &mut File {
        self.files.get_mut(&no).expect("a file that somebody has exists")
    }

    pub(super) fn has_memory(&self, no: usize, page: u64) -> bool {
        self.file(no).pages.get(index(page)).is_some_and(Option::is_some)
    }

    pub(super) fn resize(&mut self, no: usize, len: u64) {
        let file = self.file_mut(no);
        let before = file.allocated();
        file.pages.resize(index(len), None);
        let (shape, freed) = (file.shape, before - file.allocated());
        *self.free.get_mut(&shape).expect("a file's shape exists") += freed;
    }

    /// Allocates one page as `fallocate` or a fault does: zero if it had no memory, unchanged if
    /// it had. False if the kernel has none.
    pub(super) fn allocate(&mut self, no: usize, page: u64) -> bool {
        let file = self.files.get_mut(&no).expect("a file that somebody has exists");
        let free = self.free.get_mut(&file.shape).expect("a file's shape exists");
        let Some(slot) = file.pages.get_mut(index(page)) else { return false };
        if slot.is_none() {
            if *free == 0 {
                return false;
            }
            *free -= 1;
            *slot = Some(Content::Zero);
        }
        true
    }

    /// Frees one page, as `fallocate(FALLOC_FL_PUNCH_HOLE)` does.
    pub(super) fn punch(&mut self, no: usize, page: u64) {
        let file = self.file_mut(no);
        let freed = file.pages.get_mut(index(page)).and_then(Option::take);
        let shape = file.shape;
        if freed.is_some() {
            *self.free.get_mut(&shape).expect("a file's shape exists") += 1;
        }
    }

    /// Writes one whole page, faulting it in where it has no memory. False if that fails.
    pub(super) fn write(&mut self, no: usize, page: u64, content: Content) -> bool {
        let done = self.allocate(no, page);
        if done {
            self.file_mut(no).pages[index(page)] = Some(content);
        }
        done
    }

    pub(super) fn unlink(&mut self, no: usize) {
        self.file_mut(no).place = None;
        self.reap(no);
    }

    /// The actor lets go of every descriptor and mapping of one file.
    pub(super) fn unmap(&mut self, no: usize, actor: Actor) {
        if let Some(file) = self.files.get_mut(&no) {
            file.holders.remove(&actor);
            self.reap(no);
        }
    }

    /// The actor lets go of every descriptor, mapping and pin of one file.
    pub(super) fn lift_limit(&mut self, no: usize, actor: Actor) {
        if let Some(file) = self.files.get_mut(&no) {
            file.holders.remove(&actor);
            file.pinners.remove(&actor);
            self.reap(no);
        }
    }

    fn reap(&mut self, no: usize) {
        let file = &self.files[&no];
        if file.place.is_none() && file.holders.is_empty() && file.pinners.is_empty() {
            *self.free.get_mut(&file.shape).expect("a file's shape exists") += file.allocated();
            self.files.remove(&no);
        }
    }

    /// What the proof says, where the kernel grants leases, and where it shows pins.
    pub(super) fn reach(&self, no: usize, provable: bool) -> Reach {
        match (provable, self.file(no).is_reachable()) {
            (false, _) => Reach::Unknown,
            (true, true) => Reach::Shared,
            (true, false) if !self.shows_pins => Reach::Sole,
            (true, false) if self.file(no).pinners.is_empty() => Reach::Nobody(Unheld::by(Seen)),
            (true, false) => Reach::Pinned,
        }
    }

    /// Pages that clients' mappings reserve.
    pub(super) fn reserved(&self, shape: Shape) -> u64 {
        let mapped = |f: &&File| f.holders.iter().any(|h| matches!(h, Actor::Client(_)));
        let here = |f: &&File| f.shape == shape && f.place.is_some();
        self.files.values().filter(here).filter(mapped).map(File::missing).sum()
    }

    /// Every page is free, with a program outside, or in exactly one file.
    pub(super) fn assert_conserved(&self) {
        for (shape, total) in &self.total {
            let here = self.files.values().filter(|f| f.shape == *shape);
            let owned: u64 = here.map(File::allocated).sum();
            let outside = self.outside.get(shape).copied().unwrap_or_default();
            assert_eq!(self.free[shape] + outside + owned, *total, "pages of {shape:?}");
        }
    }
}
