// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a method was refused.

use std::fmt;

use serde::{Deserialize, Serialize};
use units::{Bytes, JobId, LeaseId, Node, PageSize, Uid};

use crate::BadValue;

/// The errors of both interfaces. Each names the value at fault and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "error", content = "parameters")]
pub enum Error {
    /// The peer's credentials do not allow the method.
    #[serde(rename = "io.prezero.NotPermitted")]
    NotPermitted {
        /// The peer.
        uid: Uid,
        /// What it asked for.
        action: String,
        /// Which users may.
        needed: String,
    },
    /// The method does not take this value. Nothing was changed.
    #[serde(rename = "io.prezero.BadValue")]
    BadValue {
        /// The parameter.
        field: String,
        /// The error in it and the allowed values.
        reason: String,
    },
    /// No pool has that shape.
    #[serde(rename = "io.prezero.NoSuchPool")]
    NoSuchPool {
        /// The shape asked for.
        wanted: String,
        /// The shapes of all pools.
        configured: String,
    },
    /// The user holds too much already.
    #[serde(rename = "io.prezero.QuotaExceeded")]
    QuotaExceeded {
        /// The user that pays: the peer, or the user to which the peer is subordinate.
        uid: Uid,
        /// What it holds.
        held_bytes: Bytes,
        /// What it may hold.
        quota_bytes: Bytes,
        /// What it asked for.
        asked_bytes: Bytes,
    },
    /// Ready and free pages together are too few.
    #[serde(rename = "io.prezero.NotEnough")]
    NotEnough {
        /// The request.
        asked_bytes: Bytes,
        /// The size of the pages.
        #[serde(rename = "page_bytes")]
        page_size: PageSize,
        /// Ready where it was asked for.
        ready_bytes: Bytes,
        /// Free in the kernel's pool there.
        free_bytes: Bytes,
        /// The part of it that `leave_free` keeps from being zeroed.
        left_free_bytes: Bytes,
        /// Lent, kept, or draining there.
        used_bytes: Bytes,
    },
    /// The loans of the name's scope hold too much already.
    #[serde(rename = "io.prezero.ScopeQuotaExceeded")]
    ScopeQuotaExceeded {
        /// The part of the name before the first `/`, up to an `@`. Empty for names without a
        /// scope.
        scope: String,
        /// What its loans hold.
        held_bytes: Bytes,
        /// What they may hold.
        quota_bytes: Bytes,
        /// The request.
        asked_bytes: Bytes,
    },
    /// Another loan has that name.
    #[serde(rename = "io.prezero.NameTaken")]
    NameTaken {
        /// The name.
        name: String,
        /// The size of the loan that has it.
        bytes: Bytes,
        /// The size of its pages.
        #[serde(rename = "page_bytes")]
        page_size: PageSize,
        /// Its node.
        node: Node,
        /// The user that owns its file.
        uid: Uid,
    },
    /// A loan of that name is being made.
    #[serde(rename = "io.prezero.NameBusy")]
    NameBusy {
        /// The name.
        name: String,
    },
    /// No loan has that name.
    #[serde(rename = "io.prezero.NoSuchName")]
    NoSuchName {
        /// The name.
        name: String,
    },
    /// As many loans have names as may have one.
    #[serde(rename = "io.prezero.TooManyNames")]
    TooManyNames {
        /// The most loans that may have a name.
        most: u64,
    },
    /// No page can be zeroed now.
    #[serde(rename = "io.prezero.NothingToZero")]
    NothingToZero,
    /// No loan has that number.
    #[serde(rename = "io.prezero.NoSuchLease")]
    NoSuchLease {
        /// The number.
        lease: LeaseId,
    },
    /// The job is not the caller's.
    #[serde(rename = "io.prezero.NoSuchJob")]
    NoSuchJob {
        /// The job.
        job: JobId,
    },
    /// A call into the kernel failed. The daemon takes the block at hand for dirty.
    #[serde(rename = "io.prezero.Failed")]
    Failed {
        /// The call and its error.
        what: String,
    },
}

impl Error {
    /// A parameter that the method does not take.
    pub fn bad_value(field: &str, reason: impl fmt::Display) -> Self {
        Self::BadValue { field: field.to_owned(), reason: reason.to_string() }
    }
}

impl From<BadValue> for Error {
    fn from(BadValue { field, reason }: BadValue) -> Self {
        Self::BadValue { field, reason }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted { uid, action, needed } => {
                write!(f, "user {uid} may not {action}: {needed}")
            }
            Self::BadValue { field, reason } => write!(f, "{field}: {reason}"),
            Self::NoSuchPool { wanted, configured } => {
                write!(f, "no pool has {wanted}: configured are {configured}")
            }
            Self::QuotaExceeded { uid, held_bytes, quota_bytes, asked_bytes } => write!(
                f,
                "user {uid} holds {} of a quota of {}: {}",
                held_bytes,
                quota_bytes,
                if asked_bytes > quota_bytes {
                    format!("{} is more than all of it", asked_bytes)
                } else {
                    format!("return some before asking for {} more", asked_bytes)
                }
            ),
            Self::NotEnough {
                asked_bytes,
                page_size,
                ready_bytes,
                free_bytes,
                left_free_bytes,
                used_bytes,
            } => {
                write!(
                    f,
                    "{asked_bytes} of {page_size} pages were asked for, {ready_bytes} are ready and {free_bytes} free in the kernel"
                )?;
                if *left_free_bytes > Bytes(0) {
                    write!(f, ", {left_free_bytes} of it by leave_free")?;
                }
                if *used_bytes > Bytes(0) {
                    write!(f, "; {used_bytes} are lent, kept or draining")?;
                }
                f.write_str(": ask for less, or reserve more pages")
            }
            Self::ScopeQuotaExceeded { scope, held_bytes, quota_bytes, asked_bytes } => write!(
                f,
                "the loans of scope `{scope}` hold {held_bytes} of a quota of {quota_bytes}: return some before asking for {asked_bytes} more"
            ),
            Self::NameTaken { name, bytes, page_size, node, uid } => write!(
                f,
                "`{name}` is lent already, as {bytes} of {page_size} pages on node {node} for user {uid}: return it, or ask for the same"
            ),
            Self::NameBusy { name } => {
                write!(f, "the loan `{name}` is being made: ask again when that is done")
            }
            Self::NoSuchName { name } => write!(f, "nothing is lent by the name `{name}`"),
            Self::TooManyNames { most } => write!(
                f,
                "{most} loans have names, the most there may be: return some, or raise agent.names"
            ),
            Self::NothingToZero => write!(
                f,
                "nothing to zero: every page that may be taken is ready, lent or being zeroed"
            ),
            Self::NoSuchLease { lease } => {
                write!(f, "no loan has the number {}: `prezero status` lists them", lease.0)
            }
            Self::NoSuchJob { job } => {
                write!(f, "job {} is unknown: it was finished or lost before", job.0)
            }
            Self::Failed { what } => f.write_str(what),
        }
    }
}
