// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Borrowed memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use units::{Bytes, LeaseId, PageSize};
use wire::{Lent, LentPart};

use crate::error::{Error, Result};
use crate::mapped::MappedLoan;

/// A loan. It ends when this, or the [`MappedLoan`] made of it, is dropped and no copy of its
/// descriptors or mappings is left in any process. A loan by name lasts until the name is
/// returned; it has a path instead of descriptors.
#[derive(Debug)]
pub struct Loan {
    lease: Option<OwnedFd>,
    /// The files of `lent.parts`. None for a loan by name.
    files: Vec<OwnedFd>,
    lent: Lent,
}

impl Loan {
    pub(crate) fn from_reply(lent: Lent, fds: Vec<OwnedFd>) -> Result<Self> {
        let indices = || lent.lease_fd.into_iter().chain(lent.parts.iter().filter_map(|p| p.fd));
        let (got, expected) = (fds.len(), indices().count());
        let mut fds: Vec<_> = fds.into_iter().map(Some).collect();
        let mut take = |index: u32| fds.get_mut(index as usize).and_then(Option::take);
        let taken: Option<Vec<_>> = indices().map(&mut take).collect();
        let mut files = taken.ok_or(Error::Descriptors { method: "Lend", got, expected })?;
        let lease = lent.lease_fd.map(|_| files.remove(0));
        Ok(Self { lease, files, lent })
    }

    /// The lease's number in the daemon's reports.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.lent.lease
    }

    /// The file of a loan by name, in the daemon's mount namespace. The path is good until the name
    /// is returned.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.lent.path.as_deref()
    }

    /// Whether a loan of that name existed already.
    #[must_use]
    pub fn was_found(&self) -> bool {
        self.lent.found
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.lent.parts.iter().map(|part| part.bytes).sum()
    }

    /// Ready bytes; the program's own faults fill the rest.
    #[must_use]
    pub fn ready_bytes(&self) -> Bytes {
        self.lent.parts.iter().map(|part| part.ready_bytes).sum()
    }

    /// The size of its pages.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.lent.page_size
    }

    /// Whether the content is what this owner left before; zero otherwise.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.lent.kept
    }

    /// The lease's descriptor: hand a copy to a process that must keep the loan alive. `None` for a
    /// loan by name.
    #[must_use]
    pub fn lease(&self) -> Option<BorrowedFd<'_>> {
        self.lease.as_ref().map(AsFd::as_fd)
    }

    /// Its blocks in order: descriptor and description. Map them `MAP_SHARED`: a private mapping
    /// takes a second page and copies. For a loan by name, open its path instead.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (BorrowedFd<'_>, &LentPart)> {
        self.files.iter().map(AsFd::as_fd).zip(&self.lent.parts)
    }

    /// Maps all of it as one range, readable and writable. The mapping holds the loan.
    ///
    /// Costs page tables only for the ready part.
    ///
    /// # Errors
    /// [`Error::Kernel`], as when the address space is full, or `ENOMEM` when the kernel cannot
    /// reserve the pages of an unbacked part. The loan is returned then.
    pub fn map(self) -> Result<MappedLoan> {
        MappedLoan::new(self)
    }

    /// The same range, without a hold on the loan.
    pub(crate) fn map_parts(&self) -> Result<linux::Mapping> {
        let row: Vec<_> = self.parts().map(|(fd, part)| (fd, part.bytes.0)).collect();
        Ok(linux::Mapping::map_row(&row, self.page_size())?)
    }

    /// Its descriptors: the lease, then the blocks in order. Empty for a loan by name.
    #[must_use]
    pub fn into_fds(self) -> (Option<OwnedFd>, Vec<OwnedFd>) {
        (self.lease, self.files)
    }
}

#[cfg(test)]
mod tests {
    use units::Node;

    use super::*;

    #[test]
    fn answer_with_too_few_descriptors_names_the_expected_number() {
        let part = |fd| LentPart {
            fd: Some(fd),
            node: Node(0),
            bytes: Bytes(1 << 21),
            ready_bytes: Bytes(0),
        };
        let reply = Lent {
            lease_fd: Some(0),
            lease: LeaseId(1),
            page_size: PageSize::MIB_2,
            kept: false,
            parts: vec![part(1), part(2)],
            path: None,
            found: false,
        };
        let fds = [c"lease", c"block"].map(|name| {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            rustix::fs::memfd_create(name, flags).expect("a descriptor")
        });
        let error = Loan::from_reply(reply, fds.into()).expect_err("a block has no descriptor");
        assert!(matches!(error, Error::Descriptors { got: 2, expected: 3, .. }), "{error}");
    }
}
