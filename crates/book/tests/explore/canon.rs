// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A state as bytes, the same for all states that differ only in names.
//!
//! *Folded* are: the two users with all their things, the two workers, the two names, and the
//! numbers of blocks, leases and jobs. Of numbers only their order can count, since new ones are
//! greater than any before. And it counts only where the book goes by it. That is between dirty
//! blocks (the first is cleared or given back first), kept ones (the latest comes first), blocks of
//! one lease (the order of effects), and loans of one name (the later one stays). That order stands
//! behind the rest. The time of kept content counts only as over or not: all content is kept
//! equally long.
#![expect(clippy::cast_possible_truncation, reason = "a small world: nothing comes near 256")]

use std::hash::{DefaultHasher, Hash, Hasher};

use book::Book;
use book::block::{Part, State as Life, StateName};
use units::{BlockId, LeaseId};

use super::scene::Scene;
use super::steps::loan_name;
use super::world::{ByName, File, Held, Page, USERS, Whose, Worker, World, pool_key, uid};

/// The name that each actor has.
#[derive(Clone, Copy)]
struct Called {
    users: bool,
    names: bool,
}

/// A file without the numbers in it, and those.
struct Reported<'a> {
    bytes: Vec<u8>,
    file: &'a File,
    lease: Option<LeaseId>,
    /// Whether its number counts among those of its state.
    is_in_order: bool,
}

/// What stands for a state, and for all that are the same.
pub(crate) fn fingerprint(world: &World, book: &Book, scene: &Scene) -> u64 {
    let mut least: Option<Vec<u8>> = None;
    for users in [false, true] {
        for names in [false, true].into_iter().take(scene.names.max(1)) {
            let bytes = encode(world, book, scene, Called { users, names });
            if least.as_ref().is_none_or(|least| bytes < *least) {
                least = Some(bytes);
            }
        }
    }
    let mut hasher = DefaultHasher::new();
    least.hash(&mut hasher);
    hasher.finish()
}

impl Called {
    fn user(self, user: usize) -> u8 {
        u8::from((user == 1) != self.users)
    }

    fn name(self, name: usize) -> u8 {
        u8::from((name == 1) != self.names)
    }

    fn part(self, part: &Part, bytes: &mut Vec<u8>) {
        let user = |of| self.user(usize::from(of == uid(1)));
        let name = part.name.as_ref().map(|name| usize::from(*name == loan_name(1)));
        bytes.extend([
            part.index as u8,
            user(part.uid) + 2 * user(part.account),
            part.pages.0 as u8,
            part.keep.as_ref().map_or(0, |keep| 1 + keep.seconds as u8),
            part.keep.as_ref().map_or(0, |keep| match &keep.scope {
                None => 1,
                Some(scope) => {
                    2 + self.name(usize::from(loan_name(1).scope() == Some(scope.as_str())))
                }
            }),
            name.map_or(2, |name| self.name(name)),
        ]);
    }

    fn page(self, page: Page) -> u8 {
        match page {
            Page::Unbacked => 0,
            Page::Zero => 1,
            Page::Worker => 2,
            Page::Of { user, owner } => 3 + self.user(user) + 2 * self.whose(owner),
        }
    }

    fn whose(self, owner: Whose) -> u8 {
        match owner {
            Whose::Nobodys => 0,
            Whose::Owners => 1,
            Whose::Scoped(name) => 2 + self.name(name),
        }
    }

    fn file<'a>(self, file: &'a File, world: &World, book: &Book) -> Reported<'a> {
        let known = book.block(file.block).filter(|_| World::is_known(file));
        let mut reported =
            Reported { bytes: Vec::with_capacity(32), file, lease: None, is_in_order: false };
        let directory = match (&file.place, known) {
            (None, _) => 0x10,
            (Some(_), Some(block)) => block.state_name() as u8,
            (Some((directory, _)), None) => 0x20 + *directory as u8,
        };
        reported.bytes.push(directory);
        reported.bytes.extend(file.pages().iter().map(|page| self.page(*page)));
        reported.bytes.push(0xf0);
        let held = |user: usize| match file.held[user] {
            Held::Not => 0,
            held => held as u8 + 4 * self.whose(file.owner[user]),
        };
        reported.bytes.extend(order_of(self.users).map(held));
        reported.bytes.push(file.left.map_or(2, |left| self.user(left)));
        for (_, worker) in world.workers.iter().enumerate().filter(|(nth, _)| file.workers[*nth]) {
            reported.bytes.push(match worker {
                Worker::Idle => 0xf1,
                Worker::Busy { block, cleared, .. } => {
                    *cleared as u8 + 8 * u8::from(*block == file.block)
                }
                Worker::Ghost { block } => 0xf2 + u8::from(*block == file.block),
            });
        }
        if let Some(block) = known {
            let [missing, grown] = [block.missing(), block.grown()].map(|pages| pages.0 as u8);
            reported.bytes.extend([missing, grown, block.held_by() as u8]);
        }
        self.life(known.map(book::block::Block::state), world, book, &mut reported);
        // The user of its lease, and the user of its name: these tell two similar files apart.
        let open = |user: usize| reported.lease.is_some() && world.leases[user] == reported.lease;
        let open = order_of(self.users).map(|user| u8::from(open(user)));
        reported.bytes.extend(open);
        for name in order_of(self.names) {
            let is_its = match world.names[name] {
                ByName::Nothing => false,
                ByName::Pending { lease, .. } => reported.lease == Some(lease),
                ByName::Reported { block, .. } => block == file.block,
            };
            reported.bytes.push(u8::from(is_its));
        }
        reported
    }

    fn life(self, life: Option<&Life>, world: &World, book: &Book, reported: &mut Reported<'_>) {
        match life {
            Some(Life::Zeroable { done }) => {
                reported.bytes.push(done.0 as u8);
                reported.is_in_order = true;
            }
            Some(Life::Zeroing { job, done }) => {
                let order = book.job(*job).map_or(9, |o| o.by() as u8 + 4 * o.first.0 as u8);
                let has = |w: &&Worker| matches!(w, Worker::Busy { job: of, .. } if of == job);
                let worker = world.workers.iter().find(has);
                reported.bytes.extend([done.0 as u8, order, u8::from(worker.is_some())]);
            }
            Some(Life::Ready(_) | Life::Draining(None)) => {}
            Some(Life::Lent(part) | Life::Draining(Some(part))) => {
                self.part(part, &mut reported.bytes);
                reported.lease = Some(part.lease);
            }
            Some(Life::Kept { part, until }) => {
                self.part(part, &mut reported.bytes);
                reported.bytes.push(u8::from(*until > world.now));
                (reported.lease, reported.is_in_order) = (Some(part.lease), true);
            }
            // What the next start finds: nothing but the name.
            None => {
                let Some((_, entry)) = &reported.file.place else { return };
                let is_over = entry.until.map(|until| u8::from(until > world.now));
                reported.bytes.push(is_over.unwrap_or(2));
                if let Some(part) = &entry.part {
                    self.part(part, &mut reported.bytes);
                    reported.lease = Some(part.lease);
                }
                reported.is_in_order = true;
            }
        }
    }
}

