// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may do what: decided by the credentials the kernel reports for a socket's peer.
//!
//! A process may have 65,536 supplementary groups. At most [`peer::MAX_GROUPS`] are looked at, and
//! none is kept: a connection has a [`Member`], a few words. The user and its primary group are
//! known without them, so root is always served.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};

use book::config::Config;
use linux::{Peer, peer};
use tokio::net::UnixStream;
use units::{Bytes, Uid};

use crate::base::error::{Error, Result};

/// The groups of the configuration, resolved when it is read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups {
    lenders: Vec<Lender>,
    /// Of who may borrow without being in any of them.
    quota: Option<Bytes>,
    zero: Option<Group>,
    /// Whether the zeroing group is trusted as root is.
    zero_trusted: bool,
    agent: Option<Group>,
}

impl Groups {
    pub(crate) fn from_config(config: &Config) -> Result<Self> {
        let first = config.lend_group.iter().map(|group| ("lend_group", group, config.quota));
        let more = config.lend_groups.iter();
        let more = more.map(|(group, quota)| ("lend_groups", group, Some(*quota)));
        let lenders = first.chain(more).map(|(field, group, quota)| {
            Ok(Lender { field, group: Group::resolve(field, group)?, quota })
        });
        let lenders = lenders.collect::<Result<_>>()?;
        let zero = config.zero_group.as_deref();
        let zero = zero.map(|group| Group::resolve("zero_group", group)).transpose()?;
        let agent = config.agent.group.as_deref();
        let agent = agent.map(|group| Group::resolve("agent.group", group)).transpose()?;
        let (quota, zero_trusted) = (config.quota, config.trust_zero_group);
        Ok(Self { lenders, quota, zero, zero_trusted, agent })
    }

    /// The group with members that may lend by name.
    pub(crate) fn agent(&self) -> Option<u32> {
        self.agent.as_ref().map(|group| group.gid)
    }

    /// The group with members that may zero.
    pub(crate) fn zero(&self) -> Option<u32> {
        self.zero.as_ref().map(|group| group.gid)
    }

    /// What a process of these groups may do as a member of them.
    fn member(&self, gid: u32, more: &peer::PeerGroups) -> Member {
        let is_in = |group: &Group| gid == group.gid || more.contains(group.gid);
        let mine = self.lenders.iter().filter(|lender| is_in(&lender.group));
        // None is no bound, and so the largest.
        let larger = |a: Option<Bytes>, b: Option<Bytes>| a.zip(b).map(|(a, b)| a.max(b));
        let quota = mine.map(|lender| lender.quota).reduce(larger);
        Member {
            borrows: quota.is_some(),
            quota: quota.unwrap_or(self.quota),
            zeroes: self.zero.as_ref().is_some_and(is_in),
            lends_by_name: self.agent.as_ref().is_some_and(is_in),
            is_cut: *more == peer::PeerGroups::TooMany,
        }
    }
}

/// A group with members that may borrow, and the most that each of them may hold.
#[derive(Debug, Clone)]
struct Lender {
    /// The key that names it.
    field: &'static str,
    group: Group,
    quota: Option<Bytes>,
}

/// A group, with its name where it has one: asked for once, as names may come from afar.
#[derive(Debug, Clone)]
struct Group {
    gid: u32,
    name: Option<String>,
}

