// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages of the varlink interface `io.prezero.agent`: what agents do with loans by name
//! beside asking for them.
//!
//! The daemon serves it on a socket of its own, which only agents can open. That socket serves
//! [`LendRequest`](crate::LendRequest), too, for loans by name. No descriptors travel: a loan is a
//! path.

use serde::{Deserialize, Serialize};
use units::{Bytes, LoanName, Node, PageSize};

use crate::NamedLoan;
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

method!(Return, "io.prezero.agent.Return", crate::Configured);
method!(ListLoans, "io.prezero.agent.ListLoans", Loans);
method!(GetSupply, "io.prezero.agent.GetSupply", Supplies);

/// Ends a loan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Return {
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
