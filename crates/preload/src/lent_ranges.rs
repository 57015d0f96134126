// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where lent memory is mapped: a table of address ranges. It is read and changed without a lock
//! and without a system call.
//!
//! An entry is one word, so each change is one compare-and-swap. Memory that is unmapped, moved or
//! replaced by the interposed calls leaves the table. Ranges of shared memory serve as a hint: a
//! call that meets one asks the kernel what lies there ([`crate::maps`]). A range of private
//! memory is believed; [`crate::private`] says who may rely on that.
//!
//! The table takes [`MAX_RANGES`]. Private memory that finds it full is not served. Shared memory
//! that finds it full is served, and `mbind` leaves its pages where they are.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What lies in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A request for private memory.
    Private = 1,
    /// Shared memory of a mapping, a memfd or a file.
    Shared = 2,
    /// An attached segment of System V.
    Segment = 3,
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Range {
    /// Of a call's arguments, which may be nonsense.
    pub(crate) fn new(start: usize, bytes: usize) -> Self {
        Self { start, end: start.saturating_add(bytes) }
    }

    pub(crate) fn bytes(self) -> usize {
        self.end - self.start
    }

    /// The common part of two ranges.
    pub(crate) fn cut(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }
}

const MAX_RANGES: usize = 512;
/// The resolution of the table; memory of smaller pages is not noted.
pub(crate) const GRANULE: usize = 2 << 20;
/// Bits of an entry for the start and for the length, in granules: addresses of 49 bits.
const FIELD_BITS: u32 = 28;
const FIELD: u64 = (1 << FIELD_BITS) - 1;

static TABLE: [AtomicU64; MAX_RANGES] = [const { AtomicU64::new(0) }; MAX_RANGES];
/// One behind the last entry that was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

fn pack(range: Range, kind: Kind) -> Option<u64> {
    let (start, length) = ((range.start / GRANULE) as u64, (range.bytes() / GRANULE) as u64);
    let fits = start <= FIELD && length <= FIELD && length > 0;
    fits.then_some((kind as u64) << (2 * FIELD_BITS) | start << FIELD_BITS | length)
}

fn unpack(entry: u64) -> Option<(Range, Kind)> {
    let kind = match entry >> (2 * FIELD_BITS) {
        1 => Kind::Private,
        2 => Kind::Shared,
        3 => Kind::Segment,
        _ => return None,
    };
    let field = |at: u64| usize::try_from(at & FIELD).unwrap_or_default() * GRANULE;
    Some((Range::new(field(entry >> FIELD_BITS), field(entry)), kind))
}

fn entries() -> impl Iterator<Item = (&'static AtomicU64, u64, Range, Kind)> {
    TABLE[..USED.load(Ordering::Acquire)].iter().filter_map(|slot| {
        let entry = slot.load(Ordering::Acquire);
        unpack(entry).map(|(range, kind)| (slot, entry, range, kind))
    })
}

/// Whether any memory is lent, or was.
pub(crate) fn is_any() -> bool {
    USED.load(Ordering::Relaxed) != 0
}

/// Whether any of a range is lent.
pub(crate) fn is_in(range: Range) -> bool {
    is_any() && entries().any(|(_, _, lent, _)| lent.cut(range).is_some())
}

/// The first part of a range that is lent for that kind of memory.
pub(crate) fn first_of(range: Range, kind: Kind) -> Option<Range> {
    if USED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let its = entries().filter(|(.., its)| *its == kind);
    its.filter_map(|(_, _, lent, _)| lent.cut(range)).min_by_key(|part| part.start)
}

/// Notes a range.
///
/// # Errors
/// A full table, or memory with pages that are smaller than its granules.
pub(crate) fn add(range: Range, kind: Kind) -> Result<(), &'static str> {
    let in_granules = range.start.is_multiple_of(GRANULE) && range.end.is_multiple_of(GRANULE);
    let packed = if in_granules { pack(range, kind) } else { None };
    let entry = packed.ok_or("its pages are smaller than 2 MiB")?;
    for (at, slot) in TABLE.iter().enumerate() {
        if slot.compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            USED.fetch_max(at + 1, Ordering::AcqRel);
            return Ok(());
        }
        // A program that maps page after page has one range.
        let now = slot.load(Ordering::Acquire);
        let Some((old, _)) = unpack(now).filter(|(_, old)| *old == kind) else { continue };
        let joined = match (old.end == range.start, range.end == old.start) {
            (true, _) => Range { start: old.start, end: range.end },
            (_, true) => Range { start: range.start, end: old.end },
            _ => continue,
        };
        let Some(joined) = pack(joined, kind) else { continue };
        if slot.compare_exchange(now, joined, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Ok(());
        }
    }
    Err("too many ranges are lent")
}

/// Forgets a range that was unmapped, replaced, or moved away.
pub(crate) fn remove(range: Range) {
    // The kernel unmaps whole huge pages, and refuses ranges that end inside of one.
    let range = Range {
        start: range.start - range.start % GRANULE,
        end: range.end.checked_next_multiple_of(GRANULE).unwrap_or(usize::MAX),
    };
    for (slot, mut entry, ..) in entries() {
        while let Some((old, kind)) = unpack(entry)
            && old.cut(range).is_some()
        {
            let left = Range { start: old.start, end: old.end.min(range.start) };
            let right = Range { start: old.start.max(range.end), end: old.end };
            let has = |part: Range| part.start < part.end;
            let kept = match (has(left), has(right)) {
                (true, true) => {
                    // First the one half, so that at no time a lent part is missing.
                    let _ = add(right, kind);
                    pack(left, kind)
                }
                (true, false) => pack(left, kind),
                (false, true) => pack(right, kind),
                (false, false) => Some(0),
            };
            let new = kept.unwrap_or(0);
            match slot.compare_exchange(entry, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => entry = now,
            }
        }
    }
}

/// Forgets all private memory, which a child does not have, and hands each range on.
pub(crate) fn take_private(mut each: impl FnMut(Range)) {
    for (slot, entry, range, _) in entries().filter(|(.., its)| *its == Kind::Private) {
        if slot.compare_exchange(entry, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            each(range);
        }
    }
}
