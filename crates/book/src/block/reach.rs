// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who can reach a block's memory, and what of that lets it be cleared where it lies.

use crate::config::Recycle;

/// What shows that a block is nobody's: that nobody has it open, maps it, pins a page of it or is
/// about to open it. Implemented by the shell, for what its looks at the kernel make and nothing
/// else can.
pub trait Proof {}

/// The knowledge that a block is nobody's, which a [`Proof`] makes.
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

/// Whether anybody but the daemon can still reach a block's memory, as proven by the kernel.
#[derive(Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nobody.
    Nobody(Unheld),
    /// The daemon's descriptor is the only one, and nothing maps the file. Whether its pages are
    /// pinned cannot be told here, or somebody has a name of it (`O_PATH`).
    Sole,
    /// Another descriptor exists.
    Shared,
    /// Another mapping exists.
    Mapped,
    /// Pages of it are pinned: what I/O began on them is not over.
    Pinned,
    /// Nobody, but pages of it have a memory error: nobody may get it again. Given back, those stay
    /// with the kernel and the others are free.
    Poisoned,
    /// Nobody, but its borrower put pages behind the end of the file. The shell has truncated the
    /// file, and the kernel has all of its pages.
    Altered,
    /// Nobody, but a watch, a lock or a reference hangs on the file's inode. It would outlive the
    /// loan.
    Marked,
    /// This kernel cannot tell; only the kernel's own isolation (`fresh`) is safe. A borrower can
    /// bring about every other answer, and never this one.
    Unknown,
}

/// By what a lingering block is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Hold {
    /// A descriptor; or nobody has looked yet.
    #[default]
    Open,
    /// A mapping.
    Mapped,
    /// Pinned pages.
    Pinned,
}

/// Why a block may be cleared where it lies: nothing else lets it.
pub(super) enum InPlace {
    /// It is nobody's.
    Proven,
    /// Nobody has it open or maps it, and the operator has said that nobody pins what is returned.
    Trusted,
}

impl InPlace {
    /// `is_named`: a loan by name goes to whoever the agent gives it to, which the operator's word
    /// for borrowers is not about.
    pub(super) fn of(reach: &Reach, recycle: Recycle, is_named: bool) -> Option<Self> {
        match (reach, recycle) {
            (Reach::Nobody(Unheld(())), Recycle::Auto | Recycle::InPlace) => Some(Self::Proven),
            (Reach::Sole, Recycle::InPlace) if !is_named => Some(Self::Trusted),
            _ => None,
        }
    }
}
