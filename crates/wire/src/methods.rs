// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The methods of the interface: one struct each, whose fields are the parameters.

use std::fmt::Debug;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use units::{Bytes, JobId, LeaseId, Node, Owner, PageSize, Pages, PoolKey};
use zlink::introspect::CustomType;

use crate::{
    Configured, Drained, Error, Finished, GivenBack, Holders, Job, Lent, MAX_PARTS, MOST_PARTS,
    Revoked, Status, WatchReply,
};

/// A method's parameters, and what it is called by.
pub trait Parameters: Serialize + Debug {
    /// The name, with the interface's before it.
    const NAME: &'static str;
    /// What it answers.
    type Reply: DeserializeOwned + Debug;
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

/// Everything there is to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetStatus {}

/// What to borrow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LendRequest {
    /// How much: whole pages.
    pub bytes: Bytes,
    /// In which pages; `None` leaves it to the daemon.
    #[serde(rename = "page_bytes", default)]
    pub page_size: Option<PageSize>,
    /// From which node; `None` takes any.
    #[serde(default)]
    pub node: Option<Node>,
    /// Under which name, to get the content back after a restart.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// How long content stays for that owner after its return, in whole seconds; needs `owner`.
    #[serde(rename = "keep_seconds", default, with = "seconds")]
    pub keep: Option<Duration>,
    /// Whether it must be one file, as programs that take a path or descriptor need.
    #[serde(default)]
    pub single: bool,
    /// Whether the loan lasts as long as any process has a block of it open or mapped, instead of
    /// as long as the lease's descriptor: for programs that cannot keep a descriptor safe. The
    /// loan may be dropped once it is mapped. Refused where the kernel grants no leases on
    /// hugetlbfs.
    #[serde(default)]
    pub held_by_memory: bool,
    /// The most blocks that the borrower can take, a descriptor each; what more would be needed is
    /// a hole. `None` is [`MAX_PARTS`](crate::MAX_PARTS), and none gets more than
    /// [`MOST_PARTS`](crate::MOST_PARTS).
    #[serde(default)]
    pub most_blocks: Option<u32>,
}

impl LendRequest {
    /// `bytes` of any pages, in as many blocks as it takes.
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

/// Work for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeZeroing {
    /// On which node; `None` is any.
    pub node: Option<Node>,
    /// Of pages of which size; `None` is any.
    #[serde(rename = "page_bytes")]
    pub page_size: Option<PageSize>,
    /// Only what the thresholds want.
    pub background: bool,
}

/// A worker's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishZeroing {
    /// The job.
    pub job: JobId,
    /// So many pages, from the start, are zero.
    pub pages_done: Pages,
}

/// Ready and zeroable pages for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveBack {
    /// On which node; `None` is any.
    pub node: Option<Node>,
    /// Of pages of which size; `None` is any.
    #[serde(rename = "page_bytes")]
    pub page_size: Option<PageSize>,
    /// How many; `None` is all.
    pub pages: Option<Pages>,
}

/// New thresholds, or a new pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configure {
    /// What changes.
    pub change: PoolChange,
}

/// Which processes have blocks that are lent or linger: of one loan, or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindHolders {
    /// The loan.
    pub lease: Option<LeaseId>,
}

/// To give all back and keep nothing ready, or to go on as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Whether it is to be so.
    pub on: bool,
}

/// To end a loan whatever its borrower does, and take its memory away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoke {
    /// The loan.
    pub lease: LeaseId,
}

/// To be told of levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Of which node; `None` is every.
    pub node: Option<Node>,
    /// Of pages of which size; `None` is any.
    #[serde(rename = "page_bytes")]
    pub page_size: Option<PageSize>,
    /// When ready pages fall below; `None` is at every change.
    pub below: Option<Pages>,
    /// The least time between two reports in milliseconds.
    pub interval_ms: Option<u64>,
}

impl Watch {
    /// Whether it is about that level.
    #[must_use]
    pub fn fits(&self, level: &crate::Level) -> bool {
        self.node.is_none_or(|node| node.0 == level.node)
            && self.page_size.is_none_or(|size| size.bytes() == level.page_bytes)
    }
}

/// A duration as whole seconds.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|duration| duration.as_secs()).serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::deserialize(d)?.map(Duration::from_secs))
    }
}

/// A pool's shape and the thresholds to change; what is absent stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, CustomType)]
pub struct PoolChange {
    /// NUMA node.
    pub node: u32,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Pages of one block.
    pub pages_per_block: u64,
    /// Background zeroing starts below so many ready pages.
    pub ready_low: Option<u64>,
    /// ... and stops at so many.
    pub ready_high: Option<u64>,
    /// The most pages the pool may own.
    pub max_pages: Option<u64>,
    /// Pages left free in the kernel's pool.
    pub leave_free: Option<u64>,
    /// How returned blocks become zero again: a [`Recycle`]. A text, because zlink hangs up on a
    /// parameter of another type, and a wrong word deserves an answer.
    pub recycle: Option<String>,
}

impl PoolChange {
    /// The pool that it names.
    ///
    /// # Errors
    /// [`Error::BadValue`] for a page size that is none.
    pub fn pool(&self) -> Result<PoolKey, Error> {
        let page_size = PageSize::try_from(self.page_bytes);
        Ok(PoolKey {
            node: Node(self.node),
            page_size: page_size.map_err(|e| Error::bad_value("page_bytes", e))?,
            pages_per_block: Pages(self.pages_per_block),
        })
    }
}
