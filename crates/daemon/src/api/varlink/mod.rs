// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The varlink API: rights, parameters in, one call of an operation, reply out.
//!
//! One service value for each connection, because a connection is a peer with its rights. The
//! socket for agents and the one for borrowers differ in what their peers may call ([`Api`]).
//! [`accept`] lets peers in, by a thread in [`acceptor`], or turns them away by [`rejector`]. A
//! [`connection`] bounds what its peer can take, [`serving`] reads calls and sends replies,
//! [`translate`] has the words, [`lending`] the method of both sockets, [`watch`] the one method
//! with many replies.

pub(crate) mod accept;
mod acceptor;
mod connection;
mod lending;
mod rejector;
mod serving;
mod translate;
mod watch;

use std::rc::{Rc, Weak};

use tokio::net::UnixStream;
use wire::agent::{GetSupply, ListLoans, Loans, MAX_LISTED, Return, Supplies};
use wire::{
    Call, Configure, Configured, Drain, Drained, Error, FindHolders, FinishZeroing, Finished,
    GetStatus, Holders, LendRequest, Parameters, Refused, Release, Released, Revoke, Revoked,
    Status, TakeZeroing, Watch,
};

use crate::ops::{Shared, holders, waits, watchers};
use crate::peers::rights::Rights;
use crate::peers::users::Place;
use serving::{Answer, reply};
use watch::Reports;

/// Which socket a peer came by: that bounds what it may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    /// For borrowers, zeroers and observers: all of `io.prezero`, except loans by name.
    Borrowers,
    /// For programs that hand memory on to others: loans by name, and `io.prezero.agent`.
    Agents,
}

/// An interface: its name, and its definition as clients get it.
type Interface = (&'static str, &'static str);

const BORROWERS: Interface = (wire::INTERFACE, wire::DESCRIPTION);
const AGENTS: Interface = (wire::agent::INTERFACE, wire::agent::DESCRIPTION);

impl Api {
    /// The interfaces that its socket serves.
    fn interfaces(self) -> &'static [Interface] {
        match self {
            Self::Borrowers => &[wire::SERVICE, BORROWERS],
            Self::Agents => &[wire::SERVICE, BORROWERS, AGENTS],
        }
    }
}

/// One connection.
#[derive(Debug)]
struct Service {
    shell: Shared,
    rights: Rights,
    place: Rc<Place>,
    api: Api,
    /// The connection, which ends without this knowing.
    peer: Weak<UnixStream>,
}

impl Service {
    /// Carries out a call of one of its methods.
    async fn call(&mut self, call: Call) -> Result<Answer, Refused> {
        match self.api {
            Api::Borrowers => self.call_by_borrower(call).await,
            Api::Agents => self.call_by_agent(call).await,
        }
    }

    async fn call_by_borrower(&self, call: Call) -> Result<Answer, Refused> {
        match call.method.as_str() {
            GetStatus::NAME => reply(call, async |it| self.get_status(it).await).await,
            LendRequest::NAME => Ok(self.lend(call.parameters()?).await?),
            TakeZeroing::NAME => Ok(self.take(call.parameters()?).await?),
            FinishZeroing::NAME => reply(call, async |it| self.finish_zeroing(it).await).await,
            Release::NAME => reply(call, async |it| self.release(it).await).await,
            Drain::NAME => reply(call, async |it| self.drain(it).await).await,
            FindHolders::NAME => reply(call, async |it| self.find_holders(it).await).await,
            Revoke::NAME => reply(call, async |it| self.revoke(it).await).await,
            Configure::NAME => reply(call, async |it| self.configure(it).await).await,
            Watch::NAME => self.watch(call),
            _ => Err(serving::not_found(self.api, call.method)),
        }
    }

    async fn call_by_agent(&self, call: Call) -> Result<Answer, Refused> {
        match call.method.as_str() {
            LendRequest::NAME => Ok(self.lend(call.parameters()?).await?),
            Return::NAME => reply(call, async |it| self.return_loan(it).await).await,
            ListLoans::NAME => reply(call, async |it| self.list_loans(it)).await,
            GetSupply::NAME => reply(call, async |it| self.get_supply(it)).await,
            // The other methods of `io.prezero`.
            method if serving::has_method(self.api, method) => {
                Err(self.elsewhere(&format!("call {method}")).into())
            }
            _ => Err(serving::not_found(self.api, call.method)),
        }
    }
}

impl Service {
    async fn get_status(&self, GetStatus {}: GetStatus) -> Result<Status, Error> {
        self.rights.may_look()?;
        let status = waits::status(&self.shell, &self.place).await;
        Ok(holders::describe(&self.shell, &self.rights, status).await)
    }

    /// The refusal of what only peers of the other socket may.
    fn elsewhere(&self, action: &str) -> Error {
        let other = match self.api {
            Api::Borrowers => "agents",
            Api::Agents => "borrowers",
        };
        let needed = format!("only the daemon's socket for {other} takes that");
        Error::NotPermitted { uid: self.rights.uid(), action: action.to_owned(), needed }
    }

    async fn return_loan(&self, Return { name, discard }: Return) -> Result<Configured, Error> {
        self.rights.may_be_agent()?;
        match waits::return_by_name(&self.shell, &name, discard).await? {
            Some(true) => Ok(Configured {}),
            Some(false) => Err(Error::NameBusy { name: name.to_string() }),
            None => Err(Error::NoSuchName { name: name.to_string() }),
        }
    }

    fn list_loans(&self, ListLoans { prefix, after }: ListLoans) -> Result<Loans, Error> {
        self.rights.may_be_agent()?;
        let shell = self.shell.borrow();
        let prefix = prefix.unwrap_or_default();
        let mut found = shell.book().named_loans(&prefix, after.as_ref());
        let listed = found.by_ref().take(MAX_LISTED);
        let loans = listed.map(|loan| translate::listed(&shell, &loan)).collect();
        let more = found.next().is_some();
        Ok(Loans { loans, more })
    }

    fn get_supply(&self, GetSupply {}: GetSupply) -> Result<Supplies, Error> {
        self.rights.may_be_agent()?;
        Ok(Supplies { supplies: self.shell.borrow_mut().supply() })
    }

    async fn take(&self, request: TakeZeroing) -> Result<Answer, Error> {
        self.may_work()?;
        let pid = self.rights.peer().pid;
        let taken = waits::take_zeroing(&self.shell, &self.place, request, pid).await?;
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

    fn watch(&self, call: Call) -> Result<Answer, Refused> {
        let more = call.more;
        let watch = call.parameters()?;
        self.rights.may_look()?;
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
