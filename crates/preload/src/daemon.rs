// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asking for a loan, in bounded time.

use std::time::{Duration, Instant};

use client::{Bytes, Client, Hold, LendRequest, Loan, Node, PageSize};

use crate::config::config;
use crate::policy::{Choice, NodeShare, portions};

/// How long no daemon is asked after one did not answer.
const DAEMON_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long the daemon may take where the kernel has just refused: it may be waiting for pages
/// that a program of a moment ago gave back.
const LAST_HOPE_TIMEOUT: Duration = Duration::from_secs(1);

/// What to borrow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) bytes: u64,
    pub(crate) page: u64,
    /// Whether the loan must be one file.
    pub(crate) single: bool,
    /// Whether the kernel has refused already.
    pub(crate) last_hope: bool,
    /// From this node alone, instead of by the thread's policy.
    pub(crate) node: Option<u32>,
}

/// The daemon, as this process asks it for loans.
#[derive(Debug)]
pub(crate) struct Lender {
    /// Until when no daemon is asked: one that does not answer costs its timeout once, not always.
    rest_until: Option<Instant>,
}

impl Lender {
    pub(crate) const fn new() -> Self {
        Self { rest_until: None }
    }

    /// The bytes that are ready, in pages of any size; `None` where no daemon says so in time.
    pub(crate) fn ready(&mut self) -> Option<u64> {
        if self.rest_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let config = config();
        let status =
            Client::connect_within(&config.socket, config.wait).and_then(|mut c| c.status());
        let Ok(status) = status else {
            self.rest_until = Some(Instant::now() + DAEMON_RETRY_INTERVAL);
            return None;
        };
        Some(status.pools.iter().map(|pool| pool.ready_pages.bytes(pool.page_size).0).sum())
    }

    /// Borrows in the nodes' portions where the thread's policy spreads memory, else as
    /// [`lend`](Self::lend) does.
    pub(crate) fn lend_spread(&mut self, ask: Ask) -> Result<Vec<Loan>, String> {
        let choice = Choice::of_thread()?;
        match choice.spread() {
            Some(shares) if ask.node.is_none() => self.lend_portions(ask, shares),
            _ => self.lend(ask).map(|loan| vec![loan]),
        }
    }

    /// Borrows each node's portion, in the order in which the memory is mapped.
    fn lend_portions(&mut self, ask: Ask, shares: &[NodeShare]) -> Result<Vec<Loan>, String> {
        if ask.single {
            return Err("the memory policy spreads pages over several nodes".to_owned());
        }
        let portions = portions(shares, ask.bytes / ask.page).into_iter();
        let lent = portions.map(|(node, pages)| {
            let loan = self.lend(Ask { bytes: pages * ask.page, node: Some(node), ..ask })?;
            // The kernel would go round the nodes for the missing pages of this one.
            let is_whole = loan.ready_bytes() == loan.bytes();
            is_whole.then_some(loan).ok_or_else(|| format!("node {node} has too few ready pages"))
        });
        lent.collect()
    }

    /// Borrows, or says why not.
    pub(crate) fn lend(&mut self, ask: Ask) -> Result<Loan, String> {
        if self.rest_until.is_some_and(|until| Instant::now() < until) && !ask.last_hope {
            return Err("the daemon did not answer a moment ago".to_owned());
        }
        let page_size = PageSize::new(ask.page).ok_or("no page size")?;
        let choice = match ask.node {
            Some(node) => Choice::only(node),
            None => Choice::of_thread()?,
        };
        if choice.spread().is_some() {
            return Err("the memory policy spreads pages over several nodes".to_owned());
        }
        let config = config();
        let wait = if ask.last_hope { config.wait.max(LAST_HOPE_TIMEOUT) } else { config.wait };
        let socket = &config.socket;
        let mut why = "the memory policy leaves no node".to_owned();
        let any = choice.or_others.then_some(None);
        for node in choice.first.iter().copied().map(Some).chain(any) {
            let request = LendRequest {
                page_size: Some(page_size),
                node: node.map(Node),
                single: ask.single,
                hold: Hold::Memory,
                ..LendRequest::new(Bytes(ask.bytes))
            };
            let lent = Client::connect_within(socket, wait).and_then(|mut c| c.lend(&request));
            match lent {
                Ok(loan) => match choice.check(&loan) {
                    Ok(()) => return Ok(loan),
                    Err(error) => why = error,
                },
                Err(error @ client::Error::Refused(_)) => why = error.to_string(),
                Err(error) => {
                    self.rest_until = Some(Instant::now() + DAEMON_RETRY_INTERVAL);
                    return Err(error.to_string());
                }
            }
        }
        Err(why)
    }
}
