// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The methods of the interface: one struct each, whose fields are the parameters.

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use units::{JobId, LeaseId, Node, PageSize, Pages, PoolKey};
use zlink::introspect::CustomType;

use crate::{
    Configured, Drained, Error, Finished, GivenBack, Holders, Job, Revoked, Status, WatchReply,
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
pub(crate) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|duration| duration.as_secs()).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
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
