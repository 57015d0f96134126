// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The request for a loan: one type for both interfaces.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, de};
use units::{Bytes, LoanName, Node, Owner, PageSize};

use crate::agent::LentByName;
use crate::methods::{method, seconds};
use crate::{Lent, MAX_PARTS, MOST_PARTS};

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
    /// Its name holds it: it ends when an agent returns the name. Such a loan is one file. The
    /// socket of agents alone takes it.
    Name {
        /// The name. The same name and size again are the same loan.
        name: LoanName,
        /// The user whose file it is; `None` is the caller.
        uid: Option<u32>,
        /// The file's group; `None` is the caller's.
        gid: Option<u32>,
    },
}

/// What to borrow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "Fields")]
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
    /// Whether every page must be there, zero: the daemon zeroes what is not ready, or refuses. Of
    /// a loan by name alone.
    pub whole: bool,
    /// The most blocks that the borrower can take, a descriptor each; what more would be needed is
    /// a hole. `None` is [`MAX_PARTS`], and none gets more than [`MOST_PARTS`].
    pub most_blocks: Option<u32>,
    /// How the loan is held.
    pub hold: Hold,
}

/// A request for a loan by name, as it is sent to the socket of agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
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
    pub fn given_to(mut self, user: Option<u32>, group: Option<u32>) -> Self {
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
    pub fn most_parts(&self) -> usize {
        let asked = self.most_blocks.map_or(MAX_PARTS, |most| most as usize);
        asked.clamp(1, MOST_PARTS)
    }
}

/// The parameters of both methods.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    bytes: Bytes,
    #[serde(rename = "page_bytes", default)]
    page_size: Option<PageSize>,
    #[serde(default)]
    node: Option<Node>,
    #[serde(default)]
    owner: Option<Owner>,
    #[serde(rename = "keep_seconds", default, with = "seconds")]
    keep: Option<Duration>,
    // Of borrowers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    single: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held_by_memory: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    most_blocks: Option<u32>,
    // Of agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<LoanName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    whole: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
}

impl From<LendRequest> for Fields {
    fn from(request: LendRequest) -> Self {
        let LendRequest { bytes, page_size, node, owner, keep, single, whole, most_blocks, hold } =
            request;
        let is_memory = hold == Hold::Memory;
        let (name, uid, gid) = match hold {
            Hold::Name { name, uid, gid } => (Some(name), uid, gid),
            Hold::Descriptor | Hold::Memory => (None, None, None),
        };
        let is_named = name.is_some();
        Self {
            bytes,
            page_size,
            node,
            owner,
            keep,
            single: (!is_named).then_some(single),
            held_by_memory: (!is_named).then_some(is_memory),
            most_blocks: most_blocks.filter(|_| !is_named),
            name,
            whole: is_named.then_some(whole),
            uid,
            gid,
        }
    }
}

impl Fields {
    /// A borrower's request: the parameters of agents are unknown to it.
    fn of_borrower(self) -> Result<LendRequest, &'static str> {
        let agents = [
            ("name", self.name.is_some()),
            ("whole", self.whole.is_some()),
            ("uid", self.uid.is_some()),
            ("gid", self.gid.is_some()),
        ];
        if let Some((field, _)) = agents.iter().find(|(_, is_there)| *is_there) {
            return Err(field);
        }
        let hold = if self.held_by_memory == Some(true) { Hold::Memory } else { Hold::Descriptor };
        Ok(self.request(hold))
    }

    /// An agent's request: the parameters of borrowers are unknown to it.
    fn of_agent(mut self) -> Result<LendRequest, &'static str> {
        let borrowers = [
            ("single", self.single.is_some()),
            ("held_by_memory", self.held_by_memory.is_some()),
            ("most_blocks", self.most_blocks.is_some()),
        ];
        if let Some((field, _)) = borrowers.iter().find(|(_, is_there)| *is_there) {
            return Err(field);
        }
        let name = self.name.take().ok_or("name")?;
        let hold = Hold::Name { name, uid: self.uid, gid: self.gid };
        self.single = Some(true);
        Ok(self.request(hold))
    }

    fn request(self, hold: Hold) -> LendRequest {
        let Self { bytes, page_size, node, owner, keep, single, whole, most_blocks, .. } = self;
        let (single, whole) = (single.unwrap_or(false), whole.unwrap_or(false));
        LendRequest { bytes, page_size, node, owner, keep, single, whole, most_blocks, hold }
    }
}

impl<'de> Deserialize<'de> for LendRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(deserializer)?;
        fields.of_borrower().map_err(|field| de::Error::unknown_field(field, &[]))
    }
}

impl<'de> Deserialize<'de> for LendForAgent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(deserializer)?;
        match fields.of_agent() {
            Ok(request) => Ok(Self(request)),
            Err("name") => Err(de::Error::missing_field("name")),
            Err(field) => Err(de::Error::unknown_field(field, &[])),
        }
    }
}
