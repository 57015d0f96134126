// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proof that a file is nobody's.
//!
//! # Theory of operation
//!
//! Whoever has a file open or maps it has a description of it, and each description holds a
//! reference of the file's directory entry: from the permission check of its `open` on, until its
//! last mapping and descriptor are gone. So does a descriptor opened with `O_PATH`. A count of
//! these at rest means that the caller's description is the only one, and that nobody is about to
//! get another; and as nobody but the caller may open the file, it stays so. So no new pin can be
//! made, and counts of pages that are at rest *after that* mean that none is left.
//!
//! The kernel takes the last reference of a description, by which everything that was done with it
//! comes before, ahead of that of the directory entry (`__fput`). So who sees the second count at
//! rest sees every pin.
//!
//! The write lease (fcntl(2)) says the same of descriptions, and waits for `file_rwsem`, which
//! everybody who reads `/proc/locks` holds: 60 threads that did, with little CPU time, held up a
//! lease for 3 s. What is read here waits for nobody.

use std::os::fd::AsFd;

use linux::BlockFile;

use crate::measure::Rest;
use crate::probe::{PinProbe, References, Result};

/// So often the name of a file is looked at: who looks up a file's length by its path, for one,
/// has it for a microsecond.
const NAME_LOOKS: u32 = 8;

/// The knowledge that nobody has a file open, maps it, pins a page of it or is about to open it.
///
/// Only [`PinProbe::prove`] makes one. True for as long as nobody is given access to the file.
#[derive(Debug)]
#[must_use]
pub struct Unheld(());

/// Who holds a file.
#[derive(Debug)]
pub enum Holder {
    /// Nobody.
    Nobody(Unheld),
    /// Nobody has it open, maps it or pins a page; but somebody has a descriptor of its name
    /// (`O_PATH`), or is about to open it.
    Named,
    /// Somebody pins so many of its pages, or the kernel has them in hand for a moment.
    Pinned(u32),
    /// Somebody maps it.
    Mapped,
    /// Somebody has it open.
    Open,
    /// Nobody has it open, maps it or pins a page; but so many have a memory error.
    Poisoned(u32),
    /// Not all pages were found: nothing is known.
    Unknown,
}

/// Who has a file open, besides the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// Nobody, and nobody is about to.
    Nobody,
    /// Nobody, but somebody has a descriptor of its name (`O_PATH`), or is about to open it.
    Named,
    /// Somebody has it open, or maps it.
    Open,
}

impl PinProbe {
    /// Asks who holds `file`, by the one description of the caller's. 0.15 us for each of its
    /// pages, and 3 us. Waits for nobody.
    ///
    /// Nobody but the caller may have access to the file: what is found of one that others may open
    /// is over at once.
    ///
    /// # Errors
    /// Those of `fstat`, and those of [`look`](Self::look).
    pub fn prove(&self, file: &BlockFile, rest: Rest) -> Result<Holder> {
        // Before the pages: who has no description any more makes no pin.
        let before = self.look_at_name(file, rest)?;
        if before.open != rest.open() {
            return Ok(if before.mapped { Holder::Mapped } else { Holder::Open });
        }
        let Ok(pages) = u32::try_from(file.len()? / rest.page().bytes()) else {
            return Ok(Holder::Unknown);
        };
        let seen = self.look(file.as_fd(), pages, rest)?;
        if u64::from(seen.pages) * rest.page().bytes() != file.allocated_bytes()? {
            return Ok(Holder::Unknown);
        }
        let is_named = |seen: &References| seen.names != rest.names();
        Ok(match seen {
            // The caller's own mappings, too.
            _ if seen.mapped => Holder::Mapped,
            // Who was about to open it has done so.
            _ if seen.open != rest.open() => Holder::Open,
            _ if seen.held > 0 => Holder::Pinned(seen.held),
            _ if seen.poisoned > 0 => Holder::Poisoned(seen.poisoned),
            _ if is_named(&before) || is_named(&seen) => Holder::Named,
            _ => Holder::Nobody(Unheld(())),
        })
    }

    /// Asks who has `file` open, by the one description of the caller's; the caller may map it.
    /// 1 us. Waits for nobody.
    ///
    /// # Errors
    /// As [`prove`](Self::prove).
    pub fn opened(&self, file: &BlockFile, rest: Rest) -> Result<Opened> {
        let seen = self.look_at_name(file, rest)?;
        Ok(if seen.open != rest.open() {
            Opened::Open
        } else if seen.names != rest.names() {
            Opened::Named
        } else {
            Opened::Nobody
        })
    }

    /// Looks at no page, again as long as somebody has only the name.
    fn look_at_name(&self, file: &BlockFile, rest: Rest) -> Result<References> {
        let mut seen = self.look(file.as_fd(), 0, rest)?;
        for _ in 1..NAME_LOOKS {
            if seen.open != rest.open() || seen.names == rest.names() {
                break;
            }
            std::thread::yield_now();
            seen = self.look(file.as_fd(), 0, rest)?;
        }
        Ok(seen)
    }
}
