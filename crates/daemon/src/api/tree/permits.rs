// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asks, and who may zero and watch by ioctl.
//!
//! A request says its caller's user and group, and no supplementary groups. Where these decide, a
//! lane of the caller's account reads them from procfs, which takes up to 50 ms for 65,536 groups.
//! The lane rests nine times as long afterwards.

use std::thread::sleep;

use linux::Roots;
use linux::peer::Groups;
use tokio::sync::oneshot;
use units::Uid;

use super::open::Owner;
use super::wire::Caller;
use crate::base::user_queues::Lanes;
use crate::peers::account::Accounts;
use crate::peers::rights::{SharedGroups, is_master};
use crate::peers::users::{cpu_time, rest_after};

#[derive(Debug)]
pub(super) struct Permits {
    groups: SharedGroups,
    accounts: Accounts,
    roots: Roots,
    lanes: Lanes,
}

/// Whether the caller may.
#[derive(Debug)]
pub(super) enum Permit {
    Given,
    Refused,
    /// That is being asked.
    Asked(oneshot::Receiver<bool>),
}

impl Permits {
    pub(super) fn new(groups: SharedGroups, roots: Roots) -> Self {
        Self { groups, accounts: Accounts::new(roots.clone()), roots, lanes: Lanes::new() }
    }

    /// On whose account a request is.
    pub(super) fn owner(&self, caller: Caller) -> Owner {
        let account = self.accounts.of_number(caller.uid);
        Owner { account, is_master: is_master(caller.uid) }
    }

    /// Where the kernel asks for the right to write its device: root and the zeroing group.
    pub(super) fn to_zero(&self, caller: Caller) -> Permit {
        if is_master(caller.uid) {
            return Permit::Given;
        }
        let Some(zero) = self.groups.borrow().zero() else { return Permit::Refused };
        if caller.gid == zero {
            return Permit::Given;
        }
        if caller.thread == 0 {
            // Of a pid namespace that is not visible from here.
            return Permit::Refused;
        }
        let (tell, told) = oneshot::channel();
        let roots = self.roots.clone();
        self.lanes.submit(Some(Uid(self.owner(caller).account)), move || {
            let begin = cpu_time();
            let groups = Groups::of_request(&roots, caller.thread);
            // It may have been interrupted meanwhile.
            let _ = tell.send(groups.is_ok_and(|groups| groups.contains(zero)));
            sleep(rest_after(cpu_time().saturating_sub(begin)));
        });
        Permit::Asked(told)
    }
}
