// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns the daemon's values into replies.

use std::os::fd::OwnedFd;
use std::path::Path;

use book::{Asked, HeldByName, LoanPart, Refusal};
use wire::{Error, Job, Lent, LentPart, NamedLoan};

use crate::ops::{Handover, Lease, Shell, TakenJob, waits};

/// A loan and its descriptors: the lease, then one per part. A loan by name has a path instead.
pub(super) fn lent(shell: &Shell, lent: waits::HeldLoan) -> (Lent, Vec<OwnedFd>) {
    let (held, ready, kept, found) = match lent {
        waits::HeldLoan::Descriptors(handover) => return handed_over(handover),
        waits::HeldLoan::Named { held, ready, kept } => {
            let ready = ready.bytes(held.page_size);
            (held, ready, kept, false)
        }
        waits::HeldLoan::Found(held) => {
            let ready = shell.memory_of(held.block, held.page_size).min(held.bytes());
            (held, ready, false, true)
        }
    };
    let part = LentPart { fd: None, node: held.node, bytes: held.bytes(), ready_bytes: ready };
    let reply = Lent {
        lease_fd: None,
        lease: held.lease,
        page_size: held.page_size,
        kept,
        parts: vec![part],
        path: Some(path(shell, &held)),
        found,
    };
    (reply, Vec::new())
}

fn handed_over(handover: Handover) -> (Lent, Vec<OwnedFd>) {
    let Handover { loan, lease, blocks } = handover;
    let lease = match lease {
        Lease::Descriptor(lease) => Some(lease),
        Lease::Name => None,
    };
    let part = |(fd, part): (u32, &LoanPart)| LentPart {
        fd: Some(fd),
        node: part.node,
        bytes: part.pages.bytes(loan.page_size),
        ready_bytes: part.ready.bytes(loan.page_size),
    };
    let reply = Lent {
        lease_fd: lease.as_ref().map(|_| 0),
        lease: loan.lease,
        page_size: loan.page_size,
        kept: loan.kept,
        parts: (1..).zip(&loan.parts).map(part).collect(),
        path: None,
        found: false,
    };
    (reply, lease.into_iter().chain(blocks).collect())
}

/// A loan by name, as it is listed. The path of a pending loan's file is withheld.
pub(super) fn listed(shell: &Shell, loan: &HeldByName) -> NamedLoan {
    let path = if loan.is_pending { String::new() } else { path(shell, loan) };
    NamedLoan { path, ..loan.listed() }
}

fn path(shell: &Shell, loan: &HeldByName) -> String {
    let path = shell.path_of_loan(loan);
    path.as_deref().map(Path::to_string_lossy).unwrap_or_default().into_owned()
}

/// Why a loan was refused, to its borrower.
pub(super) fn refusal(shell: &Shell, asked: &Asked, refusal: &Refusal) -> Error {
    let (request, book) = (&asked.request, shell.book());
    let asked_bytes = request.bytes;
    let name = || request.name().map(ToString::to_string).unwrap_or_default();
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
        &Refusal::Quota { held: held_bytes, quota: quota_bytes } => {
            Error::QuotaExceeded { uid: asked.account, held_bytes, quota_bytes, asked_bytes }
        }
        &Refusal::ScopeQuota { held: held_bytes, quota: quota_bytes } => {
            let scope = request.name().and_then(|name| name.tenant()).unwrap_or_default();
            let scope = scope.to_owned();
            Error::ScopeQuotaExceeded { scope, held_bytes, quota_bytes, asked_bytes }
        }
        &Refusal::NotEnough { page_size, ready, free, left_free, in_use } => Error::NotEnough {
            asked_bytes,
            page_size,
            ready_bytes: ready,
            free_bytes: free,
            left_free_bytes: left_free,
            used_bytes: in_use,
        },
        Refusal::OwnerDraining => {
            Error::Failed { what: "the owner's content is draining".to_owned() }
        }
        Refusal::NameTaken => match request.name().and_then(|name| book.named(name)) {
            Some(there) => Error::NameTaken {
                name: name(),
                bytes: there.bytes(),
                page_size: there.page_size,
                node: there.node,
                uid: there.uid,
            },
            // It has ended since.
            None => Error::NameBusy { name: name() },
        },
        Refusal::NameBusy => Error::NameBusy { name: name() },
        Refusal::TooManyNames => {
            let most = asked.named.as_ref().map_or(0, |named| named.most as u64);
            Error::TooManyNames { most }
        }
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
