// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What methods return.

use serde::{Deserialize, Serialize};
use units::{Bytes, JobId, Node, PageSize, Pages};

use crate::{BlockHolder, Level, StateName};

/// The processes that hold blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Holders {
    /// The processes, by lease.
    pub holders: Vec<BlockHolder>,
    /// Whether the daemon looked at every process in time.
    pub complete: bool,
}

/// What a drained daemon has given back, and what it still has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Drained {
    /// Given back to the kernel.
    pub released_bytes: Bytes,
    /// Lent. Goes back to the kernel when it is returned.
    pub lent_bytes: Bytes,
    /// Content that waits for its owner. Goes back when its time is over.
    pub kept_bytes: Bytes,
    /// Returned, and some process can still reach it. Goes back when none can.
    pub draining_bytes: Bytes,
}

/// The memory taken from its borrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// The size of its files. All of it goes back to the kernel, pinned pages when they are
    /// unpinned.
    pub bytes: Bytes,
}

/// What a watch reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchReply {
    /// The levels that changed, or that fell below the threshold.
    pub levels: Vec<Level>,
}

/// How a worker does a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ZeroBy {
    /// `fallocate` on the block's node: the kernel makes and zeroes the pages.
    Allocate,
    /// Map the file and clear it.
    Clear,
    /// There is no file. The worker opens `/dev/hugepagectl`, zeroes up to `pages` pages of the
    /// kernel's own pool by `HUGEPAGECTL_ZERO`, and reports the number.
    Kernel,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The index of the descriptor of the block's file. `None` where `by` is `kernel`.
    pub block_fd: Option<u32>,
    /// The index of the job's descriptor, which stays open while the job runs.
    pub job_fd: u32,
    /// The job's number.
    pub job: JobId,
    /// The node on which its pages must lie.
    pub node: Node,
    /// The size of its pages.
    #[serde(rename = "page_bytes")]
    pub page_size: PageSize,
    /// The pages of the block, or the most pages of the kernel's pool.
    pub pages: Pages,
    /// Pages from the start that are zero already. 0 where `by` is `kernel`.
    pub first_page: Pages,
    /// How.
    pub by: ZeroBy,
}

/// What became of a finished block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// The state in which it is now.
    pub state: StateName,
}

/// A reply without fields: the call was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Configured {}

/// The memory given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// The size.
    pub bytes: Bytes,
}
