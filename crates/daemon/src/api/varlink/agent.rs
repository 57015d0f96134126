// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agents' interface: loans by name, on a socket of its own.

use std::rc::{Rc, Weak};

use book::{Asked, HeldByName, Refusal};
use tokio::net::UnixStream;
use units::LoanName;
use wire::agent::{
    AgentError, GetSupply, LentByName, ListLoans, Loans, MAX_LISTED, NamedLoan, ReturnByName,
    Supplies,
};
use wire::{Call, Configured, Hold, LendForAgent, Parameters, Refused};

use super::connection::hung_up;
use super::serving::{Answer, Interface, reply, unknown};
use super::translate;
use crate::ops::{Shared, waits};
use crate::peers::rights::Rights;
use crate::peers::users::Place;

/// One agent's connection.
#[derive(Debug)]
pub(super) struct AgentService {
    pub(super) shell: Shared,
    pub(super) rights: Rights,
    pub(super) place: Rc<Place>,
    /// The connection, which ends without this knowing.
    pub(super) peer: Weak<UnixStream>,
}

impl Interface for AgentService {
    const NAME: &'static str = wire::agent::INTERFACE;
    const DESCRIPTION: &'static str = wire::agent::DESCRIPTION;
    type Error = AgentError;

    async fn call(&mut self, call: Call) -> Result<Answer, Refused<AgentError>> {
        match call.method.as_str() {
            LendForAgent::NAME => reply(call, async |it| self.lend(it).await).await,
            ReturnByName::NAME => reply(call, async |it| self.release(it).await).await,
            ListLoans::NAME => reply(call, async |it| self.list_loans(it)).await,
            GetSupply::NAME => reply(call, async |it| self.get_supply(it)).await,
            _ => Err(unknown(call, Self::NAME)),
        }
    }
}

impl AgentService {
    async fn lend(&self, LendForAgent(request): LendForAgent) -> Result<LentByName, AgentError> {
        self.rights.may_lend_by_name().map_err(error)?;
        let Hold::Name { name, uid, gid } = request.hold.clone() else {
            return Err(AgentError::bad_value("name", "is missing"));
        };
        for (field, number) in [("uid", uid.map(|uid| uid.0)), ("gid", gid)] {
            // To chown(2) that is not to change it.
            if number == Some(u32::MAX) {
                return Err(AgentError::bad_value(field, "4294967295 is nobody's number"));
            }
        }
        let (own_uid, own_gid) = self.rights.ids();
        let borrower = (uid.map_or(own_uid, |uid| uid.0), gid.unwrap_or(own_gid));
        let (caller, account) = (self.rights.uid(), self.rights.account());
        let asked = self.shell.borrow_mut().ask(request, caller, account, None);
        let mut asked = asked.map_err(error)?;
        let lent = waits::lend(&self.shell, &self.place, &mut asked, borrower);
        let lent = tokio::select! {
            lent = lent => lent,
            () = hung_up(&self.peer) => {
                return Err(AgentError::Failed { what: "its agent hung up".to_owned() });
            }
        };
        let (held, found, kept, ready_bytes) = match lent.map_err(error)? {
            Ok(waits::NamedLoanStep::Named { held, ready, kept }) => {
                let ready = ready.bytes(held.page_size);
                (held, false, kept, ready)
            }
            Ok(waits::NamedLoanStep::Found(held)) => {
                let there = self.shell.borrow().memory_of(held.block, held.page_size);
                let ready = there.min(held.bytes());
                (held, true, false, ready)
            }
            Ok(waits::NamedLoanStep::Descriptors(_)) => {
                return Err(AgentError::Failed { what: "this loan has a name".to_owned() });
            }
            Err(no) => return Err(refused(&self.shell, &asked, &name, &no)),
        };
        Ok(LentByName { loan: named(&self.shell, &held), found, kept, ready_bytes })
    }

    async fn release(&self, request: ReturnByName) -> Result<Configured, AgentError> {
        self.rights.may_lend_by_name().map_err(error)?;
        let ReturnByName { name, discard } = request;
        match waits::return_by_name(&self.shell, &name, discard).await.map_err(error)? {
            Some(true) => Ok(Configured {}),
            Some(false) => Err(AgentError::NameBusy { name: name.to_string() }),
            None => Err(AgentError::NoSuchName { name: name.to_string() }),
        }
    }

    fn list_loans(&self, ListLoans { prefix, after }: ListLoans) -> Result<Loans, AgentError> {
        self.rights.may_lend_by_name().map_err(error)?;
        let shell = self.shell.borrow();
        let prefix = prefix.unwrap_or_default();
        let found = shell.book().named_loans(&prefix, after.as_ref());
        let mut found: Vec<_> = found.take(MAX_LISTED + 1).collect();
        let more = found.len() > MAX_LISTED;
        found.truncate(MAX_LISTED);
        let loans = found.iter().map(|loan| named(&self.shell, loan)).collect();
        Ok(Loans { loans, more })
    }

    fn get_supply(&self, GetSupply {}: GetSupply) -> Result<Supplies, AgentError> {
        self.rights.may_lend_by_name().map_err(error)?;
        Ok(Supplies { supplies: self.shell.borrow_mut().supply() })
    }
}

fn named(shell: &Shared, loan: &HeldByName) -> NamedLoan {
    // The path of a pending loan's file is withheld.
    let path = if loan.is_pending { None } else { shell.borrow().path_of(loan.block) };
    let path = path.unwrap_or_default();
    NamedLoan {
        name: loan.name.to_string(),
        path: path.to_string_lossy().into_owned(),
        bytes: loan.bytes(),
        page_size: loan.page_size,
        node: loan.node,
        uid: loan.uid,
        pending: loan.is_pending,
    }
}

/// Why a loan by name was refused.
fn refused(shell: &Shared, asked: &Asked, name: &LoanName, refusal: &Refusal) -> AgentError {
    let there = shell.borrow().book().named(name);
    match (refusal, there) {
        (Refusal::NameTaken, Some(there)) => {
            AgentError::NameTaken { loan: Box::new(named(shell, &there)) }
        }
        // It is being made, or it has ended since.
        (Refusal::NameBusy, _) | (Refusal::NameTaken, None) => {
            AgentError::NameBusy { name: name.to_string() }
        }
        (Refusal::TooManyNames, _) => {
            let most = asked.named.as_ref().map_or(0, |named| named.most as u64);
            AgentError::TooManyNames { most }
        }
        (Refusal::ScopeQuota { held, quota }, _) => AgentError::QuotaExceeded {
            scope: name.tenant().unwrap_or_default().to_owned(),
            held_bytes: *held,
            quota_bytes: *quota,
            asked_bytes: asked.request.bytes,
        },
        (other, _) => error(translate::refusal(asked, other, shell.borrow().book())),
    }
}

/// What both interfaces say, in the words of this one.
pub(super) fn error(error: wire::Error) -> AgentError {
    match error {
        wire::Error::NotPermitted { uid, action, needed } => {
            AgentError::NotPermitted { uid, action, needed }
        }
        wire::Error::BadValue { field, reason } => AgentError::BadValue { field, reason },
        wire::Error::NoSuchPool { wanted, configured } => {
            AgentError::NoSuchPool { wanted, configured }
        }
        wire::Error::NotEnough { asked_bytes, page_size, ready_bytes, free_bytes } => {
            AgentError::NotEnough { asked_bytes, page_size, ready_bytes, free_bytes }
        }
        other => AgentError::Failed { what: other.to_string() },
    }
}
