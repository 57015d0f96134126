// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Borrowed memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use units::{Bytes, LeaseId, PageSize};
use wire::{Lent, LentPart};

use crate::error::{Error, Result};
use crate::mapped::MappedLoan;

/// A loan. It ends when this, or the [`MappedLoan`] made of it, is dropped and no copy of its
/// descriptors or mappings is left in any process.
#[derive(Debug)]
pub struct Loan {
    lease: OwnedFd,
    parts: Vec<(OwnedFd, LentPart)>,
    page_size: PageSize,
    kept: bool,
    id: LeaseId,
}

impl Loan {
    pub(crate) fn from_reply(reply: Lent, fds: Vec<OwnedFd>) -> Result<Self> {
        let (got, expected) = (fds.len(), 1 + reply.parts.len());
        let wrong = || Error::Descriptors { method: "Lend", got, expected };
        let mut fds: Vec<_> = fds.into_iter().map(Some).collect();
        let mut take =
            |index: u32| fds.get_mut(index as usize).and_then(Option::take).ok_or_else(wrong);
        let lease = take(reply.lease_fd)?;
        let parts: Result<Vec<_>> =
            reply.parts.into_iter().map(|part| Ok((take(part.fd)?, part))).collect();
        let Lent { page_size, kept, lease: id, .. } = reply;
        Ok(Self { lease, parts: parts?, page_size, kept, id })
    }

    /// The lease's number in the daemon's reports.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.parts.iter().map(|(_, part)| part.bytes).sum()
    }

    /// Ready bytes; the program's own faults fill the rest.
    #[must_use]
    pub fn ready_bytes(&self) -> Bytes {
        self.parts.iter().map(|(_, part)| part.ready_bytes).sum()
    }

    /// The size of its pages.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Whether the content is what this owner left before; zero otherwise.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// The lease's descriptor: hand a copy to a process that must keep the loan alive.
    #[must_use]
    pub fn lease(&self) -> BorrowedFd<'_> {
        self.lease.as_fd()
    }

    /// Its blocks in order: descriptor and description. Map them `MAP_SHARED`: a private mapping
    /// takes a second page and copies.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (BorrowedFd<'_>, &LentPart)> {
        self.parts.iter().map(|(fd, part)| (fd.as_fd(), part))
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
        let row: Vec<_> = self.parts.iter().map(|(fd, part)| (fd.as_fd(), part.bytes.0)).collect();
        Ok(linux::Mapping::map_row(&row, self.page_size)?)
    }

    /// Its descriptors: the lease, then the blocks in order.
    #[must_use]
    pub fn into_fds(self) -> (OwnedFd, Vec<OwnedFd>) {
        (self.lease, self.parts.into_iter().map(|(fd, _)| fd).collect())
    }
}

#[cfg(test)]
mod tests {
    use units::Node;

    use super::*;

    #[test]
    fn answer_with_too_few_descriptors_names_the_expected_number() {
        let part =
            |fd| LentPart { fd, node: Node(0), bytes: Bytes(1 << 21), ready_bytes: Bytes(0) };
        let reply = Lent {
            lease_fd: 0,
            lease: LeaseId(1),
            page_size: PageSize::MIB_2,
            kept: false,
            parts: vec![part(1), part(2)],
        };
        let fds = [c"lease", c"block"].map(|name| {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            rustix::fs::memfd_create(name, flags).expect("a descriptor")
        });
        let error = Loan::from_reply(reply, fds.into()).expect_err("a block has no descriptor");
        assert!(matches!(error, Error::Descriptors { got: 2, expected: 3, .. }), "{error}");
    }
}
