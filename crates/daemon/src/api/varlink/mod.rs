// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The varlink face: rights, parameters in, one call of what lies below, reply out.
//!
//! One service value per connection, because a connection is a peer with its rights. [`accept`] is
//! where they come in, by the thread of [`acceptor`], through a [`socket`] each, or are refused by
//! [`rejector`]; [`translate`] has the words, [`watch`] the one method that has many replies.

pub(crate) mod accept;
mod acceptor;
mod agent;
mod answer;
mod long;
mod rejector;
mod socket;
mod translate;
mod watch;

use std::future::ready;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use book::Who;
use futures_util::Stream;
use futures_util::stream::once;
use units::{JobId, LeaseId, Node, Pages};
use wire::{
    BlockHolder, Counters, Drained, Error, Finished, GivenBack, Held, Holders, Job, KernelStatus,
    LendRequest, Lent, LentPart, Level, LoanStatus, PoolChange, PoolStatus, Revoked, Status,
    UserStatus, Watch, WatchReply, ZeroBy,
};
use zlink::Reply;

use crate::ops::Shared;
use crate::ops::{holders, waits, watchers};
use crate::peers::rights::Rights;
use crate::peers::users::Place;
use answer::Answer;
use translate::{LendParameters, page_size, with_fds};
use watch::Reports;

/// One connection.
#[derive(Debug)]
struct Service {
    shell: Shared,
    rights: Rights,
    place: Rc<Place>,
    answer: Answer,
}

#[zlink::service(
    interface = "io.prezero",
    types = [
        PoolStatus, LoanStatus, UserStatus, Counters, KernelStatus, Status, Level, LentPart, ZeroBy, PoolChange, BlockHolder,
        Held,
    ],
    vendor = "prezero",
    product = "prezero",
    version = env!("CARGO_PKG_VERSION"),
    url = "https://crates.io/crates/prezero",
)]
impl Service {
    /// Everything there is to see. For everybody who may borrow or zero; of others' loans and
    /// processes whoever may only borrow sees less.
    async fn get_status(&mut self) -> Result<Status, Error> {
        self.rights.may_look()?;
        let status = waits::status(&self.shell, &self.place).await;
        Ok(self.answer.long.shorten(holders::describe(&self.shell, &self.rights, status).await))
    }

    /// Lends memory. Descriptors: the lease, then one per part.
    #[zlink(return_fds)]
    #[expect(clippy::too_many_arguments, reason = "a parameter each in the interface")]
    async fn lend(
        &mut self,
        bytes: u64,
        page_bytes: Option<u64>,
        node: Option<u32>,
        owner: Option<String>,
        keep_seconds: Option<u64>,
        single: Option<bool>,
        held_by_memory: Option<bool>,
        most_blocks: Option<u32>,
    ) -> (Result<Lent, Error>, Vec<OwnedFd>) {
        let parameters = LendParameters {
            bytes,
            page_bytes,
            node,
            owner,
            keep_seconds,
            single,
            held_by_memory,
            most_blocks,
        };
        with_fds(self.lent(parameters.request()).await)
    }

    /// Hands work to a worker. Descriptors: the block's file, unless `by` is `kernel`, and the job.
    #[zlink(return_fds)]
    async fn take_zeroing(
        &mut self,
        node: Option<u32>,
        page_bytes: Option<u64>,
        background: Option<bool>,
    ) -> (Result<Job, Error>, Vec<OwnedFd>) {
        let who = if background == Some(true) { Who::Background } else { Who::User };
        with_fds(self.taken(who, node.map(Node), page_bytes))
    }

    /// Takes a worker's report. The worker must have let go of the block's file before.
    async fn finish_zeroing(&mut self, job: u64, pages_done: u64) -> Result<Finished, Error> {
        self.may_work()?;
        let state = waits::finish(&self.shell, JobId(job), Pages(pages_done)).await;
        Ok(Finished { state: state.ok_or(Error::NoSuchJob { job })? })
    }

    /// Gives ready and zeroable blocks back to the kernel: so many pages, or all.
    async fn give_back(
        &mut self,
        node: Option<u32>,
        page_bytes: Option<u64>,
        pages: Option<u64>,
    ) -> Result<GivenBack, Error> {
        self.rights.may_zero("give back")?;
        let page_size = page_size(page_bytes)?;
        let given = self.shell.borrow_mut().give_back(node.map(Node), page_size, pages.map(Pages));
        waits::all_freed(&self.shell).await;
        Ok(GivenBack { bytes: given.0 })
    }

