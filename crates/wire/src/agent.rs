// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages of the varlink interface `io.prezero.agent`: loans by name, for programs that hand
//! memory on to others.
//!
//! The daemon serves it on a socket of its own, which only agents can open. No descriptors travel:
//! a loan is a path.

use std::fmt;

use serde::{Deserialize, Serialize};
use units::{Bytes, LoanName, Node, PageSize, Uid};

use crate::BadValue;
use crate::methods::method;
use crate::optional::or_default;

/// The interface's name.
pub const INTERFACE: &str = "io.prezero.agent";
/// The interface's definition, as the daemon serves it.
pub const DESCRIPTION: &str = include_str!("../io.prezero.agent.varlink");
/// The ending that makes the daemon's socket path the path of the agents' socket.
pub const SOCKET_ENDING: &str = ".agent";
/// The most loans that one reply lists.
pub const MAX_LISTED: usize = 256;

/// A loan by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedLoan {
    /// Its name.
    pub name: String,
    /// Its one file, in the daemon's mount namespace. The path is good until the name is returned,
    /// and empty while the loan is being made.
    pub path: String,
    /// Its size.
    pub bytes: Bytes,
    /// The size of its pages.
    #[serde(rename = "page_bytes")]
    pub page_size: PageSize,
    /// NUMA node.
    pub node: Node,
    /// The user that owns the file, which has mode 0600.
    pub uid: Uid,
    /// Whether the loan is being made. Then it ends with the connection of the agent that asked
    /// for it, or when its name is returned.
    pub pending: bool,
}

/// A loan granted, or found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentByName {
    /// The loan.
    pub loan: NamedLoan,
    /// Whether the loan existed already.
    pub found: bool,
    /// Whether the memory has the content that its owner left. False for a loan that existed
    /// already.
    pub kept: bool,
    /// The size that was ready when the loan was granted. For a loan that existed already: the size
    /// that has memory.
    pub ready_bytes: Bytes,
}

/// Loans in the order of their names, loans that are being made included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loans {
    /// At most 256 loans.
    pub loans: Vec<NamedLoan>,
    /// Whether there are more loans after the last one.
    pub more: bool,
}

/// The ready blocks of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyBlocks {
    /// The size of one block, which is the most that one loan finds ready here. 0 where a loan of
    /// any size finds all ready memory in one file.
    pub block_bytes: Bytes,
    /// The size of all such blocks.
    pub ready_bytes: Bytes,
}

/// What can be lent on one node, in pages of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supply {
    /// NUMA node.
    pub node: Node,
    /// The size of its pages.
    #[serde(rename = "page_bytes")]
    pub page_size: PageSize,
    /// The size of the largest block that the pools make.
    pub block_bytes: Bytes,
    /// Ready memory, in blocks of any length.
    pub ready_bytes: Bytes,
    /// The ready blocks by length, the smallest first. A loan is one file and a file is one block,
    /// so the memory of several blocks serves several loans.
    pub ready_blocks: Vec<ReadyBlocks>,
    /// The most that could be lent, lent memory included.
    pub total_bytes: Bytes,
    /// Memory lent by name, pending loans included.
    pub named_bytes: Bytes,
}

/// What can be lent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supplies {
    /// One for each node and page size.
    pub supplies: Vec<Supply>,
}

method!(ReturnByName, "io.prezero.agent.Return", crate::Configured);
method!(ListLoans, "io.prezero.agent.ListLoans", Loans);
method!(GetSupply, "io.prezero.agent.GetSupply", Supplies);

/// Ends a loan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReturnByName {
    /// Its name.
    pub name: LoanName,
    /// Whether the content is dropped even if the loan has an owner.
    #[serde(default, deserialize_with = "or_default")]
    pub discard: bool,
}

/// Asks for a list of loans.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListLoans {
    /// Only names that begin with this text.
    #[serde(default)]
    pub prefix: Option<String>,
    /// Only names after this one.
    #[serde(default)]
    pub after: Option<LoanName>,
}

/// Asks what can be lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetSupply {}

