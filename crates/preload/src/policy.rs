// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which nodes the kernel would take a thread's pages from, so that a loan takes none from others.
//!
//! The kernel follows the policy of the thread that touches a page first. A loan follows the policy
//! of the thread that makes the call. Pages that a loan leaves to the program's own faults are
//! placed by the kernel.

use std::fmt;

use client::Loan;

use crate::raw::{self, Errno};

/// The most nodes that Linux has.
const MAX_NODES: u32 = 1024;

/// A set of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nodes(pub(crate) [u64; MAX_NODES as usize / 64]);

impl Nodes {
    pub(crate) fn has(&self, node: u32) -> bool {
        self.0.get(node as usize / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..MAX_NODES).filter(|node| self.has(*node))
    }

    fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & other.0[at]))
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, node) in self.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{node}")?;
        }
        Ok(())
    }
}

/// A node's part in memory that a policy spreads over several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeShare {
    pub(crate) node: u32,
    weight: u64,
}

/// How many of `pages` each node has by its weight. A policy goes round its nodes page by page, so
/// the last, broken round gives the first nodes one page of each of their weights.
pub(crate) fn portions(shares: &[NodeShare], pages: u64) -> Vec<(u32, u64)> {
    let round = shares.iter().map(|share| share.weight).sum::<u64>().max(1);
    let (whole, mut rest) = (pages / round, pages % round);
    let portion = |share: &NodeShare| {
        let of_rest = rest.min(share.weight);
        rest -= of_rest;
        (share.node, whole * share.weight + of_rest)
    };
    shares.iter().map(portion).filter(|(_, pages)| *pages > 0).collect()
}

/// The nodes of a policy that spreads memory; a weighted one has the machine's weights.
fn shares(mode: libc::c_int, nodes: &Nodes) -> Vec<NodeShare> {
    let weight = |node: u32| {
        let path = format!("/sys/kernel/mm/mempolicy/weighted_interleave/node{node}");
        let weight = || std::fs::read_to_string(path).ok()?.trim().parse().ok();
        if mode == WEIGHTED_INTERLEAVE { weight().filter(|w| *w > 0).unwrap_or(1) } else { 1 }
    };
    nodes.iter().map(|node| NodeShare { node, weight: weight(node) }).collect()
}

/// Where pages may come from.
#[derive(Debug)]
pub(crate) struct Choice {
    /// These nodes are asked first, one after the other.
    pub(crate) first: Vec<u32>,
    /// Whether other nodes may follow, or several together.
    pub(crate) or_others: bool,
    /// The memory is spread over these nodes.
    spread: Vec<NodeShare>,
    /// All pages must lie on these.
    allowed: Nodes,
}

/// The most nodes that are asked one by one.
const MAX_ASKED_NODES: usize = 8;

impl Choice {
    /// One node alone.
    pub(crate) fn only(node: u32) -> Self {
        let mut allowed = Nodes([0; MAX_NODES as usize / 64]);
        if let Some(word) = allowed.0.get_mut(node as usize / 64) {
            *word |= 1 << (node % 64);
        }
        Self { first: vec![node], or_others: false, spread: Vec::new(), allowed }
    }

    /// The kernel's choice for the calling thread: its memory policy, within its cpuset.
    ///
    /// # Errors
    /// A policy that a loan cannot follow.
    pub(crate) fn of_thread() -> Result<Self, String> {
        let all = Nodes([u64::MAX; MAX_NODES as usize / 64]);
        let (mode, mask) = match raw::memory_policy() {
            Ok(policy) => policy,
            // A container's filter forbids the question, and setting a policy with it.
            Err(Errno(libc::EPERM)) => (libc::MPOL_DEFAULT, [0; MAX_NODES as usize / 64]),
            // Without NUMA in the kernel there is one node and no policy.
            Err(_) => {
                let (first, spread) = (Vec::new(), Vec::new());
                return Ok(Self { first, or_others: true, spread, allowed: all });
            }
        };
        let cpuset = raw::allowed_nodes().map(Nodes).ok().or_else(cpuset_of_status).unwrap_or(all);
        let mask = Nodes(mask).and(&cpuset);
        let here = raw::current_node();
        let nearest_of = |nodes: &Nodes| {
            let near = here.filter(|node| nodes.has(*node));
            let rest = nodes.iter().filter(|node| Some(*node) != near);
            near.into_iter().chain(rest).take(MAX_ASKED_NODES).collect::<Vec<_>>()
        };
        let several = || nearest_of(&mask);
        let local = || match here {
            Some(node) if cpuset.has(node) => vec![node],
            Some(_) => nearest_of(&cpuset),
            None => Vec::new(),
        };
        let (first, or_others, allowed) = match (mode & MODES, mask.count()) {
            _ if mode & libc::MPOL_F_RELATIVE_NODES != 0 => {
                return Err("the memory policy's nodes are relative".to_owned());
            }
            (libc::MPOL_DEFAULT | libc::MPOL_LOCAL, _) | (libc::MPOL_PREFERRED, 0) => {
                (local(), true, cpuset)
            }
            (libc::MPOL_PREFERRED | PREFERRED_MANY, 1..) => (several(), true, cpuset),
            (libc::MPOL_BIND, 1) => (several(), false, mask),
            (libc::MPOL_BIND, 2..) => (several(), true, mask),
            (libc::MPOL_INTERLEAVE | WEIGHTED_INTERLEAVE, 1) => (several(), true, cpuset),
            (mode @ (libc::MPOL_INTERLEAVE | WEIGHTED_INTERLEAVE), 2..) => {
                let spread = shares(mode, &mask);
                return Ok(Self { first: Vec::new(), or_others: false, spread, allowed: mask });
            }
            _ => return Err(format!("the memory policy {mode:#x} is unknown")),
        };
        Ok(Self { first, or_others, spread: Vec::new(), allowed })
    }

