// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proof that a file is nobody's.
//!
//! # Theory of operation
//!
//! With the write lease held nobody has the file open or maps it, and nobody can begin to: so no
//! new pin can be made, and counts at rest mean that none is left. What is not excluded is
//! somebody who was allowed to open the file before access to it was taken away, and whose `open`
//! has yet to return: it could map, pin, unmap and close after the proof. From the permission check
//! on that call holds a reference of the directory entry, as does a descriptor opened with
//! `O_PATH`. So that count has to be at rest, too.

use std::os::fd::AsFd;

use linux::BlockFile;
use linux::exclusive::{Claim, claim};

use crate::measure::Rest;
use crate::probe::{PinProbe, Result};

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
    /// This kernel or file system grants no leases, or not all pages were found: nothing is known.
    Unknown,
}

impl PinProbe {
    /// Asks who holds `file`, by the one description of the caller's. 0.15 us for each of its
    /// pages, and 5 us; whoever opens the file meanwhile waits so long.
    ///
    /// # Errors
    /// [`Error::Linux`](crate::Error::Linux) as [`linux::exclusive::prove`], and those of
    /// [`look`](Self::look).
    pub fn prove(&self, file: &BlockFile, rest: Rest) -> Result<Holder> {
        let lease = match claim(file)? {
            Claim::Sole(lease) => lease,
            Claim::Unsupported => return Ok(Holder::Unknown),
            Claim::Shared => {
                let mapped = self.look(file.as_fd(), 0, rest)?.mapped;
                return Ok(if mapped { Holder::Mapped } else { Holder::Open });
            }
        };
        // Nobody can change it any more.
        let Ok(pages) = u32::try_from(file.len()? / rest.page().bytes()) else {
            return Ok(Holder::Unknown);
        };
        let mut seen = self.look(file.as_fd(), pages, rest)?;
        if u64::from(seen.pages) * rest.page().bytes() != file.allocated_bytes()? {
            return Ok(Holder::Unknown);
        }
        for _ in 1..NAME_LOOKS {
            if seen.names == rest.names() {
                break;
            }
            std::thread::yield_now();
            seen.names = self.look(file.as_fd(), 0, rest)?.names;
        }
        lease.give_back()?;
        Ok(match seen {
            // The lease does not see the caller's own mappings.
            _ if seen.mapped => Holder::Mapped,
            _ if seen.held > 0 => Holder::Pinned(seen.held),
            _ if seen.names != rest.names() => Holder::Named,
            _ => Holder::Nobody(Unheld(())),
        })
    }
}
