// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asks, and who may zero and watch by ioctl.
//!
//! A request says its caller's user and group, and no supplementary groups. Where these decide, a
//! user queue of the caller's account reads them from procfs, which takes up to 50 ms for 65,536
//! groups. The user queue rests nine times as long afterwards.

use std::thread::sleep;

use linux::Roots;
use linux::peer::PeerGroups;
use tokio::sync::oneshot;
use units::Uid;

use super::open::FileOwner;
use super::wire::Caller;
use crate::base::user_queues::UserQueues;
use crate::peers::account::Accounts;
use crate::peers::rights::{SharedGroups, is_master};
use crate::peers::users::{cpu_time, rest_after};

#[derive(Debug)]
pub(super) struct Permits {
    groups: SharedGroups,
    accounts: Accounts,
    roots: Roots,
    user_queues: UserQueues,
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
        Self {
            groups,
            accounts: Accounts::new(roots.clone()),
            roots,
            user_queues: UserQueues::new(),
        }
    }

    /// The account of a request.
    pub(super) fn owner(&self, caller: Caller) -> FileOwner {
        let account = self.accounts.of_number(caller.uid);
        FileOwner { account, is_master: is_master(caller.uid) }
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
            // Of an invisible pid namespace.
            return Permit::Refused;
        }
        let (notify, reported) = oneshot::channel();
        let roots = self.roots.clone();
        self.user_queues.submit(Some(Uid(self.owner(caller).account)), move || {
            let begin = cpu_time();
            let groups = PeerGroups::from_request(&roots, caller.thread);
            // It may have been interrupted meanwhile.
            let _ = notify.send(groups.is_ok_and(|groups| groups.contains(zero)));
            sleep(rest_after(cpu_time().saturating_sub(begin)));
        });
        Permit::Asked(reported)
    }
}
