// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection to the daemon's socket for agents: loans that last by a name.

use std::path::Path;
use std::time::Duration;

use units::LoanName;
use wire::agent::{AgentError, GetSupply, LentByName, ListLoans, NamedLoan, ReturnByName, Supply};
use wire::{LendForAgent, LendRequest, Parameters};

use crate::connection::exchange;
use crate::error::{Error, Result};
use crate::socket::Connection;

/// How long an answer may take: the daemon may zero what a whole loan lacks, at some GiB a second.
pub const AGENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection as an agent: root, or a member of the daemon's `agent.group`. Every call blocks
/// until its answer, at most [`AGENT_TIMEOUT`].
///
/// A call that lost its answer may have been carried out: ask for the same name again, or return
/// it. A loan that is being made when the connection is dropped ends within a page.
#[derive(Debug)]
pub struct AgentClient {
    connection: Connection,
}

impl AgentClient {
    /// Connects to the daemon's socket for agents.
    ///
    /// # Errors
    /// [`Error::NoDaemon`].
    pub fn connect(socket: impl AsRef<Path>) -> Result<Self> {
        let path = socket.as_ref();
        let connection = crate::socket::connect(path, AGENT_TIMEOUT)
            .map_err(|source| Error::NoDaemon { path: path.to_owned(), source })?;
        Ok(Self { connection })
    }

    fn call<M: Parameters>(&mut self, parameters: &M) -> Result<M::Reply> {
        Ok(exchange::<M, AgentError>(&mut self.connection, parameters)?.0)
    }

    /// Lends by a name: one file, until the name is returned. The same name and size again are the
    /// same loan.
    ///
    /// # Errors
    /// [`Error::AgentRefused`] with the reason, [`Error::Broken`].
    pub fn lend(&mut self, request: &LendRequest) -> Result<LentByName> {
        self.call(&LendForAgent(request.clone()))
    }

    /// Ends a loan by its name, also a pending one. Processes that have its file open or mapped
    /// keep that, and the memory is lent again only after they let go.
    ///
    /// # Errors
    /// [`Error::AgentRefused`] with [`AgentError::NoSuchName`] for an unused name.
    pub fn release(&mut self, name: LoanName) -> Result<()> {
        self.call(&ReturnByName { name, discard: false }).map(drop)
    }

    /// The same, and its content is dropped: for a loan that never reached its user.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub fn discard(&mut self, name: LoanName) -> Result<()> {
        self.call(&ReturnByName { name, discard: true }).map(drop)
    }

    /// All loans by name that begin with `prefix`, in the order of their names, pending ones
    /// ([`NamedLoan::pending`]) included.
    ///
    /// # Errors
    /// [`Error::AgentRefused`], [`Error::Broken`].
    pub fn loans(&mut self, prefix: &str) -> Result<Vec<NamedLoan>> {
        let mut all: Vec<NamedLoan> = Vec::new();
        loop {
            let after = all.last().and_then(|last| last.name.parse().ok());
            let listed = self.call(&ListLoans { prefix: Some(prefix.to_owned()), after })?;
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
    /// [`Error::AgentRefused`], [`Error::Broken`].
    pub fn supply(&mut self) -> Result<Vec<Supply>> {
        self.call(&GetSupply {}).map(|reply| reply.supplies)
    }
}
