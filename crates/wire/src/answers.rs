// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What methods answer.

use serde::{Deserialize, Serialize};
use zlink::introspect::{CustomType, Type};

use crate::{BlockHolder, Level, StateName};

/// Who holds blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Type)]
pub struct Holders {
    /// Each process, by lease.
    pub holders: Vec<BlockHolder>,
    /// Whether every process was looked at; the search ends after some seconds.
    pub complete: bool,
}

/// What a daemon that is drained has given back, and what it still has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Type)]
pub struct Drained {
    /// Bytes given back to the kernel.
    pub given_back_bytes: u64,
    /// Bytes in clients' hands: they go back when they are returned.
    pub lent_bytes: u64,
    /// Bytes whose content waits for its owner: they go back when its time is over.
    pub kept_bytes: u64,
    /// Bytes returned but still reachable: they go back when they are not.
    pub lingering_bytes: u64,
}

/// What was taken from its borrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct Revoked {
    /// Bytes of its files, all of which go back to the kernel; pinned ones when they are unpinned.
    pub bytes: u64,
}

/// What a watch reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct WatchReply {
    /// The levels that changed, or that fell below the threshold.
    pub levels: Vec<Level>,
}

/// One block of a loan, in the order in which the loan is mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct LentPart {
    /// Its descriptor's index among those of the reply.
    pub fd: u32,
    /// NUMA node.
    pub node: u32,
    /// Its length in bytes.
    pub bytes: u64,
    /// So many of them, from its start, were ready; the client's faults fill the rest.
    pub ready_bytes: u64,
}

/// A loan granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct Lent {
    /// The lease's descriptor: its index among those of the reply.
    pub lease_fd: u32,
    /// The lease: it lives exactly as long as its descriptor.
    pub lease: u64,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Whether the content is what this owner left.
    pub kept: bool,
    /// The blocks.
    pub parts: Vec<LentPart>,
}

/// How a worker is to do a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, CustomType)]
#[serde(rename_all = "lowercase")]
#[zlink(rename_all = "lowercase")]
pub enum ZeroBy {
    /// `fallocate` on the block's node: the kernel makes and zeroes the pages.
    Allocate,
    /// Map the file and clear it.
    Clear,
    /// There is no file: zero up to `pages` pages of the kernel's own pool by `HUGEPAGECTL_ZERO` on
    /// `/dev/hugepagectl`, which the worker opens itself, and report how many it were.
    Kernel,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct Job {
    /// The block's file: its index among the reply's descriptors. None where `by` is `kernel`.
    pub block_fd: Option<u32>,
    /// The job's descriptor, which must stay open while the job runs: its index.
    pub job_fd: u32,
    /// The job's number.
    pub job: u64,
    /// The node on which its pages must lie.
    pub node: u32,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Pages of the block, or so many of the kernel's pool.
    pub pages: u64,
    /// Pages from the start that are done already; 0 where `by` is `kernel`.
    pub first_page: u64,
    /// How.
    pub by: ZeroBy,
}

/// What became of a finished block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct Finished {
    /// The state it is in now.
    pub state: StateName,
}

/// Nothing but that it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Configured {}

/// What was given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct GivenBack {
    /// Bytes.
    pub bytes: u64,
}
