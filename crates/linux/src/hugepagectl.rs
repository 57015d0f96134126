// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The structs and numbers of `kernel/uapi/hugepagectl.h`, once for both sides: callers of
//! `/dev/hugepagectl`, and the provider of the same file on a stock kernel.
//!
//! A struct only ever grows at its end. [`Argument::read`] and [`Argument::written`] are the
//! provider's side of the rules by which different ages of it understand each other.

use rustix::io::Errno;
use units::{Counts, Pages};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// As many pages as there are, for [`Zero::pages`].
pub const ALL: u64 = u64::MAX;
/// [`Watch::flags`]: be readable only while there also is a page to zero.
pub const WATCH_ZEROABLE: u32 = 1 << 0;
/// The largest [`Watch::min_interval_ms`]: one hour.
pub const WATCH_INTERVAL_MAX_MS: u32 = 3_600_000;
/// What [`Watch::min_interval_ms`] means if it is 0.
pub const WATCH_INTERVAL_DEFAULT_MS: u32 = 100;
/// The type in every ioctl number of the interface.
pub const IOC_TYPE: u8 = 0xbd;

/// The state of one domain: one page size on one node.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Query {
    /// In: the struct's size in bytes; out: the bytes filled.
    pub size: u32,
    /// In: the NUMA node.
    pub node: i32,
    /// In: log2 of the page size in bytes.
    pub page_shift: u32,
    /// In: 0.
    pub flags: u32,
    /// Pages of the pool on this node, used and unused.
    pub total: u64,
    /// Unused pages: dirty, being zeroed, and zeroed.
    pub free: u64,
    /// Free pages promised to mappings that have yet to touch them, on all nodes together.
    pub reserved: u64,
    /// Free pages known to be zero.
    pub zeroed: u64,
    /// Free pages that could be zeroed now.
    pub zeroable: u64,
    /// Free pages being zeroed at this moment.
    pub zeroing: u64,
    /// Allocations that wanted a zero page and got one.
    pub hits: u64,
    /// Allocations that wanted a zero page and had to clear it themselves.
    pub misses: u64,
    /// Those of `misses` that took the last page from a zeroer.
    pub waits: u64,
    /// Base pages of the node, used and unused, huge ones included.
    pub node_total: u64,
    /// Unused base pages of the node outside all pools.
    pub node_free: u64,
}

impl Query {
    /// Its text, `lent` and `surplus` left out.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            total: Pages(self.total),
            surplus: Pages::ZERO,
            free: Pages(self.free),
            reserved: Pages(self.reserved),
            available: Pages(self.free.saturating_sub(self.reserved)),
            ready: Pages(self.zeroed),
            zeroable: Pages(self.zeroable),
            zeroing: Pages(self.zeroing),
            lent: Pages::ZERO,
            hits: Pages(self.hits),
            misses: Pages(self.misses),
            waits: Pages(self.waits),
        }
    }

    /// The answer to this question.
    #[must_use]
    pub fn answered(self, counts: &Counts) -> Self {
        Self {
            total: counts.total.0,
            free: counts.free.0,
            reserved: counts.reserved.0,
            zeroed: counts.ready.0,
            zeroable: counts.zeroable.0,
            zeroing: counts.zeroing.0,
            hits: counts.hits.0,
            misses: counts.misses.0,
            waits: counts.waits.0,
            ..self
        }
    }
}

/// Zero free pages of one domain now.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Zero {
    /// In: the struct's size in bytes; out: the bytes understood.
    pub size: u32,
    /// In: the NUMA node.
    pub node: i32,
    /// In: log2 of the page size in bytes.
    pub page_shift: u32,
    /// In: 0.
    pub flags: u32,
    /// In: zero at most this number of pages; [`ALL`]: until none is zeroable.
    pub pages: u64,
    /// Out: pages that this call has zeroed.
    pub zeroed: u64,
}

/// Let an open file poll readable while pages are low.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Watch {
    /// In: the struct's size in bytes; out: the bytes understood.
    pub size: u32,
    /// In: the NUMA node.
    pub node: i32,
    /// In: log2 of the page size in bytes.
    pub page_shift: u32,
    /// In: 0 or [`WATCH_ZEROABLE`].
    pub flags: u32,
    /// In: readable below this number of zeroed pages. Both thresholds 0 end watching.
    pub min_zeroed: u64,
    /// In: no two wake-ups closer than this; 0: [`WATCH_INTERVAL_DEFAULT_MS`].
    pub min_interval_ms: u32,
    /// In: 0.
    pub reserved: u32,
    /// In: readable below this number of free pages, too.
    pub min_free: u64,
}

/// An ioctl number, taken apart as `_IOC` puts it together. This is the layout of asm-generic,
/// which every architecture that prezero runs on (x86-64, aarch64) uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoctlNumber {
    nr: u8,
    size: u16,
}

impl IoctlNumber {
    /// Which of the interface's calls `number` is.
    ///
    /// # Errors
    /// ENOTTY if it is none: another type, or not `_IOC_READ | _IOC_WRITE`. Whether the call exists
    /// is for the provider to say.
    pub fn parse(number: u32) -> Result<Self, Errno> {
        let [nr, kind, low, high] = number.to_le_bytes();
        // The two bits above the size: read and written.
        if kind != IOC_TYPE || high >> 6 != 0b11 {
            return Err(Errno::NOTTY);
        }
        Ok(Self { nr, size: u16::from_le_bytes([low, high & 0x3f]) })
    }

