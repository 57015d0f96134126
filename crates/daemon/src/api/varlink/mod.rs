// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The varlink API: rights, parameters in, one call of an operation, reply out.
//!
//! One service value for each connection, because a connection is a peer with its rights.
//! [`accept`] lets peers in, by a thread in [`acceptor`], or turns them away by [`rejector`]. A
//! [`connection`] bounds what its peer can take, [`serving`] reads calls and sends replies,
//! [`translate`] has the words, [`watch`] the one method with many replies.

pub(crate) mod accept;
mod acceptor;
mod agent;
mod connection;
mod rejector;
mod serving;
mod translate;
mod watch;

use std::rc::Rc;
use std::time::Instant;

use book::Requester;
use wire::{
    Call, Configure, Configured, Drain, Drained, Error, FindHolders, FinishZeroing, Finished,
    GetStatus, Holders, LendRequest, Parameters, Refused, Release, Released, Revoke, Revoked,
    Status, TakeZeroing, Watch,
};

use crate::ops::{Shared, holders, waits, watchers};
use crate::peers::rights::Rights;
use crate::peers::users::Place;
use serving::{Answer, Interface, reply, unknown};
use watch::Reports;

/// One connection.
#[derive(Debug)]
struct Service {
    shell: Shared,
    rights: Rights,
    place: Rc<Place>,
}

impl Interface for Service {
    const NAME: &'static str = wire::INTERFACE;
    const DESCRIPTION: &'static str = wire::DESCRIPTION;
    type Error = Error;

    async fn call(&mut self, call: Call) -> Result<Answer, Refused<Error>> {
        match call.method.as_str() {
            GetStatus::NAME => reply(call, async |it| self.get_status(it).await).await,
            LendRequest::NAME => self.lend(call.parameters()?).await.map_err(Refused::Interface),
            TakeZeroing::NAME => self.take(call.parameters()?).map_err(Refused::Interface),
            FinishZeroing::NAME => reply(call, async |it| self.finish_zeroing(it).await).await,
            Release::NAME => reply(call, async |it| self.release(it).await).await,
            Drain::NAME => reply(call, async |it| self.drain(it).await).await,
            FindHolders::NAME => reply(call, async |it| self.find_holders(it).await).await,
            Revoke::NAME => reply(call, async |it| self.revoke(it).await).await,
            Configure::NAME => reply(call, async |it| self.configure(it).await).await,
            Watch::NAME => self.watch(call),
            _ => Err(unknown(call, Self::NAME)),
        }
    }
}

impl Service {
    async fn get_status(&self, GetStatus {}: GetStatus) -> Result<Status, Error> {
        self.rights.may_look()?;
        let status = waits::status(&self.shell, &self.place).await;
        Ok(holders::describe(&self.shell, &self.rights, status).await)
    }

    async fn lend(&self, request: LendRequest) -> Result<Answer, Error> {
        let begin = Instant::now();
        let refused = |_: &_| self.shell.borrow().metrics.refused(None, begin.elapsed());
        self.rights.may_lend().inspect_err(refused)?;
        let (uid, account) = (self.rights.uid(), self.rights.account());
        let quota = self.rights.quota();
        let mut asked = self.shell.borrow_mut().ask(request, uid, account, quota)?;
        let granted = waits::lend(&self.shell, &self.place, &mut asked, self.rights.ids());
        match granted.await? {
            Ok(handover) => {
                let (lent, fds) = translate::lent(handover)?;
                holders::record(&self.shell, &self.rights, &lent);
                Ok(Answer::with_loan(&lent, fds, &self.shell))
            }
            Err(refusal) => Err(translate::refusal(&asked, &refusal, self.shell.borrow().book())),
        }
    }

    fn take(&self, work: TakeZeroing) -> Result<Answer, Error> {
        self.may_work()?;
        let pid = self.rights.peer().pid;
        if pid.is_some_and(|pid| self.shell.borrow().workers.is_abandoned(pid)) {
            return Err(Error::NothingToZero);
        }
        let who = if work.background { Requester::Background } else { Requester::User };
        let taken = self.shell.borrow_mut().take_zeroing(who, work.node, work.page_size)?;
        let (taken, watch) = taken.ok_or(Error::NothingToZero)?;
        watchers::job(&self.shell, taken.order.job, watch);
        let (job, fds) = translate::job(taken);
        Ok(Answer::with_fds(&job, fds))
    }

    async fn finish_zeroing(&self, report: FinishZeroing) -> Result<Finished, Error> {
        self.may_work()?;
        let FinishZeroing { job, pages_done } = report;
        let state = waits::finish(&self.shell, job, pages_done).await;
        Ok(Finished { state: state.ok_or(Error::NoSuchJob { job })? })
    }

    async fn release(&self, request: Release) -> Result<Released, Error> {
        self.rights.may_zero("release")?;
        let Release { node, page_size, pages } = request;
        let bytes = self.shell.borrow_mut().release(node, page_size, pages);
        waits::wait_until_all_freed(&self.shell).await;
        Ok(Released { bytes })
    }

    async fn drain(&self, Drain { on }: Drain) -> Result<Drained, Error> {
        self.rights.may_zero("drain")?;
        let drained = self.shell.borrow_mut().drain(on)?;
        waits::wait_until_all_freed(&self.shell).await;
        Ok(drained)
    }

    async fn find_holders(&self, FindHolders { lease }: FindHolders) -> Result<Holders, Error> {
        self.rights.may_revoke("look into processes")?;
        holders::find(&self.shell, lease).await
    }

    async fn revoke(&self, Revoke { lease }: Revoke) -> Result<Revoked, Error> {
        self.rights.may_revoke("revoke a loan")?;
        let revoked = self.shell.borrow_mut().revoke(lease);
        let bytes = revoked.ok_or(Error::NoSuchLease { lease })?;
        waits::revoked(&self.shell).await;
        Ok(Revoked { bytes })
    }

    async fn configure(&self, Configure { change }: Configure) -> Result<Configured, Error> {
        self.rights.may_zero("configure")?;
        if change.recycle.is_some() {
            self.rights.may_change_recycling()?;
        }
        if !self.shell.borrow().has_pool(&change) {
            self.rights.may_add_pools()?;
        }
        self.shell.borrow_mut().configure(&change)?;
        Ok(Configured {})
    }

    fn watch(&self, call: Call) -> Result<Answer, Refused<Error>> {
        let more = call.more;
        let watch = call.parameters()?;
        self.rights.may_look().map_err(Refused::Interface)?;
        Ok(match more {
            true => Answer::Reports(Reports::new(&self.shell, &self.place, watch)),
            false => Answer::new(&watch::once(&self.shell, watch)),
        })
    }

    /// Over a kernel that keeps the zeroed pages itself no worker gets hold of any.
    fn may_work(&self) -> Result<(), Error> {
        if self.shell.borrow().provider().hands_out_blocks() {
            self.rights.may_fill()
        } else {
            self.rights.may_zero("zero")
        }
    }
}