    /// Gives all back that nobody has, and keeps nothing ready until it is called with `on` false,
    /// or the machine starts anew. Loans are served meanwhile, from the kernel's free pages.
    async fn drain(&mut self, on: bool) -> Result<Drained, Error> {
        self.rights.may_zero("drain")?;
        let drained = self.shell.borrow_mut().drain(on)?;
        waits::all_freed(&self.shell).await;
        Ok(drained)
    }

    /// Finds the processes that have blocks which are lent or linger: of one loan, or of all. Looks
    /// for some seconds at most. For root.
    async fn find_holders(&mut self, lease: Option<u64>) -> Result<Holders, Error> {
        self.rights.may_revoke("look into processes")?;
        Ok(self.answer.long.shorten(holders::find(&self.shell, lease.map(LeaseId)).await?))
    }

    /// Ends a loan and takes its memory away from whoever has it. For root.
    async fn revoke(&mut self, lease: u64) -> Result<Revoked, Error> {
        self.rights.may_revoke("revoke a loan")?;
        let revoked = self.shell.borrow_mut().revoke(LeaseId(lease));
        let bytes = revoked.ok_or(Error::NoSuchLease { lease })?;
        waits::revoked(&self.shell).await;
        Ok(Revoked { bytes: bytes.0 })
    }

    /// Changes a pool's thresholds, or, for root, adds a pool.
    async fn configure(&mut self, change: PoolChange) -> Result<(), Error> {
        self.rights.may_zero("configure")?;
        if change.recycle.is_some() {
            self.rights.may_change_recycling()?;
        }
        if !self.shell.borrow().has_pool(&change)? {
            self.rights.may_add_pools()?;
        }
        self.shell.borrow_mut().configure(&change)
    }

    /// Reports levels: with `below`, whenever ready pages fall below it; else on every change. For
    /// everybody who may borrow or zero.
    #[zlink(more)]
    async fn watch(
        &mut self,
        more: bool,
        node: Option<u32>,
        page_bytes: Option<u64>,
        below: Option<u64>,
        interval_ms: Option<u64>,
    ) -> impl Stream<Item = Result<Reply<WatchReply>, Error>> + Unpin {
        let watch = self.rights.may_look().and_then(|()| {
            let (node, page_size) = (node.map(Node), page_size(page_bytes)?);
            Ok(Watch { node, page_size, below: below.map(Pages), interval_ms })
        });
        match watch {
            Err(refused) => Box::pin(once(ready(Err(refused)))) as Reports,
            Ok(watch) if more => watch::reports(&self.shell, &self.place, watch),
            Ok(watch) => watch::once(&self.shell, watch),
        }
    }
}

impl Service {
    async fn lent(
        &self,
        request: Result<LendRequest, Error>,
    ) -> Result<(Lent, Vec<OwnedFd>), Error> {
        let begin = Instant::now();
        let refused = |_: &_| self.shell.borrow().metrics.refused(None, begin.elapsed());
        self.rights.may_lend().inspect_err(refused)?;
        let (uid, account) = (self.rights.uid(), self.rights.account());
        let quota = self.rights.quota();
        let mut asked = self.shell.borrow_mut().ask(request?, uid, account, quota)?;
        let granted = waits::lend(&self.shell, &self.place, &mut asked, self.rights.ids()).await?;
        let refusal = |no| translate::refusal(&asked, &no, self.shell.borrow().book());
        let (lent, fds) = translate::lent(granted.map_err(refusal)?)?;
        holders::note(&self.shell, &self.rights, &lent);
        Ok((self.answer.hands_over(lent), fds))
    }

    fn taken(
        &self,
        who: Who,
        node: Option<Node>,
        page_bytes: Option<u64>,
    ) -> Result<(Job, Vec<OwnedFd>), Error> {
        self.may_work()?;
        let page_size = page_size(page_bytes)?;
        let pid = self.rights.peer().pid;
        if pid.is_some_and(|pid| self.shell.borrow().workers.is_abandoned(pid)) {
            return Err(Error::NothingToZero);
        }
        let taken = self.shell.borrow_mut().take_zeroing(who, node, page_size)?;
        let (taken, watch) = taken.ok_or(Error::NothingToZero)?;
        watchers::job(&self.shell, taken.order.job, watch);
        Ok(translate::job(taken))
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
