// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns the daemon's values into replies.

use std::os::fd::OwnedFd;

use book::{Asked, Book, LoanPart, Refusal};
use wire::{Error, Job, Lent, LentPart};

use crate::ops::{Handover, Lease, TakenJob, waits};

/// A loan and its descriptors: the lease, then one per part.
///
/// # Errors
/// A loan by name, which has no descriptors.
pub(super) fn lent(lent: waits::NamedLoanStep) -> Result<(Lent, Vec<OwnedFd>), Error> {
    let waits::NamedLoanStep::Descriptors(Handover {
        loan,
        lease: Lease::Descriptor(lease),
        blocks,
    }) = lent
    else {
        return Err(Error::Failed { what: "this loan has a name".to_owned() });
    };
    let part = |(fd, part): (u32, &LoanPart)| LentPart {
        fd,
        node: part.node,
        bytes: part.pages.bytes(loan.page_size),
        ready_bytes: part.ready.bytes(loan.page_size),
    };
    let reply = Lent {
        lease_fd: 0,
        lease: loan.lease,
        page_size: loan.page_size,
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
            let any = || "pages of any size".to_owned();
            let pages = request.page_size.map_or_else(any, |size| format!("{size} pages"));
            let node = request.node.map_or("any node".to_owned(), |n| format!("node {n}"));
            let pools: Vec<_> = book.pool_keys().map(|pool| pool.to_string()).collect();
            let configured = if pools.is_empty() { "none".to_owned() } else { pools.join(", ") };
            Error::NoSuchPool { wanted: format!("{pages} on {node}"), configured }
        }
        Refusal::Quota { held, quota } => Error::QuotaExceeded {
            uid: asked.account,
            held_bytes: *held,
            quota_bytes: *quota,
            asked_bytes: request.bytes,
        },
        Refusal::NotEnough { page_size, ready, free } => Error::NotEnough {
            asked_bytes: request.bytes,
            page_size: *page_size,
            ready_bytes: *ready,
            free_bytes: *free,
        },
        Refusal::OwnerDraining => {
            Error::Failed { what: "the owner's content is draining".to_owned() }
        }
        Refusal::NameTaken
        | Refusal::NameBusy
        | Refusal::TooManyNames
        | Refusal::ScopeQuota { .. } => Error::Failed { what: "this loan has no name".to_owned() },
    }
}

/// Work and its descriptors: the block's file, if it is on one, and the job.
pub(super) fn job(taken: TakenJob) -> (Job, Vec<OwnedFd>) {
    let TakenJob { order, block, job, .. } = taken;
    let reply = Job {
        block_fd: block.as_ref().map(|_| 0),
        job_fd: u32::from(block.is_some()),
        job: order.job,
        node: order.pool.node,
        page_size: order.pool.page_size,
        pages: order.pages,
        first_page: order.first,
        by: order.by(),
    };
    (reply, block.into_iter().chain([job]).collect())
}