    /// The number of `T`'s call for a struct of `size` bytes.
    ///
    /// # Panics
    /// If `size` does not fit into the number's 14 bits.
    #[must_use]
    pub const fn number<T: Argument>(size: usize) -> u32 {
        assert!(size < 1 << 14, "_IOC_SIZE has 14 bits");
        #[expect(clippy::cast_possible_truncation, reason = "less than 2^14")]
        let size = size as u32;
        0b11 << 30 | size << 16 | (IOC_TYPE as u32) << 8 | T::NR as u32
    }

    /// Which call.
    #[must_use]
    pub const fn nr(self) -> u8 {
        self.nr
    }

    /// The bytes that the caller can send and receive.
    #[must_use]
    pub fn size(self) -> usize {
        usize::from(self.size)
    }
}

/// One of the interface's structs.
pub trait Argument: FromBytes + IntoBytes + Immutable + KnownLayout + Default + Copy {
    /// The number of its call.
    const NR: u8;
    /// The size of its first version in bytes, the minimum.
    const SIZE_VER0: usize;

    /// Its first field.
    fn size(&self) -> u32;
    /// Sets its first field.
    fn set_size(&mut self, size: u32);

    /// Takes over what a caller of any age has sent: `bytes` are as many as its ioctl number says.
    /// The result says in `size` how much of it caller and provider both know.
    ///
    /// # Errors
    /// EINVAL for a size below the first version's or above the number's; E2BIG for an unknown byte
    /// other than zero.
    fn read(bytes: &[u8]) -> Result<Self, Errno> {
        let claimed = match bytes.first_chunk() {
            Some(size) if bytes.len() >= Self::SIZE_VER0 => u32::from_ne_bytes(*size) as usize,
            _ => return Err(Errno::INVAL),
        };
        if claimed < Self::SIZE_VER0 || claimed > bytes.len() {
            return Err(Errno::INVAL);
        }
        let (known, unknown) = bytes[..claimed].split_at(claimed.min(size_of::<Self>()));
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(Errno::TOOBIG);
        }
        let mut argument = Self::default();
        argument.as_mut_bytes()[..known.len()].copy_from_slice(known);
        argument.set_size(u32::try_from(known.len()).unwrap_or(u32::MAX));
        Ok(argument)
    }

    /// The bytes to send back to the caller of [`read`](Self::read): those that both know.
    fn written(&self) -> &[u8] {
        let length = (self.size() as usize).min(size_of::<Self>());
        &self.as_bytes()[..length]
    }
}

macro_rules! argument {
    ($type:ty, $nr:literal, $ver0:literal) => {
        impl Argument for $type {
            const NR: u8 = $nr;
            const SIZE_VER0: usize = $ver0;

            fn size(&self) -> u32 {
                self.size
            }

            fn set_size(&mut self, size: u32) {
                self.size = size;
            }
        }

        impl $type {
            /// Its ioctl number for a struct of this size.
            pub const NUMBER: u32 = IoctlNumber::number::<Self>(size_of::<Self>());
        }
    };
}

argument!(Query, 0x00, 88);
argument!(Zero, 0x01, 32);
argument!(Watch, 0x02, 32);

#[cfg(test)]
mod tests {
    use super::*;

    fn zero(size: u32) -> Zero {
        Zero { size, node: 1, page_shift: 21, flags: 2, pages: 3, zeroed: 4 }
    }

    #[test]
    fn numbers_come_apart_as_they_were_put_together() {
        let request = IoctlNumber::parse(Query::NUMBER).unwrap();
        assert_eq!((request.nr(), request.size()), (Query::NR, 104));
        let grown = IoctlNumber::parse(IoctlNumber::number::<Watch>(16383)).unwrap();
        assert_eq!((grown.nr(), grown.size()), (Watch::NR, 16383));
        // Another type, read only, neither.
        for number in [Query::NUMBER ^ 0x100, Query::NUMBER & !(1 << 30), Query::NUMBER & 0xffff] {
            assert_eq!(IoctlNumber::parse(number), Err(Errno::NOTTY), "{number:#x}");
        }
    }

    #[test]
    fn a_caller_of_the_same_age_is_understood() {
        let sent = zero(32);
        assert_eq!(Zero::read(sent.as_bytes()), Ok(sent));
        assert_eq!(sent.written(), sent.as_bytes());
    }

    #[test]
    fn newer_caller_is_understood_unless_it_uses_new_fields() {
        let mut bytes = [zero(40).as_bytes(), &[0; 16]].concat();
        let read = Zero::read(&bytes).unwrap();
        assert_eq!(read, zero(32), "and told what was understood");
        assert_eq!(read.written().len(), 32);
        bytes[39] = 1;
        assert_eq!(Zero::read(&bytes), Err(Errno::TOOBIG));
        bytes[39] = 0;
        bytes[40] = 1;
        assert_eq!(Zero::read(&bytes), Ok(zero(32)), "behind its size is not looked at");
    }

    #[test]
    fn a_size_below_the_first_or_above_the_numbers_is_refused() {
        for (size, sent) in [(0, 32), (31, 32), (33, 32), (u32::MAX, 32), (32, 31), (32, 0)] {
            let zero = zero(size);
            assert_eq!(Zero::read(&zero.as_bytes()[..sent]), Err(Errno::INVAL), "{size} of {sent}");
        }
    }
}
