// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a service and its connection's socket tell each other of the answer at hand, past zlink:
//! the text of a long one, and the loan that is in it, because zlink reports no delivery. The
//! service learns here whether its peer hung up, because zlink reads nothing while it serves a
//! call.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::sleep;
use units::LeaseId;
use wire::Lent;

use super::long::Long;
use crate::ops::Shared;

/// How often is looked whether a peer that sends nothing more still reads: no event tells.
const HALF_CLOSED_POLL: Duration = Duration::from_millis(50);

/// The answer to the call at hand.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) long: Long,
    shell: Shared,
    /// Granted, and not sent yet.
    loan: Rc<Cell<Option<LeaseId>>>,
    /// The connection, which ends without this knowing.
    peer: Rc<RefCell<Weak<UnixStream>>>,
}

impl Answer {
    pub(super) fn new(shell: Shared) -> Self {
        Self { long: Long::default(), shell, loan: Rc::default(), peer: Rc::default() }
    }

    /// It is sent on that connection.
    pub(super) fn goes_to(&self, peer: &Rc<UnixStream>) {
        *self.peer.borrow_mut() = Rc::downgrade(peer);
    }

    /// Waits until nobody can get the answer any more.
    pub(super) async fn unwanted(&self) {
        let Some(peer) = self.peer.borrow().upgrade() else { return };
        // Ready once the peer has closed its end, or shut down what it sends; not when it has sent
        // calls ahead. An error is a connection's end.
        while peer.ready(Interest::PRIORITY).await.is_ok() {
            let mut fds = [PollFd::new(&*peer, PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP) {
                return;
            }
            sleep(HALF_CLOSED_POLL).await;
        }
    }

    /// It has the descriptors of this loan. Returns what zlink is to write.
    pub(super) fn hands_over(&self, lent: Lent) -> Lent {
        self.loan.set(Some(LeaseId(lent.lease)));
        self.long.shorten(lent)
    }

    /// It is sent now. Returns what to call, with whether it was, before anything else is done.
    /// That may be cancelled at any moment: then its borrower may have the loan, and nothing of it
    /// is kept.
    pub(super) fn sends(&self) -> impl FnOnce(bool) + use<> {
        let (shell, loan) = (Rc::clone(&self.shell), self.loan.take());
        move |was_sent| {
            let Some(lease) = loan else { return };
            let mut shell = shell.borrow_mut();
            if was_sent { shell.sent(lease) } else { shell.end_lease(lease) }
        }
    }

    /// Another call begins: one that wants no answer has left its own here.
    pub(super) fn forget(&self) {
        self.long.forget();
        self.loan.set(None);
    }
}
