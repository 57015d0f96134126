// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations one by one.
//!
//! What e2e and `tests/lending` show of whole daemons is this code, too. Here is what they cannot
//! hold still: which look it was that ended a loan, and what waits in whose lane.

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
use book::{Asked, Refusal, Who};
use linux::Mapping;
use rustix::fs::{FallocateFlags, fallocate};
use units::{BlockId, LeaseId, Node, PageSize, Pages, Uid};
use wire::LendRequest;

use super::Granted;
use super::testkit::{BORROWER, Bed, HERE, PATIENCE, SIZE, by_memory, map, owned, pages};

fn lease_of(granted: &Granted) -> LeaseId {
    granted.handover.loan.lease
}

fn block_of(granted: &Granted) -> BlockId {
    granted.handover.loan.parts[0].block
}
