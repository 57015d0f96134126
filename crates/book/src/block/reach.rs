// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who can reach a block's memory, and what of that lets it be cleared where it lies.

use crate::config::Recycle;

/// The proof that a block is free: no other process has it open, maps it, pins a page of it or is
/// about to open it. The shell implements this trait for the results of its kernel probes.
pub trait Proof {}

/// The knowledge that no process has a block. A [`Proof`] makes it.
///
/// Not `Clone`: it is spent by the move that relies on it.
#[derive(Debug, PartialEq, Eq)]
pub struct Unheld(());

impl Unheld {
    /// Spends the proof.
    #[must_use]
    pub fn by(proof: impl Proof) -> Self {
        drop(proof);
        Self(())
    }
}

/// Whether a process other than the daemon can still reach a block's memory, as proven by the
/// kernel.
#[derive(Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nobody.
    Nobody(Unheld),
    /// The daemon's descriptor is the only one, and no mapping of the file exists. Either the
    /// kernel cannot show pins, or a process has a name of the file (`O_PATH`).
    Sole,
    /// Another descriptor exists.
    Shared,
    /// Another mapping exists.
    Mapped,
    /// Pages of it are pinned: what I/O began on them is not over.
    Pinned,
    /// No process has it, but some pages have a memory error: it is never lent again. Given back,
    /// those pages stay with the kernel and the others are free.
    Poisoned,
    /// No process has it, but its borrower put pages behind the end of the file. The shell has
    /// truncated the file, and the kernel has all of its pages.
    Altered,
    /// No process has it, but a watch, a lock or a reference hangs on the file's inode. It would
    /// outlive the loan.
    Marked,
    /// This kernel cannot tell; only the kernel's own isolation (`fresh`) is safe. A borrower can
    /// bring about every other answer, and never this one.
    Unknown,
}

/// By what a draining block is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum HeldBy {
    /// A process has a descriptor, or the block has yet to be looked at.
    #[default]
    Open,
    /// A mapping.
    Mapped,
    /// Pinned pages.
    Pinned,
}

/// Why a block may be cleared where it lies: nothing else lets it.
pub(super) enum InPlacePermit {
    /// It is nobody's.
    Proven,
    /// The file is closed and unmapped everywhere, and the operator has said that borrowers unpin
    /// their memory before they return it.
    Trusted,
}

impl InPlacePermit {
    /// `is_named`: an agent chooses the users of loans by name, and the operator's word covers
    /// borrowers only.
    pub(super) fn from_reach(reach: &Reach, recycle: Recycle, is_named: bool) -> Option<Self> {
        match (reach, recycle) {
            (Reach::Nobody(Unheld(())), Recycle::Auto | Recycle::InPlace) => Some(Self::Proven),
            (Reach::Sole, Recycle::InPlace) if !is_named => Some(Self::Trusted),
            _ => None,
        }
    }
}
