// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What there is to see: pools, loans, users, and who holds what.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use units::{Bytes, Counts, Domain, LeaseId, Node, PageSize, Pages, Uid};

use crate::optional::seconds;
use crate::{Ailment, Health, KernelKind, Provider, Recycle};

/// Pages of one pool by state, and its thresholds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PoolStatus {
    /// NUMA node.
    pub node: Node,
    /// Page size in bytes.
    #[serde(rename = "page_bytes")]
    pub page_size: PageSize,
    /// Pages of one block; 0 where the daemon keeps blocks of several sizes, see `sizes`.
    pub pages_per_block: Pages,
    /// How its returned blocks become zero again: *fresh* also where the configured way is
    /// impossible.
    pub recycle: Recycle,
    /// Pages that could be zeroed now: dirty ones owned, and free ones that may be taken.
    pub zeroable_pages: Pages,
    /// Pages being cleared.
    pub zeroing_pages: Pages,
    /// Pages known to be zero.
    pub ready_pages: Pages,
    /// Pages in clients' hands.
    pub lent_pages: Pages,
    /// Pages with content that waits for its owner.
    pub kept_pages: Pages,
    /// Pages returned but still reachable.
    pub draining_pages: Pages,
    /// Those of them that are still mapped.
    pub mapped_pages: Pages,
    /// The pages of them that are closed and unmapped, in blocks with pinned pages.
    pub pinned_pages: Pages,
    /// Blocks of all states.
    pub blocks: u64,
    /// Background zeroing starts below.
    pub ready_low: Pages,
    /// Background zeroing stops at.
    pub ready_high: Pages,
    /// The most pages the pool may own.
    pub max_pages: Option<Pages>,
    /// Pages left free in the kernel's pool.
    pub leave_free: Pages,
    /// Free and unpromised pages of the kernel's pool on this node.
    pub kernel_free_pages: Pages,
    /// Free pages of the kernel's pool that are promised to programs that have mapped them: other
    /// programs cannot have them. The kernel counts promises of all nodes together.
    pub kernel_reserved_pages: Pages,
    /// The sizes of its blocks, where there are several: the wanted and the ready ones.
    pub sizes: Vec<BlockSize>,
    /// From what `ready_high` is learnt, where it is.
    pub learnt: Option<LearntAmount>,
    /// The size of the kernel's pool, where the daemon may change it for this pool.
    pub resize: Option<ResizeStatus>,
}

/// What a pool knows that learns from the time of the day how much to keep ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LearntAmount {
    /// The most it keeps ready, and what it does while it knows too little.
    pub max_pages: Pages,
    /// The days before today of which it knows this quarter of an hour; it needs three.
    pub known_days: u64,
}

/// The size of one pool of the kernel's, which the daemon may change.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResizeStatus {
    /// The minimum size of the kernel's pool in pages.
    pub min_pages: Pages,
    /// ... and makes it no larger than this.
    pub max_pages: Pages,
    /// Pages of the kernel's pool, in use or not, without surplus ones.
    pub total_pages: Pages,
    /// Pages that the daemon has added and has yet to take away again.
    pub added_pages: Pages,
    /// Pages that it is adding now.
    pub adding_pages: Pages,
    /// Another program made the kernel's pool smaller, to this size. The pool stays there until a
    /// program adds pages, or the configuration is read again.
    pub held_pages: Option<Pages>,
    /// Why the last growth came to less than it was to, in one line.
    pub short_because: Option<String>,
}

/// The blocks of one size of a pool that has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockSize {
    /// Pages of one block.
    pub pages_per_block: Pages,
    /// Ready pages.
    pub ready_blocks: u64,
    /// Pages wanted ready, by recent requests.
    pub wanted_blocks: u64,
}

/// One loan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoanStatus {
    /// The lease.
    pub lease: LeaseId,
    /// The borrower's user number.
    pub uid: Uid,
    /// The user that pays for it: the borrower, or the user to which the borrower is subordinate.
    pub account: Uid,
    /// The owner it named.
    pub owner: Option<String>,
    /// Page size in bytes.
    #[serde(rename = "page_bytes")]
    pub page_size: PageSize,
    /// Its pages.
    pub pages: Pages,
    /// Pages that its files have beyond that, as of a look a moment ago: its borrower's own doing,
    /// by fallocate(2). They count against the quota.
    pub grown_pages: Pages,
    /// Its blocks.
    pub blocks: u64,
    /// The nodes that they lie on.
    pub nodes: Vec<Node>,
    /// Pages that were ready, or that the kernel has filled with zeroed ones.
    pub ready_pages: Pages,
    /// The others: an unbacked part, which the borrower's own faults fill.
    pub unbacked_pages: Pages,
    /// For how long it has been lent. Absent for a loan of before the daemon's start.
    #[serde(rename = "age_seconds", default, with = "seconds")]
    pub age: Option<Duration>,
    /// The process that asked for it, by the daemon's numbers; another may hold it now. Absent for
    /// a loan of before the daemon's start, and in what users without the right to zero see of
    /// others' loans, as are the following.
    pub pid: Option<u32>,
    /// That process's command, 15 characters of it. Absent once it has ended.
    pub command: Option<String>,
    /// Its control group, as in /proc/PID/cgroup.
    pub cgroup: Option<String>,
}

