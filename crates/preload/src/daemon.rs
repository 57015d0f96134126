// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asking for a loan, in bounded time.

use std::time::{Duration, Instant};

use client::{Bytes, Client, LendRequest, Loan, Node, PageSize};

use crate::guard::State;
use crate::policy::Choice;

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

/// Borrows, or says why not.
pub(crate) fn lend(state: &mut State, ask: Ask) -> Result<Loan, String> {
    if state.rest_until.is_some_and(|until| Instant::now() < until) && !ask.last_hope {
        return Err("the daemon did not answer a moment ago".to_owned());
    }
    let page_size = PageSize::new(ask.page).ok_or("no page size")?;
    let choice = match ask.node {
        Some(node) => Choice::only(node),
        None => Choice::of_thread()?,
    };
    let config = state.config();
    let wait = if ask.last_hope { config.wait.max(WAIT_SHORT_OF_PAGES) } else { config.wait };
    let socket = config.socket.clone();
    let mut why = "the memory policy leaves no node".to_owned();
    let any = choice.or_others.then_some(None);
    for node in choice.first.iter().copied().map(Some).chain(any) {
        let request = LendRequest {
            page_size: Some(page_size),
            node: node.map(Node),
            single: ask.single,
            held_by_memory: true,
            ..LendRequest::new(Bytes(ask.bytes))
        };
        let lent = Client::connect_within(&socket, wait).and_then(|mut c| c.lend(&request));
        match lent {
            Ok(loan) => match choice.check(&loan) {
                Ok(()) => return Ok(loan),
                Err(error) => why = error,
            },
            Err(error @ client::Error::Refused(_)) => why = error.to_string(),
            Err(error) => {
                state.rest_until = Some(Instant::now() + REST);
                return Err(error.to_string());
            }
        }
    }
    Err(why)
}
