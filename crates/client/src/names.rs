// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What agents do with loans by name: they end, list and plan them. The daemon takes these calls on
//! its socket for agents alone.

use units::LoanName;
use wire::NamedLoan;
use wire::agent::{GetSupply, ListLoans, Return, Supply};

use crate::connection::Client;
use crate::error::Result;

impl Client {
    /// Ends a loan by its name, also a pending one. Processes that have its file open or mapped
    /// keep that, and the memory is lent again only after they let go. `discard` drops its content,
    /// as for a loan that never reached its user.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) with [`wire::Error::NoSuchName`] for an unused
    /// name.
    pub fn return_loan(&mut self, name: LoanName, discard: bool) -> Result<()> {
        self.call(&Return { name, discard }).map(drop)
    }

    /// All loans by name that begin with `prefix`, in the order of their names, pending ones
    /// ([`NamedLoan::pending`]) included.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), [`Error::Broken`](crate::Error::Broken).
    pub fn loans(&mut self, prefix: &str) -> Result<Vec<NamedLoan>> {
        let mut all: Vec<NamedLoan> = Vec::new();
        loop {
            let after = all.last().and_then(|last| last.name.parse().ok());
            let (listed, _) = self.call(&ListLoans { prefix: Some(prefix.to_owned()), after })?;
            let is_last = !listed.more || listed.loans.is_empty();
            all.extend(listed.loans);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// What there is to lend on each node.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), [`Error::Broken`](crate::Error::Broken).
    pub fn supply(&mut self) -> Result<Vec<Supply>> {
        self.call(&GetSupply {}).map(|(reply, _)| reply.supplies)
    }
}