/// What one user holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UserStatus {
    /// The user, subordinates included.
    pub uid: Uid,
    /// Its loans.
    pub loans: u64,
    /// What counts against its quota: lent, draining and kept, and what its files have beyond.
    pub held_bytes: Bytes,
    /// Its quota; by its groups, as of its last request.
    pub quota_bytes: Option<Bytes>,
}

/// One process that keeps a block from others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockHolder {
    /// The loan that the block is, or was, part of; absent for one of a lost worker.
    pub lease: Option<LeaseId>,
    /// Whether that loan has ended, so that the block is draining.
    pub draining: bool,
    /// NUMA node.
    pub node: Node,
    /// Page size in bytes.
    #[serde(rename = "page_bytes")]
    pub page_size: PageSize,
    /// The pages of all blocks of that loan that it holds in this way.
    pub pages: Pages,
    /// The process, by the daemon's numbers.
    pub pid: u32,
    /// Its effective user.
    pub uid: Uid,
    /// Its command.
    pub command: String,
    /// Its control group.
    pub cgroup: Option<String>,
    /// How it holds them.
    pub how: Held,
}

/// How a process holds a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Held {
    /// It maps it.
    #[default]
    Maps,
    /// It has it open.
    Opens,
    /// The block's pages are pinned, and it is its borrower's and has what pins pages: `io_uring`,
    /// VFIO or RDMA. The kernel does not say which process it is.
    Pins,
}

/// What happened since the daemon started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Loans granted.
    pub loans: u64,
    /// Bytes lent that were ready.
    pub lent_ready_bytes: Bytes,
    /// Bytes lent as an unbacked part, which the client's own faults fill.
    pub lent_unbacked_bytes: Bytes,
    /// Loans that got their owner's content back.
    pub kept_loans: u64,
    /// Loans refused.
    pub refusals: u64,
    /// Bytes that workers zeroed.
    pub zeroed_bytes: Bytes,
    /// Workers that went away without a word.
    pub lost_workers: u64,
    /// Bytes given back to the kernel for others.
    pub released_bytes: Bytes,
}

/// A kernel that knows its zeroed pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStatus {
    /// By a module, or by the patches that it was built with.
    pub kind: KernelKind,
    /// The version of the module; absent for a build without one.
    pub module_version: Option<String>,
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
}

/// Everything there is to see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Where its ready pages come from.
    pub provider: Provider,
    /// The kernel that is the provider; absent for the other providers.
    pub kernel: Option<KernelStatus>,
    /// The daemon's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// Its pools.
    pub pools: Vec<PoolStatus>,
    /// The counts of each node and page size: those of its pools together, which share the
    /// kernel's free pages.
    pub levels: Vec<Level>,
    /// Its loans.
    pub loans: Vec<LoanStatus>,
    /// Users with loans: only the caller without the right to zero.
    pub users: Vec<UserStatus>,
    /// Its own workers that run now.
    pub workers: u32,
    /// Whether background zeroing waits for CPU pressure to fall.
    pub paused_by_pressure: bool,
    /// Why pools recycle fresh that would recycle in place if pinned pages could be seen.
    pub fresh_reason: Option<String>,
    /// Whether it keeps nothing ready, because it was drained.
    pub drained: bool,
    /// Where its control tree is mounted.
    pub tree: Option<String>,
    /// Unknown blocks on its mounts: their pages are unused until its next start. None in a daemon
    /// without faults.
    pub unknown_files: u64,
    /// How the service is, in one word.
    pub health: Health,
    /// The causes, the gravest first: none where it is healthy, or could only be better.
    pub ailments: Vec<Ailment>,
    /// What happened since it started.
    pub counters: Counters,
}

/// One line of a watch: the counts of one node and page size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// NUMA node.
    pub node: Node,
    /// Page size in bytes.
    #[serde(rename = "page_bytes")]
    pub page_size: PageSize,
    /// Pages ready.
    pub ready_pages: Pages,
    /// Pages that could be zeroed now.
    pub zeroable_pages: Pages,
    /// Pages being cleared.
    pub zeroing_pages: Pages,
    /// Pages lent.
    pub lent_pages: Pages,
}

impl Level {
    /// The counts of a domain.
    #[must_use]
    pub fn new(domain: Domain, counts: &Counts) -> Self {
        Self {
            node: domain.node,
            page_size: domain.page_size,
            ready_pages: counts.ready,
            zeroable_pages: counts.zeroable,
            zeroing_pages: counts.zeroing,
            lent_pages: counts.lent,
        }
    }
}
