// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types of the varlink interface `io.prezero.agent`: loans by name, for programs that hand
//! memory on to others.
//!
//! It is served on a socket of its own, which goes to agents and to nobody that they serve. No
//! descriptors travel: a loan is a path.

use std::fmt;

use serde::{Deserialize, Serialize};
use units::{Bytes, LoanName};
use zlink::introspect::{CustomType, ReplyError as IntrospectError, Type};

use crate::methods::method;

/// The interface's name.
pub const INTERFACE: &str = "io.prezero.agent";
/// What the path of the agents' socket has behind that of the daemon's.
pub const SOCKET_ENDING: &str = ".agent";
/// The most loans that one answer lists.
pub const MOST_LISTED: usize = 256;

/// A loan by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct NamedLoan {
    /// Its name.
    pub name: String,
    /// Its one file, in the daemon's mount namespace. Good until the name is returned; empty while
    /// the loan is being made.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// NUMA node.
    pub node: u32,
    /// The user whose file it is, of mode 0600.
    pub uid: u32,
    /// Whether it is being made. It ends with the connection of the agent that asked for it, or
    /// when its name is returned.
    #[serde(default)]
    pub pending: bool,
}

/// A loan granted, or found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct LentByName {
    /// The loan.
    pub loan: NamedLoan,
    /// Whether it was there already.
    pub found: bool,
    /// Whether it has what its owner left; of one that was there already, false.
    #[serde(default)]
    pub kept: bool,
    /// So many of its bytes were ready when it was granted; of one that was there already, so many
    /// have memory.
    pub ready_bytes: u64,
}

/// Loans, in the order of their names, those that are being made included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct Loans {
    /// At most 256 of them.
    pub loans: Vec<NamedLoan>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

/// What is ready in blocks of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct ReadyBlocks {
    /// Bytes of one block, and so the most that a loan of one file finds ready here; 0 where a loan
    /// of any size finds all that is ready in one file.
    pub block_bytes: u64,
    /// Bytes that are ready in such blocks.
    pub ready_bytes: u64,
}

/// What there is to lend on one node, in pages of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Supply {
    /// NUMA node.
    pub node: u32,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Bytes of the largest block that the pools are to have.
    pub block_bytes: u64,
    /// Bytes that are ready, in whatever blocks.
    pub ready_bytes: u64,
    /// In which blocks they are, the smallest first. A loan is one file and a file is one block, so
    /// that what several of them have is for several loans.
    #[serde(default)]
    pub ready_blocks: Vec<ReadyBlocks>,
    /// The most that could be lent at all, what is lent included.
    pub total_bytes: u64,
    /// Bytes that are lent by name, those of loans that are being made included.
    pub named_bytes: u64,
}

/// What there is to lend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct Supplies {
    /// One for each node and page size.
    pub supplies: Vec<Supply>,
}

method!(ReturnByName, "io.prezero.agent.Return", crate::Configured);
method!(ListLoans, "io.prezero.agent.ListLoans", Loans);
method!(GetSupply, "io.prezero.agent.GetSupply", Supplies);

/// Which loan is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturnByName {
    /// Its name.
    pub name: LoanName,
    /// Whether nothing of it is kept, also if it has an owner: as when nobody got to use it.
    #[serde(default)]
    pub discard: bool,
}

/// Which loans to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ListLoans {
    /// Only those whose names begin so.
    #[serde(default)]
    pub prefix: Option<String>,
    /// Only those that come behind that name.
    #[serde(default)]
    pub after: Option<LoanName>,
}

/// What there is to lend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetSupply {}

/// The interface's errors. Each names the value at fault and what to do.
#[derive(Debug, Clone, PartialEq, Eq, zlink::ReplyError, IntrospectError)]
#[zlink(interface = "io.prezero.agent")]
pub enum AgentError {
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
    /// There is a loan by that name, and it is another one than was asked for.
    NameTaken {
        /// The loan there is.
        loan: Box<NamedLoan>,
    },
    /// A loan by that name is being made.
    NameBusy {
        /// The name.
        name: String,
    },
    /// There is no loan by that name.
    NoSuchName {
        /// The name.
        name: String,
    },
    /// There are as many loans by name as there may be.
    TooManyNames {
        /// The most there may be.
        most: u64,
    },
    /// The scope of the name holds too much already.
    QuotaExceeded {
        /// What stands before the first `/` of the name; empty for names without one.
        scope: String,
        /// What its loans hold.
        held_bytes: u64,
        /// What they may hold.
        quota_bytes: u64,
        /// The request.
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
    /// The kernel refused something; nothing is lent by it.
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

impl std::error::Error for AgentError {}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTaken { loan } => write!(
                f,
                "`{}` is lent already, as {} of {} pages on node {} for user {}: return it, or ask for the same",
                loan.name,
                Bytes(loan.bytes),
                Bytes(loan.page_bytes),
                loan.node,
                loan.uid
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
                Bytes(*held_bytes),
                Bytes(*quota_bytes),
                Bytes(*asked_bytes)
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
            &Self::NotEnough { asked_bytes, page_bytes, ready_bytes, free_bytes } => {
                crate::Error::NotEnough { asked_bytes, page_bytes, ready_bytes, free_bytes }.fmt(f)
            }
            Self::Failed { what } => f.write_str(what),
        }
    }
}