    /// The nodes that the memory is spread over, if it is.
    pub(crate) fn spread(&self) -> Option<&[NodeShare]> {
        (!self.spread.is_empty()).then_some(&*self.spread)
    }

    /// Checks that all blocks of a loan lie on allowed nodes.
    ///
    /// # Errors
    /// The node at fault.
    pub(crate) fn check(&self, loan: &Loan) -> Result<(), String> {
        match loan.parts().find(|(_, part)| !self.allowed.has(part.node.0)) {
            None => Ok(()),
            Some((_, part)) => {
                Err(format!("node {} has pages, but the thread may not have them", part.node))
            }
        }
    }
}

/// The nodes of the thread's cpuset as `/proc` has them.
fn cpuset_of_status() -> Option<Nodes> {
    let fd = raw::open(c"/proc/thread-self/status").ok()?;
    let (mut text, mut buffer) = (Vec::new(), [0_u8; 4096]);
    while let Ok(read @ 1..) = raw::pread(fd, &mut buffer, text.len() as u64) {
        text.extend_from_slice(&buffer[..read]);
    }
    raw::close(fd);
    let text = String::from_utf8_lossy(&text);
    parse_nodes(text.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?)
}

/// `0-2,5`.
fn parse_nodes(list: &str) -> Option<Nodes> {
    let mut nodes = Nodes([0; MAX_NODES as usize / 64]);
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        for node in first.parse::<usize>().ok()?..=last.parse::<usize>().ok()? {
            *nodes.0.get_mut(node / 64)? |= 1 << (node % 64);
        }
    }
    Some(nodes)
}

/// The policy of a range of memory.
#[derive(Debug)]
pub(crate) struct RangePolicy {
    mode: libc::c_int,
    nodes: Nodes,
}

impl RangePolicy {
    pub(crate) fn new((mode, nodes): (libc::c_int, [u64; MAX_NODES as usize / 64])) -> Self {
        Self { mode: mode & MODES, nodes: Nodes(nodes) }
    }

    /// Whether the kernel would take pages of that node, if all nodes had some.
    pub(crate) fn suits(&self, node: u32) -> bool {
        match self.mode {
            libc::MPOL_BIND | PREFERRED_MANY => self.nodes.has(node),
            libc::MPOL_PREFERRED => self.nodes.count() == 0 || self.nodes.has(node),
            libc::MPOL_INTERLEAVE | WEIGHTED_INTERLEAVE => self.only_node() == Some(node),
            _ => true,
        }
    }

    /// The one node that it names.
    pub(crate) fn only_node(&self) -> Option<u32> {
        self.nodes.iter().next().filter(|_| self.nodes.count() == 1)
    }
}

impl fmt::Display for RangePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.nodes.fmt(f)
    }
}

/// The flags above say how the mask follows a cpuset.
const MODES: libc::c_int = 0xFF;
/// Linux 5.15.
const PREFERRED_MANY: libc::c_int = 5;
/// Linux 6.9.
const WEIGHTED_INTERLEAVE: libc::c_int = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_follow_the_weights_and_lose_no_page() {
        let shares = |weights: &[u64]| -> Vec<NodeShare> {
            (0..).zip(weights).map(|(node, weight)| NodeShare { node, weight: *weight }).collect()
        };
        assert_eq!(portions(&shares(&[1, 1]), 64), [(0, 32), (1, 32)]);
        assert_eq!(portions(&shares(&[1, 1]), 65), [(0, 33), (1, 32)]);
        assert_eq!(portions(&shares(&[1, 1, 1]), 1), [(0, 1)]);
        assert_eq!(portions(&shares(&[3, 1]), 64), [(0, 48), (1, 16)]);
        assert_eq!(portions(&shares(&[3, 2]), 9), [(0, 6), (1, 3)]);
        for pages in 0..50 {
            let all = portions(&shares(&[3, 1, 2]), pages);
            assert_eq!(all.iter().map(|(_, pages)| pages).sum::<u64>(), pages);
        }
    }
}
