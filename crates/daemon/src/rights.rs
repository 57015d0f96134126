// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may do what: decided by the credentials the kernel reports for a socket's peer.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use book::config::Config;
use linux::Peer;
use units::Uid;

use crate::error::{Error, Result};

/// The groups of the configuration, resolved when it is read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups {
    lend: Option<Group>,
    zero: Option<Group>,
    /// Whether the zeroing group is trusted as root is.
    zero_trusted: bool,
    agent: Option<Group>,
}

impl Groups {
    pub(crate) fn of(config: &Config) -> Result<Self> {
        let lend = config.lend_group.as_deref();
        let zero = config.zero_group.as_deref();
        let lend = lend.map(|group| Group::of("lend_group", group)).transpose()?;
        let zero = zero.map(|group| Group::of("zero_group", group)).transpose()?;
        let agent = config.agent.group.as_deref();
        let agent = agent.map(|group| Group::of("agent.group", group)).transpose()?;
        Ok(Self { lend, zero, zero_trusted: config.trust_zero_group, agent })
    }

    /// The group whose members may lend by name.
    pub(crate) fn agent(&self) -> Option<u32> {
        self.agent.as_ref().map(|group| group.gid)
    }
}

/// A group, with its name where it has one: asked for once, as names may come from afar.
#[derive(Debug, Clone)]
struct Group {
    gid: u32,
    name: Option<String>,
}

impl Group {
    fn of(field: &'static str, group: &str) -> Result<Self> {
        let gid = number(field, group)?;
        let known = nix::unistd::Group::from_gid(gid.into()).ok().flatten();
        Ok(Self { gid, name: known.map(|known| known.name) })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => self.gid.fmt(f),
        }
    }
}

/// The number of a group given by name or number.
pub(crate) fn number(field: &'static str, group: &str) -> Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(group) {
        Ok(Some(found)) => Ok(found.gid.as_raw()),
        Ok(None) | Err(_) => Err(Error::NoSuchGroup { field, group: group.to_owned() }),
    }
}

/// The groups of today's configuration, shared by all connections.
pub(crate) type SharedGroups = Rc<RefCell<Groups>>;

/// One peer and what it may do.
#[derive(Debug, Clone)]
pub(crate) struct Rights {
    peer: Peer,
    account: Uid,
    groups: SharedGroups,
    own: u32,
}

impl Rights {
    /// Of `peer`, whose loans count against the quota of `account`.
    pub(crate) fn new(peer: Peer, account: Uid, groups: SharedGroups) -> Self {
        Self { peer, account, groups, own: rustix::process::geteuid().as_raw() }
    }