/// The interface's errors. Each names the value at fault and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "error", content = "parameters")]
pub enum AgentError {
    /// The peer's credentials do not allow the method.
    #[serde(rename = "io.prezero.agent.NotPermitted")]
    NotPermitted {
        /// The peer.
        uid: Uid,
        /// What it asked for.
        action: String,
        /// Which users may.
        needed: String,
    },
    /// The method does not take this value. Nothing was changed.
    #[serde(rename = "io.prezero.agent.BadValue")]
    BadValue {
        /// The parameter.
        field: String,
        /// The error in it and the allowed values.
        reason: String,
    },
    /// No pool has that shape.
    #[serde(rename = "io.prezero.agent.NoSuchPool")]
    NoSuchPool {
        /// The shape asked for.
        wanted: String,
        /// The shapes of all pools.
        configured: String,
    },
    /// Another loan has that name.
    #[serde(rename = "io.prezero.agent.NameTaken")]
    NameTaken {
        /// The loan that has it.
        loan: Box<NamedLoan>,
    },
    /// A loan of that name is being made.
    #[serde(rename = "io.prezero.agent.NameBusy")]
    NameBusy {
        /// The name.
        name: String,
    },
    /// No loan has that name.
    #[serde(rename = "io.prezero.agent.NoSuchName")]
    NoSuchName {
        /// The name.
        name: String,
    },
    /// As many loans have names as may have one.
    #[serde(rename = "io.prezero.agent.TooManyNames")]
    TooManyNames {
        /// The most loans that may have a name.
        most: u64,
    },
    /// The scope of the name holds too much already.
    #[serde(rename = "io.prezero.agent.QuotaExceeded")]
    QuotaExceeded {
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
    /// Ready and free pages together are too few.
    #[serde(rename = "io.prezero.agent.NotEnough")]
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
    },
    /// A call into the kernel failed. Nothing is lent by it.
    #[serde(rename = "io.prezero.agent.Failed")]
    Failed {
        /// The call and its error.
        what: String,
    },
}

impl AgentError {
    /// A parameter that the method does not take.
    pub fn bad_value(field: &str, reason: impl fmt::Display) -> Self {
        Self::BadValue { field: field.to_owned(), reason: reason.to_string() }
    }
}

impl From<BadValue> for AgentError {
    fn from(BadValue { field, reason }: BadValue) -> Self {
        Self::BadValue { field, reason }
    }
}

impl std::error::Error for AgentError {}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTaken { loan } => write!(
                f,
                "`{}` is lent already, as {} of {} pages on node {} for user {}: return it, or ask for the same",
                loan.name, loan.bytes, loan.page_size, loan.node, loan.uid
            ),
            Self::NameBusy { name } => {
                write!(f, "the loan `{name}` is being made: ask again when that is done")
            }
            Self::NoSuchName { name } => write!(f, "nothing is lent by the name `{name}`"),
            Self::TooManyNames { most } => {
                write!(
                    f,
                    "{most} loans have names, the most there may be: return some, or raise agent.names"
                )
            }
            Self::QuotaExceeded { scope, held_bytes, quota_bytes, asked_bytes } => write!(
                f,
                "the loans of scope `{scope}` hold {} of a quota of {}: return some before asking for {} more",
                held_bytes, quota_bytes, asked_bytes
            ),
            // What both interfaces say, in the same words.
            Self::NotPermitted { uid, action, needed } => {
                let (action, needed) = (action.clone(), needed.clone());
                crate::Error::NotPermitted { uid: *uid, action, needed }.fmt(f)
            }
            Self::BadValue { field, reason } => crate::Error::bad_value(field, reason).fmt(f),
            Self::NoSuchPool { wanted, configured } => {
                let (wanted, configured) = (wanted.clone(), configured.clone());
                crate::Error::NoSuchPool { wanted, configured }.fmt(f)
            }
            &Self::NotEnough { asked_bytes, page_size, ready_bytes, free_bytes } => {
                crate::Error::NotEnough { asked_bytes, page_size, ready_bytes, free_bytes }.fmt(f)
            }
            Self::Failed { what } => f.write_str(what),
        }
    }
}
