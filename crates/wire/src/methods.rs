// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The methods of the interface: one struct for each, with the parameters as its fields.

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use units::{JobId, LeaseId, Node, PageSize, Pages, PoolKey};

use crate::optional::or_default;
use crate::{
    Configured, Drained, Finished, Holders, Job, Recycle, Released, Revoked, Status, WatchReply,
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
method!(TakeZeroing, "io.prezero.TakeZeroing", Job);
method!(FinishZeroing, "io.prezero.FinishZeroing", Finished);
method!(Release, "io.prezero.Release", Released);
method!(Configure, "io.prezero.Configure", Configured);
method!(Watch, "io.prezero.Watch", WatchReply);
method!(FindHolders, "io.prezero.FindHolders", Holders);
method!(Revoke, "io.prezero.Revoke", Revoked);
method!(Drain, "io.prezero.Drain", Drained);

/// Asks for pools, loans, users and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetStatus {}

/// Asks for a job for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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
    /// How long the daemon waits for pages to zero before it refuses, in milliseconds: 5000 at
    /// most. `None` is not at all.
    #[serde(default)]
    pub wait_ms: Option<u64>,
}

impl TakeZeroing {
    /// The longest [`wait_ms`](Self::wait_ms): longer ones count as this.
    pub const MAX_WAIT: std::time::Duration = std::time::Duration::from_secs(5);
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
pub struct Release {
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

/// Asks which processes have blocks that are lent or draining: of one loan, or of all.
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