    /// The same on the account of another user.
    pub(crate) fn on_account(self, account: Uid) -> Self {
        Self { account, ..self }
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn uid(&self) -> Uid {
        Uid(self.peer.uid)
    }

    /// The user whose quota its loans count against.
    pub(crate) fn account(&self) -> Uid {
        self.account
    }

    /// User and group, as the owner of what is lent to it.
    pub(crate) fn ids(&self) -> (u32, u32) {
        (self.peer.uid, self.peer.gid)
    }

    /// Root, and the user the daemon itself runs as.
    pub(crate) fn is_master(&self) -> bool {
        self.peer.uid == 0 || self.peer.uid == self.own
    }

    fn is_in(&self, group: Option<&Group>) -> bool {
        group.is_some_and(|group| self.peer.in_group(group.gid))
    }

    fn only_root(&self, action: &str, needed: &str) -> Result<(), wire::Error> {
        if self.is_master() {
            return Ok(());
        }
        let (action, needed) = (action.to_owned(), needed.to_owned());
        Err(wire::Error::NotPermitted { uid: self.peer.uid, action, needed })
    }

    fn demand(&self, group: Option<&Group>, field: &str, action: &str) -> Result<(), wire::Error> {
        if self.is_master() || self.is_in(group) {
            return Ok(());
        }
        let needed = match group {
            Some(group) => format!("root and members of group {group} ({field}) may"),
            None => format!("only root may, as {field} is not configured"),
        };
        let action = action.to_owned();
        Err(wire::Error::NotPermitted { uid: self.peer.uid, action, needed })
    }

    /// Whether it has any right at all. Who has none is not served.
    pub(crate) fn may_connect(&self) -> Result<(), wire::Error> {
        self.may_either("connect")
    }

    /// Whether it may see what there is: whoever may do anything.
    pub(crate) fn may_look(&self) -> Result<(), wire::Error> {
        self.may_either("look")
    }

    fn may_either(&self, action: &str) -> Result<(), wire::Error> {
        let Groups { lend, zero, .. } = &*self.groups.borrow();
        let (lend, zero) = (lend.as_ref(), zero.as_ref());
        if self.is_master() || self.is_in(lend) || self.is_in(zero) {
            return Ok(());
        }
        let named = |field: &str, group: Option<&Group>| group.map(|g| format!("{g} ({field})"));
        let groups = [named("lend_group", lend), named("zero_group", zero)];
        let groups: Vec<_> = groups.into_iter().flatten().collect();
        let needed = if groups.is_empty() {
            "only root may, as neither lend_group nor zero_group is configured".to_owned()
        } else {
            format!("root and members of group {} may", groups.join(" or "))
        };
        let action = action.to_owned();
        Err(wire::Error::NotPermitted { uid: self.peer.uid, action, needed })
    }

    /// Whether it may lend by name, and end loans by name.
    pub(crate) fn may_lend_by_name(&self) -> Result<(), wire::Error> {
        self.demand(self.groups.borrow().agent.as_ref(), "agent.group", "lend by name")
    }

    /// Whether it may borrow.
    pub(crate) fn may_lend(&self) -> Result<(), wire::Error> {
        self.demand(self.groups.borrow().lend.as_ref(), "lend_group", "borrow")
    }

    /// Whether it may see who else has what.
    pub(crate) fn may_see_others(&self) -> bool {
        self.is_master() || self.is_in(self.groups.borrow().zero.as_ref())
    }

    /// Whether it may look into other processes, and take their memory away.
    pub(crate) fn may_revoke(&self, action: &str) -> Result<(), wire::Error> {
        self.only_root(action, "only root may")
    }

    /// Whether blocks that others borrow may be in its hands. A worker can keep a page of them
    /// pinned, and read and write what its next borrower has there; no proof sees that, and no
    /// look at its work helps against it.
    pub(crate) fn may_fill(&self) -> Result<(), wire::Error> {
        self.may_zero("zero")?;
        if self.is_master() || self.groups.borrow().zero_trusted {
            return Ok(());
        }
        let action = "have blocks in its hands that others borrow".to_owned();
        let needed = "write to the control tree, where a worker of the daemon's zeroes in your place \
                      and context; root may trust the group with all lent memory by trust_zero_group";
        Err(wire::Error::NotPermitted { uid: self.peer.uid, action, needed: needed.to_owned() })
    }

    /// Whether it may change how blocks are recycled: what isolates borrowers is root's to say.
    pub(crate) fn may_change_recycling(&self) -> Result<(), wire::Error> {
        let needed = "only root may, as it decides what isolates borrowers";
        self.only_root("change how a pool recycles", needed)
    }

    /// Whether it may add pools, each of which every report has and every look at the kernel's
    /// counts takes longer by, until the daemon ends.
    pub(crate) fn may_add_pools(&self) -> Result<(), wire::Error> {
        self.only_root("add a pool", "only root may")
    }

    /// Whether it may zero, configure and give back.
    pub(crate) fn may_zero(&self, action: &str) -> Result<(), wire::Error> {
        self.demand(self.groups.borrow().zero.as_ref(), "zero_group", action)
    }
}
