// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a method was refused.

use std::fmt;

use units::Bytes;
use zlink::introspect::ReplyError as IntrospectError;

/// The interface's errors. Each names the value at fault and what to do.
#[derive(Debug, Clone, PartialEq, Eq, zlink::ReplyError, IntrospectError)]
#[zlink(interface = "io.prezero")]
pub enum Error {
    /// The peer's credentials do not allow the method.
    NotPermitted {
        /// The peer.
        uid: u32,
        /// What it wanted.
        action: String,
        /// Who may.
        needed: String,
    },
    /// A value that the method does not take; nothing was changed.
    BadValue {
        /// The parameter.
        field: String,
        /// What is wrong with it and what is allowed.
        reason: String,
    },
    /// No pool has that shape.
    NoSuchPool {
        /// The shape asked for.
        wanted: String,
        /// Those there are.
        configured: String,
    },
    /// The user holds too much already.
    QuotaExceeded {
        /// The user whose quota it is: the peer, or whose subordinate it is.
        uid: u32,
        /// What it holds.
        held_bytes: u64,
        /// What it may hold.
        quota_bytes: u64,
        /// What it asked for.
        asked_bytes: u64,
    },
    /// Neither ready pages nor free ones suffice.
    NotEnough {
        /// The request.
        asked_bytes: u64,
        /// In pages of so many bytes.
        page_bytes: u64,
        /// Ready where it was asked for.
        ready_bytes: u64,
        /// Free in the kernel's pool there.
        free_bytes: u64,
    },
    /// Nothing can be zeroed now.
    NothingToZero,
    /// No loan has that number.
    NoSuchLease {
        /// The number.
        lease: u64,
    },
    /// The job is not the caller's.
    NoSuchJob {
        /// The job.
        job: u64,
    },
    /// The kernel refused something; the block at hand is treated as dirty.
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

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted { uid, action, needed } => {
                write!(f, "user {uid} may not {action}: {needed}")
            }
            Self::BadValue { field, reason } => write!(f, "{field}: {reason}"),
            Self::NoSuchPool { wanted, configured } => {
                write!(f, "no pool is {wanted}: configured are {configured}")
            }
            Self::QuotaExceeded { uid, held_bytes, quota_bytes, asked_bytes } => write!(
                f,
                "user {uid} holds {} of a quota of {}: {}",
                Bytes(*held_bytes),
                Bytes(*quota_bytes),
                if asked_bytes > quota_bytes {
                    format!("{} is more than all of it", Bytes(*asked_bytes))
                } else {
                    format!("return some before asking for {} more", Bytes(*asked_bytes))
                }
            ),
            Self::NotEnough { asked_bytes, page_bytes, ready_bytes, free_bytes } => write!(
                f,
                "{} of {} pages were asked for, {} are ready and {} free in the kernel: ask for less, or reserve more pages",
                Bytes(*asked_bytes),
                Bytes(*page_bytes),
                Bytes(*ready_bytes),
                Bytes(*free_bytes)
            ),
            Self::NothingToZero => write!(
                f,
                "nothing to zero: every page that may be taken is ready, lent or being zeroed"
            ),
            Self::NoSuchLease { lease } => {
                write!(f, "no loan has the number {lease}: `prezero status` lists them")
            }
            Self::NoSuchJob { job } => {
                write!(f, "job {job} is unknown: it was finished or lost before")
            }
            Self::Failed { what } => f.write_str(what),
        }
    }
}
