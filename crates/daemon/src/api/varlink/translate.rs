// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Between the interface's parameters and replies and what the daemon speaks of.
//!
//! Parameters come one by one and as plain numbers and texts: a value of another type would end the
//! connection, where a wrong one deserves an answer.

use std::os::fd::OwnedFd;
use std::time::Duration;

use book::{Asked, Book, LoanPart, Refusal};
use units::{Bytes, Node, Owner, PageSize, ParseError};
use wire::{Error, Hold, Job, LendRequest, Lent, LentPart};

use crate::ops::{Handover, Lease, Taken, waits};

/// The page size of so many bytes.
pub(super) fn page_size(bytes: Option<u64>) -> Result<Option<PageSize>, Error> {
    let check = |bytes| {
        PageSize::try_from(bytes).map_err(|e: ParseError| Error::bad_value("page_bytes", e))
    };
    bytes.map(check).transpose()
}

/// The parameters of `Lend`.
pub(super) struct LendParameters {
    pub(super) bytes: u64,
    pub(super) page_bytes: Option<u64>,
    pub(super) node: Option<u32>,
    pub(super) owner: Option<String>,
    pub(super) keep_seconds: Option<u64>,
    pub(super) single: Option<bool>,
    pub(super) held_by_memory: Option<bool>,
    pub(super) most_blocks: Option<u32>,
}

impl LendParameters {
    pub(super) fn request(self) -> Result<LendRequest, Error> {
        let owner: Option<Result<Owner, _>> = self.owner.map(|name| name.parse());
        Ok(LendRequest {
            bytes: Bytes(self.bytes),
            owner: owner.transpose().map_err(|e| Error::bad_value("owner", e))?,
            page_size: page_size(self.page_bytes)?,
            node: self.node.map(Node),
            keep: self.keep_seconds.map(Duration::from_secs),
            single: self.single.unwrap_or(false),
            whole: false,
            most_blocks: self.most_blocks,
            hold: if self.held_by_memory == Some(true) { Hold::Memory } else { Hold::Descriptor },
        })
    }
}

/// A loan and its descriptors: the lease, then one per part.
///
/// # Errors
/// A loan by name, which has no descriptors.
pub(super) fn lent(lent: waits::Lent) -> Result<(Lent, Vec<OwnedFd>), Error> {
    let waits::Lent::Descriptors(Handover { loan, lease: Lease::Descriptor(lease), blocks }) = lent
    else {
        return Err(Error::Failed { what: "this loan has a name".to_owned() });
    };
    let part = |(fd, part): (u32, &LoanPart)| LentPart {
        fd,
        node: part.node.0,
        bytes: part.pages.bytes(loan.page_size).0,
        ready_bytes: part.ready.bytes(loan.page_size).0,
    };
    let reply = Lent {
        lease_fd: 0,
        lease: loan.lease.0,
        page_bytes: loan.page_size.bytes(),
        kept: loan.kept,
        parts: (1..).zip(&loan.parts).map(part).collect(),
    };
    Ok((reply, std::iter::once(lease).chain(blocks).collect()))
}

/// Why a loan was refused, to its borrower.
pub(super) fn refusal(asked: &Asked, refusal: &Refusal, book: &Book) -> Error {
    let request = &asked.request;
    match refusal {
        Refusal::Size(error) => Error::bad_value("bytes", error),
        Refusal::NoSuchPool => {
            let size = request.page_size.map_or("any".to_owned(), |s| s.to_string());
            let node = request.node.map_or("any node".to_owned(), |n| format!("node {n}"));
            let pools: Vec<_> = book.pool_keys().map(|pool| pool.to_string()).collect();
            let configured = if pools.is_empty() { "none".to_owned() } else { pools.join(", ") };
            Error::NoSuchPool { wanted: format!("{size} pages on {node}"), configured }
        }
        Refusal::Quota { held, quota } => Error::QuotaExceeded {
            uid: asked.account.0,
            held_bytes: held.0,
            quota_bytes: quota.0,
            asked_bytes: request.bytes.0,
        },
        Refusal::NotEnough { page_size, ready, free } => Error::NotEnough {
            asked_bytes: request.bytes.0,
            page_bytes: page_size.bytes(),
            ready_bytes: ready.0,
            free_bytes: free.0,
        },
        Refusal::OwnerLingers => Error::Failed { what: "the owner's content lingers".to_owned() },
        Refusal::NameTaken
        | Refusal::NameBusy
        | Refusal::TooManyNames
        | Refusal::ScopeQuota { .. } => Error::Failed { what: "this loan has no name".to_owned() },
    }
}

/// Work and its descriptors: the block's file, if it is on one, and the job.
pub(super) fn job(taken: Taken) -> (Job, Vec<OwnedFd>) {
    let Taken { order, block, job, .. } = taken;
    let reply = Job {
        block_fd: block.as_ref().map(|_| 0),
        job_fd: u32::from(block.is_some()),
        job: order.job.0,
        node: order.pool.node.0,
        page_bytes: order.pool.page_size.bytes(),
        pages: order.pages.0,
        first_page: order.first.0,
        by: order.by(),
    };
    (reply, block.into_iter().chain([job]).collect())
}

/// As zlink wants an answer with descriptors.
pub(super) fn with_fds<T>(
    answer: Result<(T, Vec<OwnedFd>), Error>,
) -> (Result<T, Error>, Vec<OwnedFd>) {
    match answer {
        Ok((reply, fds)) => (Ok(reply), fds),
        Err(error) => (Err(error), Vec::new()),
    }
}