fn order_of(swapped: bool) -> [usize; USERS] {
    if swapped { [1, 0] } else { [0, 1] }
}

fn encode(world: &World, book: &Book, scene: &Scene, called: Called) -> Vec<u8> {
    let mut files: Vec<_> = world.files.iter().map(|f| called.file(f, world, book)).collect();
    files.sort_by(|a, b| (&a.bytes, a.file.block).cmp(&(&b.bytes, b.file.block)));
    let mut bytes = Vec::with_capacity(192);
    // Leases by the first file of theirs.
    let mut leases: Vec<LeaseId> = Vec::new();
    let mut number = |lease: LeaseId| {
        let known = leases.iter().position(|of| *of == lease);
        known.unwrap_or_else(|| {
            leases.push(lease);
            leases.len() - 1
        }) as u8
    };
    for reported in &files {
        bytes.extend(&reported.bytes);
        bytes.push(reported.lease.map_or(0xf4, &mut number));
    }
    bytes.push(0xf5);
    order(&files, &mut bytes);
    let place = |block: BlockId| {
        files.iter().position(|reported| reported.file.block == block).map_or(0xf6, |at| at as u8)
    };
    let mut of_book: Vec<Vec<u8>> = Vec::new();
    for lease in book.leases() {
        let name = book.leases_name(lease).map(|name| usize::from(name == loan_name(1)));
        let mut one = vec![number(lease), name.map_or(2, |name| called.name(name))];
        one.extend(book.lease_blocks(lease).into_iter().map(place));
        of_book.push(one);
    }
    of_book.sort_unstable();
    bytes.extend(of_book.concat());
    bytes.push(0xf7);
    let open = |user: usize| world.leases[user].map_or(0xf8, &mut number);
    bytes.extend(order_of(called.users).map(open));
    for name in order_of(called.names).into_iter().take(scene.names.max(1)) {
        bytes.extend(match world.names[name] {
            ByName::Nothing => [0, 0],
            ByName::Pending { lease, user, .. } => [1 + called.user(user), number(lease)],
            ByName::Reported { block, user } => [3 + called.user(user), place(block)],
        });
    }
    let mut workers = world.workers.map(|worker| match worker {
        Worker::Idle => [0, 0],
        Worker::Busy { block, cleared, .. } => [1 + cleared as u8, place(block)],
        Worker::Ghost { block } => [9, place(block)],
    });
    workers.sort_unstable();
    bytes.extend(workers.concat());
    let refilling = book.filling().contains_key(&pool_key(scene.pages_per_block));
    bytes.extend([u8::from(world.configured), u8::from(refilling), world.free as u8]);
    bytes
}

/// The order of numbers, where the book goes by it.
fn order(files: &[Reported<'_>], bytes: &mut Vec<u8>) {
    for (nth, one) in files.iter().enumerate() {
        for other in &files[..nth] {
            let same_state = one.bytes.first() == other.bytes.first();
            if one.is_in_order && other.is_in_order && same_state {
                bytes.push(u8::from(one.file.block < other.file.block));
            }
            if let (Some(of), Some(others)) = (one.lease, other.lease) {
                let is_later = match of == others {
                    true => one.file.block > other.file.block,
                    false => of > others,
                };
                let counts =
                    of == others || is_kept(one) && is_kept(other) || same_name(one, other);
                if counts {
                    bytes.push(u8::from(is_later));
                }
            }
        }
    }
}

fn is_kept(reported: &Reported<'_>) -> bool {
    reported.file.place.as_ref().is_some_and(|(state, _)| *state == StateName::Kept)
}

fn same_name(one: &Reported<'_>, other: &Reported<'_>) -> bool {
    let name = |reported: &Reported<'_>| {
        let (_, entry) = reported.file.place.as_ref()?;
        entry.part.as_ref()?.name.clone()
    };
    name(one).is_some_and(|of| name(other) == Some(of))
}
