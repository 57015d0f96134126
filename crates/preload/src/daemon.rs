// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asking for a loan, in bounded time.

use std::time::{Duration, Instant};

use client::{Bytes, Client, LendRequest, Loan, Node, PageSize};

use crate::guard::State;
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
}

/// Borrows, or says why not.
pub(crate) fn lend(state: &mut State, ask: Ask) -> Result<Loan, String> {
    if state.rest_until.is_some_and(|until| Instant::now() < until) && !ask.last_hope {
        return Err("the daemon did not answer a moment ago".to_owned());
    }
    let page_size = PageSize::new(ask.page).ok_or("no page size")?;
    let nodes = nodes()?;
    let config = state.config();
    let wait = if ask.last_hope { config.wait.max(WAIT_SHORT_OF_PAGES) } else { config.wait };
    let request = |node: Option<u32>| LendRequest {
        page_size: Some(page_size),
        node: node.map(Node),
        single: ask.single,
        held_by_memory: true,
        ..LendRequest::new(Bytes(ask.bytes))
    };
    let socket = config.socket.clone();
    let mut result = Client::connect_within(&socket, wait)
        .and_then(|mut client| client.lend(&request(nodes.first)));
    if nodes.or_others && matches!(&result, Err(client::Error::Refused(_))) {
        result = Client::connect_within(&socket, wait)
            .and_then(|mut client| client.lend(&request(None)));
    }
    result.map_err(|error| {
        if !matches!(error, client::Error::Refused(_)) {
            state.rest_until = Some(Instant::now() + REST);
        }
        error.to_string()
    })
}

/// From which node: what the kernel would look for.
struct Nodes {
    first: Option<u32>,
    or_others: bool,
}

/// The thread's memory policy as a loan can follow it.
fn nodes() -> Result<Nodes, String> {
    // Without NUMA in the kernel there is one node and no policy.
    let Ok((mode, mask)) = raw::memory_policy() else {
        return Ok(Nodes { first: None, or_others: false });
    };
    let count: u32 = mask.iter().map(|word| word.count_ones()).sum();
    let only = || {
        let word = mask.iter().position(|word| *word != 0)?;
        u32::try_from(word * 64).ok().map(|base| base + mask[word].trailing_zeros())
    };
    // The flags above the mode say how the mask follows a cpuset.
    match mode & 0xFF {
        libc::MPOL_DEFAULT | libc::MPOL_LOCAL => {
            Ok(Nodes { first: raw::current_node(), or_others: true })
        }
        libc::MPOL_PREFERRED if count == 0 => {
            Ok(Nodes { first: raw::current_node(), or_others: true })
        }
        libc::MPOL_PREFERRED if count == 1 => Ok(Nodes { first: only(), or_others: true }),
        libc::MPOL_BIND if count == 1 => Ok(Nodes { first: only(), or_others: false }),
        _ => Err("the memory policy names several nodes".to_owned()),
    }
}
