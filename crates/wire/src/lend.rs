// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The request for a loan: one type for both interfaces.

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer, ser};
use units::{Bytes, LoanName, Node, Owner, PageSize, Uid};

use crate::agent::LentByName;
use crate::methods::method;
use crate::optional::{or_default, seconds};
use crate::{Lent, MAX_LOAN_PARTS, MAX_MESSAGE_PARTS};

method!(LendRequest, "io.prezero.Lend", Lent);
method!(LendForAgent, "io.prezero.agent.Lend", LentByName);

/// How a loan is held. That decides when it ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Hold {
    /// The lease's descriptor holds it: it ends when the last copy is closed.
    #[default]
    Descriptor,
    /// Its memory holds it: it ends when no process has a block of it open or mapped. This is for
    /// programs that cannot keep a descriptor safe: they may drop the loan once it is mapped. The
    /// daemon refuses it where the kernel grants no leases on hugetlbfs.
    Memory,
    /// Its name holds it: it ends when an agent returns the name. A loan by name is one file. The
    /// socket of agents alone takes it.
    Name {
        /// The name. The same name and size again are the same loan.
        name: LoanName,
        /// The user that gets the file; `None` is the caller.
        uid: Option<Uid>,
        /// The file's group; `None` is the caller's.
        gid: Option<u32>,
    },
}

/// What to borrow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "ForBorrower", from = "ForBorrower")]
pub struct LendRequest {
    /// How much: whole pages.
    pub bytes: Bytes,
    /// In which pages; `None` leaves it to the daemon.
    pub page_size: Option<PageSize>,
    /// From which node; `None` takes any.
    pub node: Option<Node>,
    /// Under which name, to get the content back after a restart. An owner of a loan by name is one
    /// within the name's scope: the name must have one, and the loan must be `whole`.
    pub owner: Option<Owner>,
    /// How long content stays for that owner after its return, in whole seconds; needs `owner`.
    pub keep: Option<Duration>,
    /// Whether it must be one file, as programs that take a path or descriptor need.
    pub single: bool,
    /// Whether every page must be there, zero: the daemon zeroes missing ones, or refuses. Of a
    /// loan by name alone.
    pub whole: bool,
    /// The most blocks that the borrower can take, a descriptor each; what more would be needed is
    /// an unbacked part. `None` is [`MAX_MESSAGE_PARTS`], and none gets more than
    /// [`MAX_LOAN_PARTS`].
    pub most_blocks: Option<u32>,
    /// How the loan is held.
    pub hold: Hold,
}

/// A request for a loan by name, as it is sent to the socket of agents.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "ForAgent")]
pub struct LendForAgent(pub LendRequest);

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
            whole: false,
            most_blocks: None,
            hold: Hold::Descriptor,
        }
    }

    /// `bytes` of any pages in one file, by that name, to the caller's own user.
    #[must_use]
    pub fn by_name(name: LoanName, bytes: Bytes) -> Self {
        let hold = Hold::Name { name, uid: None, gid: None };
        Self { single: true, hold, ..Self::new(bytes) }
    }

    /// The same by that name, with a file of this user and group. No-op for a loan without a name.
    #[must_use]
    pub fn given_to(mut self, user: Option<Uid>, group: Option<u32>) -> Self {
        if let Hold::Name { uid, gid, .. } = &mut self.hold {
            (*uid, *gid) = (user, group);
        }
        self
    }

    /// The name that is to hold the loan.
    #[must_use]
    pub fn name(&self) -> Option<&LoanName> {
        match &self.hold {
            Hold::Name { name, .. } => Some(name),
            Hold::Descriptor | Hold::Memory => None,
        }
    }

    /// The most blocks that it may get.
    #[must_use]
    pub fn max_parts(&self) -> usize {
        let asked = self.most_blocks.map_or(MAX_MESSAGE_PARTS, |most| most as usize);
        asked.clamp(1, MAX_LOAN_PARTS)
    }
}

/// The parameters of a borrower's method.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForBorrower {
    bytes: Bytes,
    #[serde(rename = "page_bytes", default)]
    page_size: Option<PageSize>,
    #[serde(default)]
    node: Option<Node>,
    #[serde(default)]
    owner: Option<Owner>,
    #[serde(rename = "keep_seconds", default, with = "seconds")]
    keep: Option<Duration>,
    #[serde(default, deserialize_with = "or_default")]
    single: bool,
    #[serde(default, deserialize_with = "or_default")]
    held_by_memory: bool,
    #[serde(default)]
    most_blocks: Option<u32>,
}

/// The parameters of an agent's method.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForAgent {
    name: LoanName,
    bytes: Bytes,
    #[serde(rename = "page_bytes", default)]
    page_size: Option<PageSize>,
    #[serde(default)]
    node: Option<Node>,
    #[serde(default, deserialize_with = "or_default")]
    whole: bool,
    #[serde(default)]
    uid: Option<Uid>,
    #[serde(default)]
    gid: Option<u32>,
    #[serde(default)]
    owner: Option<Owner>,
    #[serde(rename = "keep_seconds", default, with = "seconds")]
    keep: Option<Duration>,
}

impl From<LendRequest> for ForBorrower {
    fn from(request: LendRequest) -> Self {
        let LendRequest { bytes, page_size, node, owner, keep, single, most_blocks, .. } = request;
        let held_by_memory = request.hold == Hold::Memory;
        Self { bytes, page_size, node, owner, keep, single, held_by_memory, most_blocks }
    }
}

impl From<ForBorrower> for LendRequest {
    fn from(fields: ForBorrower) -> Self {
        let ForBorrower { bytes, page_size, node, owner, keep, single, most_blocks, .. } = fields;
        let hold = if fields.held_by_memory { Hold::Memory } else { Hold::Descriptor };
        Self { bytes, page_size, node, owner, keep, single, whole: false, most_blocks, hold }
    }
}

impl TryFrom<LendForAgent> for ForAgent {
    type Error = &'static str;

    fn try_from(LendForAgent(request): LendForAgent) -> Result<Self, Self::Error> {
        let LendRequest { bytes, page_size, node, owner, keep, whole, hold, .. } = request;
        let Hold::Name { name, uid, gid } = hold else {
            return Err("a loan without a name: agents lend by name");
        };
        Ok(Self { name, bytes, page_size, node, whole, uid, gid, owner, keep })
    }
}

impl Serialize for LendForAgent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = ForAgent::try_from(self.clone()).map_err(ser::Error::custom)?;
        fields.serialize(serializer)
    }
}

impl From<ForAgent> for LendForAgent {
    fn from(fields: ForAgent) -> Self {
        let ForAgent { name, bytes, page_size, node, whole, uid, gid, owner, keep } = fields;
        let hold = Hold::Name { name, uid, gid };
        let request = LendRequest::new(bytes);
        Self(LendRequest { page_size, node, owner, keep, single: true, whole, hold, ..request })
    }
}
