// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of users. Their numbers are unused on a usual machine.

use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
pub(crate) use prezero_tests::storm::LEND_GROUP;

/// Members may zero.
pub(crate) const ZERO_GROUP: u32 = 65_522;

/// Members may lend by name.
pub(crate) const AGENT_GROUP: u32 = 65_523;

/// Groups from here on are outside the configuration.
const UNUSED_GROUPS: u32 = 1_000_000;

/// A user by what it may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Root.
    Root,
    /// Outside the daemon's groups.
    Stranger,
    /// In the group that may borrow.
    Borrower,
    /// The same with 65,536 unused supplementary groups.
    StrangerOfManyGroups,
    /// In the group that may borrow by its primary group alone, with as many.
    BorrowerOfManyGroups,
    /// In the group that may borrow, without accomplices.
    Victim,
    /// In the group that may zero, and in the one that may borrow.
    Zeroer,
    /// The same, alone.
    Operator,
    /// In the group that may lend by name.
    Agent,
    /// The same, without accomplices.
    Driver,
}

impl User {
    /// Its number, and its group's.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Root => 0,
            Self::BorrowerOfManyGroups => 65_526,
            Self::StrangerOfManyGroups => 65_527,
            Self::Driver => 65_528,
            Self::Agent => 65_529,
            Self::Operator => 65_530,
            Self::Stranger => 65_531,
            Self::Borrower => 65_532,
            Self::Victim => 65_533,
            Self::Zeroer => 65_534,
        }
    }

    /// As the table calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Stranger => "stranger",
            Self::StrangerOfManyGroups => "stranger of 65,536 groups",
            Self::BorrowerOfManyGroups => "borrower of 65,536 groups",
            Self::Borrower => "borrower",
            Self::Victim => "victim",
            Self::Zeroer => "zeroer",
            Self::Operator => "operator",
            Self::Agent => "agent",
            Self::Driver => "driver",
        }
    }

    /// The calling process, a child of the test, is that user from now on.
    pub(crate) fn become_it(self) {
        let groups: Vec<u32> = match self {
            Self::Root => return,
            Self::Stranger => Vec::new(),
            // The most that a process may have (NGROUPS_MAX).
            Self::StrangerOfManyGroups | Self::BorrowerOfManyGroups => {
                (UNUSED_GROUPS..).take(65_536).collect()
            }
            Self::Borrower | Self::Victim => vec![LEND_GROUP],
            Self::Zeroer | Self::Operator => vec![ZERO_GROUP, LEND_GROUP],
            Self::Agent | Self::Driver => vec![AGENT_GROUP],
        };
        let groups: Vec<_> = groups.into_iter().map(Gid::from_raw).collect();
        let primary = match self {
            Self::BorrowerOfManyGroups => LEND_GROUP,
            _ => self.number(),
        };
        setgroups(&groups).expect("root");
        setgid(Gid::from_raw(primary)).expect("root");
        setuid(Uid::from_raw(self.number())).expect("root");
        // As a process that a user has started, which one that was root before is not.
        let dumpable = rustix::process::DumpableBehavior::Dumpable;
        rustix::process::set_dumpable_behavior(dumpable).expect("its own process");
        // Undone by the change of user; without it a test that dies leaves its attackers behind.
        let kill = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(kill).expect("a signal that exists");
    }
}
