// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The methods of the interface: one struct for each, with the parameters as its fields.

use std::fmt::Debug;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use units::{Bytes, JobId, LeaseId, Node, Owner, PageSize, Pages, PoolKey};

use crate::optional::{or_default, seconds};
use crate::{
    Configured, Drained, Finished, GivenBack, Holders, Job, Lent, MAX_PARTS, MOST_PARTS, Recycle,
    Revoked, Status, WatchReply,
};

/// A method's parameters, with its name and its reply.
pub trait Parameters: Serialize + DeserializeOwned + Debug {
    /// The name, with the interface's before it.
    const NAME: &'static str;
    /// What it returns.
    type Reply: Serialize + DeserializeOwned + Debug;
}

macro_rules! method {
    ($parameters:ty, $name:literal, $reply:ty) => {
        impl $crate::Parameters for $parameters {
            const NAME: &'static str = $name;
            type Reply = $reply;
        }
    };
}
pub(crate) use method;

method!(GetStatus, "io.prezero.GetStatus", Status);
method!(LendRequest, "io.prezero.Lend", Lent);
method!(TakeZeroing, "io.prezero.TakeZeroing", Job);
method!(FinishZeroing, "io.prezero.FinishZeroing", Finished);
method!(GiveBack, "io.prezero.GiveBack", GivenBack);
method!(Configure, "io.prezero.Configure", Configured);
method!(Watch, "io.prezero.Watch", WatchReply);
method!(FindHolders, "io.prezero.FindHolders", Holders);
method!(Revoke, "io.prezero.Revoke", Revoked);
method!(Drain, "io.prezero.Drain", Drained);

/// Asks for pools, loans, users and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetStatus {}

/// What to borrow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LendRequest {
    /// The size: whole pages.
    pub bytes: Bytes,
    /// The page size. `None` leaves it to the daemon.
    #[serde(rename = "page_bytes", default)]
    pub page_size: Option<PageSize>,
    /// The node. `None` takes any.
    #[serde(default)]
    pub node: Option<Node>,
    /// The owner, to whom a later loan gives the content back.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// How long content stays for that owner after its return, in whole seconds; needs `owner`.
    #[serde(rename = "keep_seconds", default, with = "seconds")]
    pub keep: Option<Duration>,
    /// Whether the loan must be one file, as programs need that take a path or one descriptor.
    #[serde(default, deserialize_with = "or_default")]
    pub single: bool,
    /// Whether the loan lasts as long as any process has a block of it open or mapped, instead of
    /// as long as the lease's descriptor: for programs that cannot keep a descriptor safe. The
    /// borrower may drop the loan once it is mapped. Refused where the kernel grants no leases on
    /// hugetlbfs.
    #[serde(default, deserialize_with = "or_default")]
    pub held_by_memory: bool,
    /// The most blocks that the borrower can take, a descriptor each. The borrower's own faults
    /// fill the rest. `None` is [`MAX_PARTS`](crate::MAX_PARTS), and the daemon grants
    /// [`MOST_PARTS`](crate::MOST_PARTS) at most.
    #[serde(default)]
    pub most_blocks: Option<u32>,
}

impl LendRequest {
    /// `bytes` of any pages, in any number of blocks.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        Self {
            bytes,
            page_size: None,
            node: None,
            owner: None,
            keep: None,
            single: false,
            held_by_memory: false,
            most_blocks: None,
        }
    }

    /// The most blocks that it may get.
    #[must_use]
    pub fn most_parts(&self) -> usize {
        let asked = self.most_blocks.map_or(MAX_PARTS, |most| most as usize);
        asked.clamp(1, MOST_PARTS)
    }
}

/// Asks for a job for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeZeroing {
    /// The node. `None` is any.
    #[serde(default)]
    pub node: Option<Node>,
    /// The page size. `None` is any.
    #[serde(rename = "page_bytes", default)]
    pub page_size: Option<PageSize>,
    /// Whether to take only jobs that the thresholds call for.
    #[serde(default, deserialize_with = "or_default")]
    pub background: bool,
}

/// A worker's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishZeroing {
    /// The job.
    pub job: JobId,
    /// Pages from the start that are zero now.
    pub pages_done: Pages,
}

/// Gives ready and zeroable pages back to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GiveBack {
    /// The node. `None` is any.
    #[serde(default)]
    pub node: Option<Node>,
    /// The page size. `None` is any.
    #[serde(rename = "page_bytes", default)]
    pub page_size: Option<PageSize>,
    /// The number of pages. `None` is all.
    #[serde(default)]
    pub pages: Option<Pages>,
}

/// New thresholds, or a new pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configure {
    /// What changes.
    pub change: PoolChange,
}

/// Asks which processes have blocks that are lent or linger: of one loan, or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindHolders {
    /// The loan. `None` is all.
    #[serde(default)]
    pub lease: Option<LeaseId>,
}

/// Gives all back and keeps the pools empty, or goes on as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Whether the pools are kept empty.
    pub on: bool,
}

/// Ends a loan and takes its memory from its borrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// The loan.
    pub lease: LeaseId,
}

/// Asks for reports of levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// The node. `None` is every node.
    #[serde(default)]
    pub node: Option<Node>,
    /// The page size. `None` is every size.
    #[serde(rename = "page_bytes", default)]
    pub page_size: Option<PageSize>,
    /// Report when ready pages fall below this number. `None` is at every change.
    #[serde(default)]
    pub below: Option<Pages>,
    /// The least time between two reports in milliseconds.
    #[serde(default)]
    pub interval_ms: Option<u64>,
}

impl Watch {
    /// Whether it is about that level.
    #[must_use]
    pub fn fits(&self, level: &crate::Level) -> bool {
        self.node.is_none_or(|node| node == level.node)
            && self.page_size.is_none_or(|size| size == level.page_size)
    }
}

/// A pool's shape and the thresholds to change. `None` leaves a threshold as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolChange {
    /// NUMA node.
    pub node: Node,
    /// The size of its pages.
    #[serde(rename = "page_bytes")]
    pub page_size: PageSize,
    /// Pages of one block.
    pub pages_per_block: Pages,
    /// Background zeroing starts below this number of ready pages.
    #[serde(default)]
    pub ready_low: Option<Pages>,
    /// Background zeroing stops at this number of ready pages.
    #[serde(default)]
    pub ready_high: Option<Pages>,
    /// The most pages that the pool may own.
    #[serde(default)]
    pub max_pages: Option<Pages>,
    /// Pages left free in the kernel's pool.
    #[serde(default)]
    pub leave_free: Option<Pages>,
    /// How returned blocks become zero again.
    #[serde(default)]
    pub recycle: Option<Recycle>,
}

impl PoolChange {
    /// The pool that it names.
    #[must_use]
    pub fn pool(&self) -> PoolKey {
        let Self { node, page_size, pages_per_block, .. } = *self;
        PoolKey { node, page_size, pages_per_block }
    }
}
