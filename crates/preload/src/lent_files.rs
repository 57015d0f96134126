// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which files are lent, and on which node their pages lie: what an `mbind` and a seal need.
//!
//! A file is named by its device and inode. Where it is mapped, and whether it still is, the
//! kernel says ([`crate::maps`]).

use std::os::fd::AsRawFd;

use client::Loan;

use crate::maps;
use crate::raw::{self, File, Mapping};
use crate::sharing;

/// A lent file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LentFile {
    pub(crate) file: File,
    pub(crate) node: u32,
    pub(crate) page: usize,
    /// Whether the program asked for private memory.
    pub(crate) private: bool,
    /// For a memfd: how it was made, and its seals.
    pub(crate) memfd: Option<Memfd>,
    generation: u32,
}

/// How to make a memfd of the kernel's in its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memfd {
    pub(crate) flags: libc::c_uint,
    pub(crate) seals: libc::c_int,
}

impl LentFile {
    /// Whether another process may have it.
    pub(crate) fn is_shared(&self) -> bool {
        !self.private && self.generation != sharing::generation()
    }
}

/// The lent files of this process. The list forgets unmapped files when it has doubled.
#[derive(Debug)]
pub(crate) struct LentFiles {
    files: Vec<LentFile>,
    next_look: usize,
}

impl LentFiles {
    pub(crate) const fn new() -> Self {
        Self { files: Vec::new(), next_look: 1024 }
    }

    /// Remembers the files of a loan.
    pub(crate) fn add(
        &mut self,
        loan: &Loan,
        page: usize,
        private: bool,
        memfd: Option<Memfd>,
    ) -> raw::Result<()> {
        self.forget_gone();
        for (fd, part) in loan.parts() {
            let file = raw::file(fd.as_raw_fd())?;
            self.forget(file);
            let generation = sharing::generation();
            self.files.push(LentFile { file, node: part.node.0, page, private, memfd, generation });
        }
        Ok(())
    }

    /// An inode number that is given anew is another file's.
    pub(crate) fn forget(&mut self, file: File) {
        if let Some(at) = self.files.iter().rposition(|lent| lent.file.is(file)) {
            self.files.swap_remove(at);
        }
    }

    /// The lent file that is mapped there.
    pub(crate) fn of(&self, mapping: &Mapping) -> Option<LentFile> {
        self.files.iter().copied().find(|lent| mapping.is_of(lent.file))
    }

    /// The lent file behind a descriptor.
    pub(crate) fn find(&self, file: File) -> Option<LentFile> {
        self.files.iter().copied().find(|lent| lent.file.is(file))
    }

    fn forget_gone(&mut self) {
        if self.files.len() < self.next_look {
            return;
        }
        let mapped = maps::mappings(0, usize::MAX).unwrap_or_default();
        if !mapped.is_empty() {
            // Files without a mapping are forgotten too: `mbind` is about mappings.
            let is_there = |lent: &LentFile| mapped.iter().any(|one| one.is_of(lent.file));
            self.files.retain(|lent| lent.memfd.is_some_and(|m| m.seals > 1) || is_there(lent));
        }
        self.next_look = (self.files.len() * 2).max(1024);
    }
}
