// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What follows in the file system from what the book decides.

use units::{BlockId, Pages};

/// What the caller must do to the file system, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Make the file of a new block, of `pages` length and without memory, where
    /// [`Book::place`](super::Book::place) says.
    Create {
        /// The block.
        block: BlockId,
        /// Its length.
        pages: Pages,
        /// Take this number of pages, from the file's start, out of the kernel's zeroed pages,
        /// before the borrower gets the file. [`Book::record_filled`](super::Book::record_filled)
        /// expects the number taken.
        fill: Pages,
    },
    /// Rename the file to where [`Book::place`](super::Book::place) says.
    Move(BlockId),
    /// The same for a file in its borrower's hands: the new name says how long its content is kept.
    /// A failure loses only that: tell [`Book::mark_failed`](super::Book::mark_failed).
    Mark(BlockId),
    /// Change the file's length.
    Resize {
        /// The block.
        block: BlockId,
        /// Its new length.
        pages: Pages,
    },
    /// Truncate and unlink the file; the book has forgotten the block.
    Remove(BlockId),
    /// Unlink the file with all its pages: its users are unknown. They keep the pages, and the
    /// kernel frees them with the last user. The book has forgotten the block.
    Unlink(BlockId),
}

impl Effect {
    /// The block that owns the file.
    #[must_use]
    pub fn block(&self) -> BlockId {
        match self {
            Self::Create { block, .. }
            | Self::Move(block)
            | Self::Mark(block)
            | Self::Resize { block, .. }
            | Self::Remove(block)
            | Self::Unlink(block) => *block,
        }
    }
}
