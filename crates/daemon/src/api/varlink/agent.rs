// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agents' face: loans by name, on a socket of its own.

use std::rc::Rc;
use std::time::Duration;

use book::{Asked, HeldByName, Refusal};
use units::{Bytes, LoanName, Node};
use wire::agent::{
    AgentError, LentByName, Loans, MOST_LISTED, NamedLoan, ReadyBlocks, Supplies, Supply,
};
use wire::{Hold, LendRequest};

use super::answer::Answer;
use super::translate::{self, page_size};
use crate::ops::Shared;
use crate::ops::waits;
use crate::peers::rights::Rights;
use crate::peers::users::Place;

/// One agent's connection.
#[derive(Debug)]
pub(super) struct AgentService {
    pub(super) shell: Shared,
    pub(super) rights: Rights,
    pub(super) place: Rc<Place>,
    pub(super) answer: Answer,
}

#[zlink::service(
    interface = "io.prezero.agent",
    types = [NamedLoan, ReadyBlocks, Supply],
    vendor = "prezero",
    product = "prezero",
    version = env!("CARGO_PKG_VERSION"),
    url = "https://crates.io/crates/prezero",
)]
impl AgentService {
    /// Lends memory by a name: one file, until the name is returned. The same name and size again
    /// are the same loan. One that is being made when its agent hangs up ends within a page.
    #[expect(clippy::too_many_arguments, reason = "a parameter each in the interface")]
    async fn lend(
        &mut self,
        name: String,
        bytes: u64,
        page_bytes: Option<u64>,
        node: Option<u32>,
        whole: Option<bool>,
        uid: Option<u32>,
        gid: Option<u32>,
        owner: Option<String>,
        keep_seconds: Option<u64>,
    ) -> Result<LentByName, AgentError> {
        self.rights.may_lend_by_name().map_err(error)?;
        for (field, number) in [("uid", uid), ("gid", gid)] {
            // To chown(2) that is not to change it.
            if number == Some(u32::MAX) {
                return Err(AgentError::bad_value(field, "4294967295 is nobody's number"));
            }
        }
        let request = LendRequest {
            page_size: page_size(page_bytes).map_err(error)?,
            node: node.map(Node),
            whole: whole.unwrap_or(false),
            owner: owner
                .map(|text| text.parse().map_err(|bad| AgentError::bad_value("owner", bad)))
                .transpose()?,
            keep: keep_seconds.map(Duration::from_secs),
            ..LendRequest::by_name(loan_name("name", &name)?, Bytes(bytes)).given_to(uid, gid)
        };
        self.lent(request).await
    }

    /// Ends the loan of that name, also one that is being made. Its file is nobody's as soon as
    /// nobody has it any more, or kept for its owner, if it has one and `discard` is not set.
    #[zlink(rename = "Return")]
    async fn give_back(&mut self, name: String, discard: Option<bool>) -> Result<(), AgentError> {
        self.rights.may_lend_by_name().map_err(error)?;
        let name = loan_name("name", &name)?;
        let discard = discard.unwrap_or(false);
        match waits::return_by_name(&self.shell, &name, discard).await.map_err(error)? {
            Some(true) => Ok(()),
            Some(false) => Err(AgentError::NameBusy { name: name.to_string() }),
            None => Err(AgentError::NoSuchName { name: name.to_string() }),
        }
    }

    /// The loans by name, in order, those whose names begin with `prefix` and come behind `after`;
    /// those that are being made as `pending`.
    async fn list_loans(
        &mut self,
        prefix: Option<String>,
        after: Option<String>,
    ) -> Result<Loans, AgentError> {
        self.rights.may_lend_by_name().map_err(error)?;
        let after = after.map(|after| loan_name("after", &after)).transpose()?;
        let shell = self.shell.borrow();
        let prefix = prefix.unwrap_or_default();
        let found = shell.book().named_loans(&prefix, after.as_ref());
        let mut found: Vec<_> = found.take(MOST_LISTED + 1).collect();
        let more = found.len() > MOST_LISTED;
        found.truncate(MOST_LISTED);
        let loans = found.iter().map(|loan| named(&self.shell, loan)).collect();
        Ok(self.answer.long.shorten(Loans { loans, more }))
    }

    /// What there is to lend on each node.
    async fn get_supply(&mut self) -> Result<Supplies, AgentError> {
        self.rights.may_lend_by_name().map_err(error)?;
        Ok(Supplies { supplies: self.shell.borrow_mut().supply() })
    }
}

impl AgentService {
    async fn lent(&self, request: LendRequest) -> Result<LentByName, AgentError> {
        let (own_uid, own_gid) = self.rights.ids();
        let Hold::Name { name, uid, gid } = request.hold.clone() else {
            return Err(AgentError::bad_value("name", "is missing"));
        };
        let borrower = (uid.unwrap_or(own_uid), gid.unwrap_or(own_gid));
        let (caller, account) = (self.rights.uid(), self.rights.account());
        let asked = self.shell.borrow_mut().ask(request, caller, account, None);
        let mut asked = asked.map_err(error)?;
        let lent = waits::lend(&self.shell, &self.place, &mut asked, borrower);
        let lent = tokio::select! {
            lent = lent => lent,
            () = self.answer.unwanted() => {
                return Err(AgentError::Failed { what: "its agent hung up".to_owned() });
            }
        };
        let (held, found, kept, ready_bytes) = match lent.map_err(error)? {
            Ok(waits::Lent::Named { held, ready, kept }) => {
                let ready = ready.bytes(held.page_size);
                (held, false, kept, ready.0)
            }
            Ok(waits::Lent::Found(held)) => {
                let there = self.shell.borrow().memory_of(held.block, held.page_size);
                let ready = there.0.min(held.bytes().0);
                (held, true, false, ready)
            }
            Ok(waits::Lent::Descriptors(_)) => {
                return Err(AgentError::Failed { what: "this loan has a name".to_owned() });
            }
            Err(no) => return Err(refused(&self.shell, &asked, &name, &no)),
        };
        Ok(LentByName { loan: named(&self.shell, &held), found, kept, ready_bytes })
    }
}

fn loan_name(field: &str, text: &str) -> Result<LoanName, AgentError> {
    text.parse().map_err(|bad| AgentError::bad_value(field, bad))
}

fn named(shell: &Shared, loan: &HeldByName) -> NamedLoan {
    // Nobody gets the path of a file that is not ready for its user.
    let path = if loan.is_pending { None } else { shell.borrow().path_of(loan.block) };
    let path = path.unwrap_or_default();
    NamedLoan {
        name: loan.name.to_string(),
        path: path.to_string_lossy().into_owned(),
        bytes: loan.bytes().0,
        page_bytes: loan.page_size.bytes(),
        node: loan.node.0,
        uid: loan.uid.0,
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
            held_bytes: held.0,
            quota_bytes: quota.0,
            asked_bytes: asked.request.bytes.0,
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
        wire::Error::NotEnough { asked_bytes, page_bytes, ready_bytes, free_bytes } => {
            AgentError::NotEnough { asked_bytes, page_bytes, ready_bytes, free_bytes }
        }
        other => AgentError::Failed { what: other.to_string() },
    }
}
