// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The request for a loan, and the loan: one type each, however the loan is held.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use units::{Bytes, LeaseId, LoanName, Node, Owner, PageSize, Uid};

use crate::methods::method;
use crate::optional::{or_default, seconds};
use crate::{MAX_LOAN_PARTS, MAX_MESSAGE_PARTS};

method!(LendRequest, "io.prezero.Lend", Lent);

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
        /// Where programs find the file.
        paths: LoanPaths,
    },
}

/// The paths of a loan by name beside the daemon's own, which root alone can follow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoanPaths {
    /// Whether the file's user can open the path of the reply. A link makes it so.
    pub reachable: bool,
    /// Where the caller binds the file; root alone may. The daemon ends that with the loan.
    pub bind: Option<String>,
    /// Where the caller makes a link to the path of the reply. The daemon removes it with the loan.
    pub link: Option<String>,
}

impl LoanPaths {
    /// Those that the caller makes: the parameter of each, and the path.
    pub fn made_by_caller(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [("bind", &self.bind), ("link", &self.link)];
        all.into_iter().filter_map(|(field, path)| Some((field, path.as_deref()?)))
    }
}

/// What to borrow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "LendParameters", try_from = "LendParameters")]
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

/// A loan granted, or the loan that had the name already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    /// The index of the lease's descriptor. `None` for a loan by name.
    pub lease_fd: Option<u32>,
    /// The lease. It lives exactly as long as its descriptor, or as the name.
    pub lease: LeaseId,
    /// The size of its pages.
    #[serde(rename = "page_bytes")]
    pub page_size: PageSize,
    /// Whether the memory has the content that this owner left. False for a loan that existed
    /// already.
    pub kept: bool,
    /// The blocks. A loan by name has one.
    pub parts: Vec<LentPart>,
    /// The file of a loan by name, in the daemon's mount namespace. The path is good until the name
    /// is returned.
    pub path: Option<String>,
    /// Whether a loan of that name existed already.
    pub found: bool,
}

/// One block of a loan. The blocks stand in the order in which the loan is mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentPart {
    /// The index of its descriptor. `None` for a loan by name.
    pub fd: Option<u32>,
    /// NUMA node.
    pub node: Node,
    /// Its length.
    pub bytes: Bytes,
    /// The part, from its start, that was ready. The borrower's own faults fill the rest. Of a loan
    /// that existed already: the size that has memory.
    pub ready_bytes: Bytes,
}

/// A loan by name, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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
        let paths = LoanPaths::default();
        let hold = Hold::Name { name, uid: None, gid: None, paths };
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

/// The parameters of the method.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LendParameters {
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
    whole: bool,
    #[serde(default)]
    most_blocks: Option<u32>,
    #[serde(default, deserialize_with = "or_default")]
    held_by_memory: bool,
    #[serde(default)]
    name: Option<LoanName>,
    #[serde(default)]
    uid: Option<Uid>,
    #[serde(default)]
    gid: Option<u32>,
    #[serde(default, deserialize_with = "or_default")]
    reachable: bool,
    #[serde(default)]
    bind: Option<String>,
    #[serde(default)]
    link: Option<String>,
}

impl From<LendRequest> for LendParameters {
    fn from(request: LendRequest) -> Self {
        let LendRequest { bytes, page_size, node, owner, keep, single, whole, most_blocks, hold } =
            request;
        let held_by_memory = hold == Hold::Memory;
        let held = match hold {
            Hold::Name { name, uid, gid, paths: LoanPaths { reachable, bind, link } } => {
                Self { name: Some(name), uid, gid, reachable, bind, link, ..Self::default() }
            }
            Hold::Descriptor | Hold::Memory => Self { held_by_memory, ..Self::default() },
        };
        Self { bytes, page_size, node, owner, keep, single, whole, most_blocks, ..held }
    }
}

impl TryFrom<LendParameters> for LendRequest {
    type Error = &'static str;

    fn try_from(parameters: LendParameters) -> Result<Self, Self::Error> {
        let LendParameters { bytes, page_size, node, owner, keep, single, .. } = parameters;
        let LendParameters { whole, most_blocks, held_by_memory, name, uid, gid, .. } = parameters;
        let LendParameters { reachable, bind, link, .. } = parameters;
        let has_paths = reachable || bind.is_some() || link.is_some();
        let paths = LoanPaths { reachable, bind, link };
        let hold = match name {
            Some(_) if held_by_memory => return Err("`name` and `held_by_memory` are two holds"),
            Some(name) => Hold::Name { name, uid, gid, paths },
            None if has_paths => return Err("`reachable`, `bind` and `link` need a `name`"),
            None if whole || uid.is_some() || gid.is_some() => {
                return Err("`whole`, `uid` and `gid` need a `name`");
            }
            None if held_by_memory => Hold::Memory,
            None => Hold::Descriptor,
        };
        Ok(Self { bytes, page_size, node, owner, keep, single, whole, most_blocks, hold })
    }
}
