// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may do what: decided by the credentials the kernel reports for a socket's peer.

use std::cell::Cell;
use std::rc::Rc;

use book::config::Config;
use linux::Peer;
use units::Uid;

use crate::error::{Error, Result};

/// The groups of the configuration, resolved when it is read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Groups {
    lend: Option<u32>,
    zero: Option<u32>,
    /// Whether the zeroing group is trusted as root is.
    zero_trusted: bool,
}

impl Groups {
    pub(crate) fn of(config: &Config) -> Result<Self> {
        let lend = config.lend_group.as_deref();
        let zero = config.zero_group.as_deref();
        let lend = lend.map(|group| number("lend_group", group)).transpose()?;
        let zero = zero.map(|group| number("zero_group", group)).transpose()?;
        Ok(Self { lend, zero, zero_trusted: config.trust_zero_group })
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
pub(crate) type SharedGroups = Rc<Cell<Groups>>;

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

    fn demand(&self, group: Option<u32>, field: &str, action: &str) -> Result<(), wire::Error> {
        if self.is_master() || group.is_some_and(|gid| self.peer.in_group(gid)) {
            return Ok(());
        }
        let needed = match group {
            Some(gid) => format!("root and members of group {gid} may"),
            None => format!("only root may, as {field} is not configured"),
        };
        let action = action.to_owned();
        Err(wire::Error::NotPermitted { uid: self.peer.uid, action, needed })
    }

    /// Whether it has any right at all. Who has none is not served.
    pub(crate) fn may_connect(&self) -> Result<(), wire::Error> {
        let Groups { lend, zero, .. } = self.groups.get();
        let is_in = |group: Option<u32>| group.is_some_and(|gid| self.peer.in_group(gid));
        if self.is_master() || is_in(lend) || is_in(zero) {
            return Ok(());
        }
        let named = |field: &str, gid: Option<u32>| gid.map(|gid| format!("{gid} ({field})"));
        let groups = [named("lend_group", lend), named("zero_group", zero)];
        let groups: Vec<_> = groups.into_iter().flatten().collect();
        let needed = if groups.is_empty() {
            "only root may, as neither lend_group nor zero_group is configured".to_owned()
        } else {
            format!("root and members of group {} may", groups.join(" or "))
        };
        let action = "connect".to_owned();
        Err(wire::Error::NotPermitted { uid: self.peer.uid, action, needed })
    }

    /// Whether it may borrow, and look.
    pub(crate) fn may_lend(&self) -> Result<(), wire::Error> {
        self.demand(self.groups.get().lend, "lend_group", "borrow")
    }

    /// Whether blocks that others borrow may be in its hands. A worker can keep a page of them
    /// pinned, and read and write what its next borrower has there; no proof sees that, and no
    /// look at its work helps against it.
    pub(crate) fn may_fill(&self) -> Result<(), wire::Error> {
        self.may_zero("zero")?;
        if self.is_master() || self.groups.get().zero_trusted {
            return Ok(());
        }
        let action = "have blocks in its hands that others borrow".to_owned();
        let needed = "write to the control tree, where a worker of the daemon's zeroes in your place \
                      and context; root may trust the group with all lent memory by trust_zero_group";
        Err(wire::Error::NotPermitted { uid: self.peer.uid, action, needed: needed.to_owned() })
    }

    /// Whether it may change how blocks are recycled: what isolates borrowers is root's to say.
    pub(crate) fn may_change_recycling(&self) -> Result<(), wire::Error> {
        if self.is_master() {
            return Ok(());
        }
        let action = "change how a pool recycles".to_owned();
        let needed = "only root may, as it decides what isolates borrowers".to_owned();
        Err(wire::Error::NotPermitted { uid: self.peer.uid, action, needed })
    }

    /// Whether it may zero, configure and give back.
    pub(crate) fn may_zero(&self, action: &str) -> Result<(), wire::Error> {
        self.demand(self.groups.get().zero, "zero_group", action)
    }
}
