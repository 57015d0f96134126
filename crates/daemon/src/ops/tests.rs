// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations one by one.
//!
//! e2e and `tests/lending` show this code, too, in whole daemons. Here are the parts that they
//! cannot hold still: which look ended a loan, and which task waits in which user queue.

mod effects;
mod files;
mod loans;
mod looking;
mod names;
mod observing;
mod returns;
mod starting;

use std::fs;
use std::time::Duration;

use book::block::{Reach, StateName};
use book::{Asked, Refusal, Requester};
use linux::Mapping;
use rustix::fs::{FallocateFlags, fallocate};
use units::{BlockId, LeaseId, Node, PageSize, Pages, Uid};
use wire::LendRequest;

use super::Granted;
use super::testkit::{BORROWER, Bed, HERE, SIZE, WAIT_TIMEOUT, by_memory, map, owned, pages};

fn lease_of(granted: &Granted) -> LeaseId {
    granted.handover.loan.lease
}

fn block_of(granted: &Granted) -> BlockId {
    granted.handover.loan.parts[0].block
}