impl Group {
    fn resolve(field: &'static str, group: &str) -> Result<Self> {
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

/// What a peer may do by its groups: all that is kept of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Member {
    borrows: bool,
    /// The most that it may hold: of several groups' the largest.
    quota: Option<Bytes>,
    zeroes: bool,
    lends_by_name: bool,
    /// It has more groups than are looked at, and only its primary one counted.
    is_cut: bool,
}

/// The groups of today's configuration, shared by all connections. A reload replaces the inner one.
pub(crate) type SharedGroups = Rc<RefCell<Rc<Groups>>>;

/// Root, and the user the daemon itself runs as, may do everything.
pub(crate) fn is_master(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// One peer and what it may do.
#[derive(Debug)]
pub(crate) struct Rights {
    peer: Peer,
    account: Uid,
    groups: SharedGroups,
    /// What it may do by its groups, and by which configuration.
    member: RefCell<(Rc<Groups>, Member)>,
    /// Where its groups are asked for again once another configuration holds.
    socket: Weak<UnixStream>,
}

impl Rights {
    /// Of `peer` at the other end of `socket`, with loans that count against its own quota.
    ///
    /// # Errors
    /// Those of asking the kernel for its groups; never of a master.
    pub(crate) fn from_peer(
        socket: impl AsFd,
        peer: Peer,
        groups: SharedGroups,
    ) -> linux::Result<Self> {
        let more = match peer::PeerGroups::from_socket(socket) {
            Err(_) if is_master(peer.uid) => peer::PeerGroups::Known(Vec::new()),
            more => more?,
        };
        let today = Rc::clone(&groups.borrow());
        let member = today.member(peer.gid, &more);
        let (account, socket) = (Uid(peer.uid), Weak::new());
        Ok(Self { peer, account, groups, member: RefCell::new((today, member)), socket })
    }

    /// The same on the account of another user.
    pub(crate) fn on_account(self, account: Uid) -> Self {
        Self { account, ..self }
    }

    /// The same of a connection that outlives this configuration.
    pub(crate) fn with_connection(self, socket: &Rc<UnixStream>) -> Self {
        Self { socket: Rc::downgrade(socket), ..self }
    }

    /// What it may do by its groups today. Where they cannot be asked for any more, nothing.
    fn member(&self) -> Member {
        let mut known = self.member.borrow_mut();
        let today = self.groups.borrow();
        if !Rc::ptr_eq(&known.0, &today) {
            let more = self
                .socket
                .upgrade()
                .and_then(|socket| peer::PeerGroups::from_socket(&*socket).ok());
            let member = more.map(|more| today.member(self.peer.gid, &more));
            *known = (Rc::clone(&today), member.unwrap_or_default());
        }
        known.1
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn uid(&self) -> Uid {
        Uid(self.peer.uid)
    }

    /// The user that pays for its loans.
    pub(crate) fn account(&self) -> Uid {
        self.account
    }

    /// User and group, as the owner of its loans.
    pub(crate) fn ids(&self) -> (u32, u32) {
        (self.peer.uid, self.peer.gid)
    }

    /// Root, and the user the daemon itself runs as.
    pub(crate) fn is_master(&self) -> bool {
        is_master(self.peer.uid)
    }

    fn only_root(&self, action: &str, needed: &str) -> Result<(), wire::Error> {
        if self.is_master() {
            return Ok(());
        }
        let (action, needed) = (action.to_owned(), needed.to_owned());
        Err(wire::Error::NotPermitted { uid: Uid(self.peer.uid), action, needed })
    }

    /// A refusal of what members of `groups` may; where there is none, `fields` of the
    /// configuration would name them.
    fn refuse(&self, groups: &[(&str, &Group)], action: &str, fields: &str) -> wire::Error {
        let named: Vec<_> =
            groups.iter().map(|(field, group)| format!("{group} ({field})")).collect();
        let mut needed = if named.is_empty() {
            format!("only root may, as {fields} is configured")
        } else {
            format!("root and members of group {} may", named.join(" or "))
        };
        if self.member().is_cut {
            needed += &format!(
                "; of your groups only the primary one counts, as there are more than {}",
                peer::MAX_GROUPS
            );
        }
        wire::Error::NotPermitted { uid: Uid(self.peer.uid), action: action.to_owned(), needed }
    }

    /// Whether it has any right at all. A peer without one is refused.
    pub(crate) fn may_connect(&self) -> Result<(), wire::Error> {
        self.may_either("connect")
    }

    /// Whether it may see the status: any right is enough.
    pub(crate) fn may_look(&self) -> Result<(), wire::Error> {
        self.may_either("look")
    }

    fn may_either(&self, action: &str) -> Result<(), wire::Error> {
        let Member { borrows, zeroes, .. } = self.member();
        if self.is_master() || borrows || zeroes {
            return Ok(());
        }
        let Groups { lenders, zero, .. } = &**self.groups.borrow();
        let lenders = lenders.iter().map(|lender| (lender.field, &lender.group));
        let zero = zero.iter().map(|group| ("zero_group", group));
        let groups: Vec<_> = lenders.chain(zero).collect();
        Err(self.refuse(&groups, action, "neither lend_group nor zero_group"))
    }

    /// Whether it may lend by name, and end loans by name.
    pub(crate) fn may_be_agent(&self) -> Result<(), wire::Error> {
        if self.is_master() || self.member().lends_by_name {
            return Ok(());
        }
        let Groups { agent, .. } = &**self.groups.borrow();
        let groups: Vec<_> = agent.iter().map(|group| ("agent.group", group)).collect();
        Err(self.refuse(&groups, "lend by name", "no agent.group"))
    }

    /// Whether it may borrow.
    pub(crate) fn may_lend(&self) -> Result<(), wire::Error> {
        if self.is_master() || self.member().borrows {
            return Ok(());
        }
        let Groups { lenders, .. } = &**self.groups.borrow();
        let groups: Vec<_> = lenders.iter().map(|lender| (lender.field, &lender.group)).collect();
        Err(self.refuse(&groups, "borrow", "no lend_group"))
    }

    /// The most that it may hold by its groups: of several the largest.
    pub(crate) fn quota(&self) -> Option<Bytes> {
        self.member().quota
    }

    /// Whether it may see who else has what.
    pub(crate) fn may_see_others(&self) -> bool {
        self.is_master() || self.member().zeroes
    }

    /// Whether it may look into other processes, and take their memory away.
    pub(crate) fn may_revoke(&self, action: &str) -> Result<(), wire::Error> {
        self.only_root(action, "only root may")
    }

    /// Whether it may have blocks in its hands that others borrow. A worker can keep a page of them
    /// pinned, and read and write the next borrower's bytes there; no proof sees that, and no look
    /// at its work helps against it.
    pub(crate) fn may_fill(&self) -> Result<(), wire::Error> {
        self.may_zero("zero")?;
        if self.is_master() || self.groups.borrow().zero_trusted {
            return Ok(());
        }
        let action = "have blocks in its hands that others borrow".to_owned();
        let needed = "write to the control tree, where a worker of the daemon's zeroes in your place \
                      and context; root may trust the group with all lent memory by trust_zero_group";
        Err(wire::Error::NotPermitted {
            uid: Uid(self.peer.uid),
            action,
            needed: needed.to_owned(),
        })
    }

    /// Whether it may change how blocks are recycled: what isolates borrowers is root's to say.
    pub(crate) fn may_change_recycling(&self) -> Result<(), wire::Error> {
        let needed = "only root may, as it decides what isolates borrowers";
        self.only_root("change how a pool recycles", needed)
    }

    /// Whether it may add pools. Every report has each of them, and every look at the kernel's
    /// counts takes longer, until the daemon ends.
    pub(crate) fn may_add_pools(&self) -> Result<(), wire::Error> {
        self.only_root("add a pool", "only root may")
    }

    /// Whether it may zero, configure and give back.
    pub(crate) fn may_zero(&self, action: &str) -> Result<(), wire::Error> {
        if self.is_master() || self.member().zeroes {
            return Ok(());
        }
        let Groups { zero, .. } = &**self.groups.borrow();
        let groups: Vec<_> = zero.iter().map(|group| ("zero_group", group)).collect();
        Err(self.refuse(&groups, action, "no zero_group"))
    }
}
