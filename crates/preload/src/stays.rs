// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of private memory stays with this process at a fork, because the program says so
//! (`MADV_DONTFORK`).
//!
//! It is remembered as parts of files, and so goes where the memory goes.

use crate::maps::{self, Piece};
use crate::private::Range;
use crate::raw::{self, Errno, File};

/// A part of a file that stays.
#[derive(Debug, Clone, Copy)]
struct Stay {
    file: (u64, u64),
    from: u64,
    to: u64,
}

impl Stay {
    fn has(&self, piece: &Piece, offset: u64) -> bool {
        self.file == (piece.device, piece.inode) && self.from <= offset && offset < self.to
    }
}

/// All such parts.
#[derive(Debug)]
pub(crate) struct Stays(Vec<Stay>);

impl Stays {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Whether a piece of private memory stays.
    pub(crate) fn has(&self, piece: &Piece) -> bool {
        self.0.iter().any(|stay| stay.has(piece, piece.offset))
    }

    /// A mapping of private memory stays.
    pub(crate) fn add(&mut self, piece: &Piece) {
        let (from, to) = (piece.offset, piece.offset + (piece.end - piece.start) as u64);
        self.0.push(Stay { file: (piece.device, piece.inode), from, to });
    }

    /// A file is lent anew: what was said of its inode was said of another.
    pub(crate) fn is_new(&mut self, file: File) {
        self.0.retain(|stay| stay.file != (file.device, file.inode));
    }

    /// Cuts a range where the one half stays and the other does not.
    pub(crate) fn runs(&self, range: Range) -> Vec<(Range, bool)> {
        let Range { piece, page } = range;
        let mut cuts = vec![piece.start, piece.end];
        for stay in self.0.iter().filter(|stay| stay.file == (piece.device, piece.inode)) {
            for offset in [stay.from, stay.to] {
                let ahead =
                    usize::try_from(offset.saturating_sub(piece.offset)).unwrap_or(usize::MAX);
                cuts.push(piece.start.saturating_add(ahead).min(piece.end));
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        let ends = cuts.windows(2);
        ends.filter_map(|ends| {
            let piece = maps::cut(piece, ends[0], ends[1])?;
            Some((Range { piece, page }, self.has(&piece)))
        })
        .collect()
    }

    /// A range stays from now on, or does not.
    ///
    /// # Errors
    /// `EINVAL` where it ends within a page.
    pub(crate) fn set(&mut self, range: Range, stays: bool) -> raw::Result<()> {
        for (run, stays_now) in self.runs(range) {
            if stays_now == stays {
                continue;
            }
            let Piece { start, end, device, inode, offset, .. } = run.piece;
            if !start.is_multiple_of(run.page) || !end.is_multiple_of(run.page) {
                return Err(Errno(libc::EINVAL));
            }
            let (from, to) = (offset, offset + run.bytes() as u64);
            if stays {
                self.0.push(Stay { file: (device, inode), from, to });
                continue;
            }
            let old = std::mem::take(&mut self.0);
            for stay in old {
                if stay.file != (device, inode) || stay.to <= from || to <= stay.from {
                    self.0.push(stay);
                    continue;
                }
                if stay.from < from {
                    self.0.push(Stay { to: from, ..stay });
                }
                if to < stay.to {
                    self.0.push(Stay { from: to, ..stay });
                }
            }
        }
        Ok(())
    }

    /// In a child: what it has is the kernel's own private memory, or nothing.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
