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
        /// So many of them are to be taken, from its start, from what the kernel has zeroed,
        /// before anybody gets the file. [`Book::note_filled`](super::Book::note_filled) wants to
        /// know how many it were.
        fill: Pages,
    },
    /// Rename the file to where [`Book::place`](super::Book::place) says.
    Move(BlockId),
    /// The same of one in its borrower's hands, whose name is to say for how long its content is
    /// kept. Where that fails nothing but that is lost: tell
    /// [`Book::mark_failed`](super::Book::mark_failed).
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
    /// Unlink the file with all that it has: nobody can tell who reaches it, and whoever does keeps
    /// its pages, which the kernel frees with the last of them. The book has forgotten the block.
    Unlink(BlockId),
}

impl Effect {
    /// The block whose file it is about.
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
