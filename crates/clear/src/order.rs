// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In which order the parts of an extent are cleared. Arithmetic only.

use core::ops::Range;

/// The unit in which a radius is counted: the base page of x86-64, and of most aarch64 kernels.
pub const BASE_PAGE_BYTES: usize = 4096;

/// In which order the parts of an extent are cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// From the first byte to the last: for memory that nobody waits for.
    #[default]
    Straight,
    /// Chunk by chunk from the end, each chunk forwards.
    Reversed,
    /// Everything else first, then the neighbourhood of the byte that is about to be touched.
    TouchedLast(TouchedLast),
}

/// The neighbourhood of one byte is cleared last, with cached stores, so that it is warm when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TouchedLast {
    /// Offset of the byte in the extent. Past the end: the last byte.
    pub at_bytes: usize,
    /// Base pages on either side of the touched one that belong to the neighbourhood; 0: only the touched page.
    pub radius_pages: usize,
}

impl TouchedLast {
    /// Two base pages on either side, as the kernel's `folio_zero_user` has it.
    pub const DEFAULT_RADIUS_PAGES: usize = 2;
}

/// One run of an extent, cleared with one method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Offsets in the extent.
    pub(crate) range: Range<usize>,
    /// Cleared chunk by chunk from its end.
    pub(crate) backwards: bool,
    /// Wanted in the cache.
    pub(crate) near: bool,
}

impl Order {
    /// The pieces of an extent of `len` bytes at address `start`, in the order of clearing: together they are the
    /// extent, each byte once; some may be empty.
    pub(crate) fn pieces(self, start: usize, len: usize) -> [Piece; 3] {
        let piece = |range, backwards, near| Piece { range, backwards, near };
        match self {
            Self::Straight => [
                piece(0..len, false, false),
                piece(len..len, false, false),
                piece(len..len, false, true),
            ],
            Self::Reversed => {
                [piece(0..len, true, false), piece(0..0, true, false), piece(0..0, true, true)]
            }
            Self::TouchedLast(TouchedLast { at_bytes, radius_pages }) => {
                // Base pages lie at multiples of their size in the address space; the extent need not.
                let into_page = start % BASE_PAGE_BYTES;
                let touched = (at_bytes.min(len.saturating_sub(1)) + into_page) / BASE_PAGE_BYTES;
                let offset = |page: usize| {
                    page.saturating_mul(BASE_PAGE_BYTES).saturating_sub(into_page).min(len)
                };
                let near = offset(touched.saturating_sub(radius_pages))
                    ..offset(touched.saturating_add(radius_pages).saturating_add(1));
                [
                    piece(near.end..len, false, false),
                    piece(0..near.start, false, false),
                    piece(near, false, true),
                ]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(at_bytes: usize, radius_pages: usize) -> Order {
        Order::TouchedLast(TouchedLast { at_bytes, radius_pages })
    }

    #[test]
    fn touched_last_is_right_then_left_then_neighbourhood() {
        let [right, left, near] = touched(5 * 4096 + 17, 2).pieces(0x20_0000, 16 * 4096);
        assert_eq!(
            (right.range, left.range, near.range),
            (8 * 4096..16 * 4096, 0..3 * 4096, 3 * 4096..8 * 4096)
        );
        assert!(near.near && !right.near && !left.near);
    }

    #[test]
    fn pages_are_those_of_the_address_space() {
        let [right, left, near] = touched(0, 0).pieces(0x1f00, 3 * 4096);
        assert_eq!((right.range, left.range, near.range), (0x100..3 * 4096, 0..0, 0..0x100));
    }

    #[test]
    fn every_order_covers_every_byte_once() {
        let orders = [0, 1, 4095, 4096, 50_000, usize::MAX]
            .into_iter()
            .flat_map(|at| [0, 1, 2, 1000, usize::MAX].map(|radius| touched(at, radius)))
            .chain([Order::Straight, Order::Reversed]);
        for order in orders {
            for (start, len) in
                [(0, 0), (1, 1), (4095, 2), (4096, 4096), (0x1234, 65_536), (0x1000, 100_001)]
            {
                let mut ranges = order.pieces(start, len).map(|piece| piece.range);
                ranges.sort_by_key(|range| (range.start, range.end));
                let mut next = 0;
                for range in ranges.iter().filter(|range| !range.is_empty()) {
                    assert_eq!(range.start, next, "{order:?} {start:#x} {len}");
                    next = range.end;
                }
                assert_eq!(next, len, "{order:?} {start:#x} {len}");
            }
        }
    }
}
