// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans: the one method that both sockets take, and which holds each of them grants.

use std::time::Instant;

use wire::{Error, Hold, LendRequest, LoanPaths};

use super::connection::hung_up;
use super::serving::Answer;
use super::{Api, Service, translate};
use crate::ops::{holders, waits};
use crate::storage::loan_paths::PathOwner;

impl Service {
    /// Lends memory, however the loan is held.
    pub(super) async fn lend(&self, request: LendRequest) -> Result<Answer, Error> {
        let begin = Instant::now();
        let refused = |_: &_| self.shell.borrow().metrics.refused(None, begin.elapsed());
        self.may_lend(&request.hold).inspect_err(refused)?;
        let (own_uid, own_gid) = self.rights.ids();
        let borrower = match &request.hold {
            Hold::Name { uid, gid, .. } => {
                (uid.map_or(own_uid, |uid| uid.0), gid.unwrap_or(own_gid))
            }
            Hold::Descriptor | Hold::Memory => (own_uid, own_gid),
        };
        let (uid, account) = (self.rights.uid(), self.rights.account());
        let quota = self.rights.quota();
        let paths = self.paths_of(&request).inspect_err(refused)?;
        let mut asked = self.shell.borrow_mut().ask(request, uid, account, quota)?;
        let lent = waits::lend(&self.shell, &self.place, &mut asked, borrower);
        let lent = tokio::select! {
            biased;
            lent = lent => lent?,
            () = hung_up(&self.peer) => {
                return Err(Error::Failed { what: "the borrower hung up".to_owned() });
            }
        };
        let lent = lent.map_err(|no| translate::refusal(&self.shell.borrow(), &asked, &no))?;
        if let (Some((paths, owner)), Some((held, is_new))) = (paths, lent.by_name()) {
            let mut shell = self.shell.borrow_mut();
            if let Err(error) = shell.add_paths(held, &paths, owner) {
                if is_new {
                    shell.end_lease(held.lease);
                }
                return Err(error);
            }
        }
        let (lent, fds) = translate::lent(&self.shell.borrow(), lent);
        if lent.lease_fd.is_none() {
            return Ok(Answer::new(&lent));
        }
        holders::record(&self.shell, &self.rights, &lent);
        Ok(Answer::with_loan(&lent, fds, &self.shell))
    }

    /// The paths that a loan is to have, and the user with the rights that make them. Root makes
    /// them with the rights of the file's user.
    fn paths_of(&self, request: &LendRequest) -> Result<Option<(LoanPaths, PathOwner)>, Error> {
        let Hold::Name { uid, gid, paths, .. } = &request.hold else { return Ok(None) };
        self.shell.borrow().check_paths(paths)?;
        let (own_uid, own_gid) = self.rights.ids();
        if paths.bind.is_some() && own_uid != 0 {
            return Err(Error::NotPermitted {
                uid: self.rights.uid(),
                action: "bind a loan at a path".to_owned(),
                needed: "only root may; a link (`link`) does the same for programs".to_owned(),
            });
        }
        let owner = match own_uid {
            0 => PathOwner { uid: uid.unwrap_or(self.rights.uid()), gid: *gid },
            _ => PathOwner { uid: self.rights.uid(), gid: Some(own_gid) },
        };
        Ok(Some((paths.clone(), owner)))
    }

    /// Whether the peer may have a loan that is held in that way. A socket has loans by name, or
    /// the others.
    fn may_lend(&self, hold: &Hold) -> Result<(), Error> {
        match (self.api, hold) {
            (Api::Borrowers, Hold::Descriptor | Hold::Memory) => self.rights.may_lend(),
            (Api::Agents, Hold::Name { .. }) => self.rights.may_be_agent(),
            (Api::Borrowers, Hold::Name { .. }) => Err(self.elsewhere("lend by name")),
            (Api::Agents, _) => Err(self.elsewhere("borrow without a name")),
        }
    }
}
