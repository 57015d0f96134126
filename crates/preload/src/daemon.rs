// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asking for a loan, in bounded time.

use std::time::{Duration, Instant};

use client::{Bytes, Client, Hold, LendRequest, Loan, Node, PageSize, Provider, Status};

use crate::config::config;
use crate::policy::Choice;
use crate::raw;

/// How long no daemon is asked after one did not answer.
const REST: Duration = Duration::from_secs(1);
/// How long the daemon may take where the kernel has just refused: it may be waiting for pages
/// that a program of a moment ago gave back.
const WAIT_SHORT_OF_PAGES: Duration = Duration::from_secs(1);

/// What to borrow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) bytes: u64,
    pub(crate) page: u64,
    /// Whether it must be one file.
    pub(crate) single: bool,
    /// Whether the kernel has refused already.
    pub(crate) last_hope: bool,
    /// From this node alone, instead of by the thread's policy.
    pub(crate) node: Option<u32>,
}

/// Who is asked for loans.
#[derive(Debug)]
pub(crate) struct Lender {
    /// Until when no daemon is asked: one that does not answer costs its timeout once, not always.
    rest_until: Option<Instant>,
}

impl Lender {
    pub(crate) const fn new() -> Self {
        Self { rest_until: None }
    }

    /// Pages of that size, on one node or all, that are ready for this user; `None` where nobody
    /// answers. A kernel that keeps its zeroed pages itself counts them as free.
    pub(crate) fn ready(&mut self, page: u64, node: Option<u32>) -> Option<u64> {
        if self.rest_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let config = config();
        let status = Client::connect_within(&config.socket, config.wait);
        match status.and_then(|mut client| client.status()) {
            Ok(status) if status.provider == Provider::Kernel => None,
            Ok(status) => Some(ready_in(&status, page, node)),
            Err(client::Error::Refused(_)) => None,
            Err(_) => {
                self.rest_until = Some(Instant::now() + REST);
                None
            }
        }
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
        let config = config();
        let wait = if ask.last_hope { config.wait.max(WAIT_SHORT_OF_PAGES) } else { config.wait };
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
                    self.rest_until = Some(Instant::now() + REST);
                    return Err(error.to_string());
                }
            }
        }
        Err(why)
    }
}

/// As far as its quota goes, where it is known.
fn ready_in(status: &Status, page: u64, node: Option<u32>) -> u64 {
    let wanted = |pool: &&client::PoolStatus| {
        pool.page_bytes == page && node.is_none_or(|node| pool.node == node)
    };
    let ready: u64 = status.pools.iter().filter(wanted).map(|pool| pool.ready_pages).sum();
    let (me, _) = raw::effective_ids();
    let mine = status.users.iter().find(|user| user.uid == me);
    let left = mine.and_then(|user| Some(user.quota_bytes?.saturating_sub(user.held_bytes)));
    left.map_or(ready, |left| ready.min(left / page))
}
