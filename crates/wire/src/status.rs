// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What there is to see: pools, loans, users, and who holds what.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use units::{Bytes, Counts, Domain, LeaseId, Node, PageSize, Pages, Uid};

use crate::optional::seconds;
use crate::{KernelKind, Provider, Recycle};

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
    /// How its returned blocks become zero again: *fresh* also where it is to be another, and
    /// cannot be.
    pub recycle: Recycle,
    /// Pages that could be zeroed now: dirty ones owned, and free ones that may be taken.
    pub zeroable_pages: Pages,
    /// Pages being cleared.
    pub zeroing_pages: Pages,
    /// Pages known to be zero.
    pub ready_pages: Pages,
    /// Pages in clients' hands.
    pub lent_pages: Pages,
    /// Pages whose content waits for its owner.
    pub kept_pages: Pages,
    /// Pages returned but still reachable.
    pub lingering_pages: Pages,
    /// Those of them that are still mapped.
    pub mapped_pages: Pages,
    /// Those of them that nobody has open or maps, in blocks of which pages are pinned.
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
    /// Pages of the kernel's pool on this node that are free and promised to nobody.
    pub kernel_free_pages: Pages,
    /// Pages of the kernel's pool that are free and promised to whoever has mapped them, so that
    /// nobody else can have them. The kernel counts promises of all nodes together.
    pub kernel_reserved_pages: Pages,
    /// The sizes of its blocks, where there are several: those that are wanted or ready.
    pub sizes: Vec<BlockSize>,
    /// The size of the kernel's pool, where the daemon may change it for this pool.
    pub elastic: Option<ElasticStatus>,
}

/// The size of one pool of the kernel's, which the daemon may change.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ElasticStatus {
    /// It keeps the kernel's pool at so many pages at least.
    pub min_pages: Pages,
    /// ... and makes it no larger than this.
    pub max_pages: Pages,
    /// Pages of the kernel's pool, in use or not, without surplus ones.
    pub total_pages: Pages,
    /// Of those the daemon has added so many, and not yet taken away again.
    pub grown_pages: Pages,
    /// It is adding so many at this moment.
    pub growing_pages: Pages,
    /// Somebody else made the kernel's pool smaller, to this size: it does not grow beyond that
    /// before somebody adds pages, or the configuration is read again.
    pub held_pages: Option<Pages>,
    /// Why the last growth came to less than it was to, in one line.
    pub short_because: Option<String>,
}

/// The blocks of one size of a pool that has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockSize {
    /// Pages of one block.
    pub pages_per_block: Pages,
    /// So many are ready.
    pub ready_blocks: u64,
    /// So many are to be, by what was asked for lately.
    pub wanted_blocks: u64,
}

/// One loan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoanStatus {
    /// The lease.
    pub lease: LeaseId,
    /// The borrower's user number.
    pub uid: Uid,
    /// The user whose quota it counts against: the borrower, or whose subordinate it is.
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
    /// Of its pages those that were ready, or have been filled by the kernel as zeroed ones.
    pub ready_pages: Pages,
    /// The others: a hole, which the borrower's own faults fill.
    pub hole_pages: Pages,
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
    /// What counts against its quota: lent, lingering and kept, and what its files have beyond.
    pub held_bytes: Bytes,
    /// Its quota; by its groups, as of its last request.
    pub quota_bytes: Option<Bytes>,
}

/// One process that keeps a block from others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockHolder {
    /// The loan that the block is, or was, part of; absent for one of a lost worker.
    pub lease: Option<LeaseId>,
    /// Whether that loan has ended, so that the block lingers.
    pub lingers: bool,
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
    pub hit_bytes: Bytes,
    /// Bytes lent as a hole, which the client's own faults fill.
    pub miss_bytes: Bytes,
    /// Loans that got their owner's content back.
    pub kept_loans: u64,
    /// Loans refused.
    pub refusals: u64,
    /// Bytes that workers zeroed.
    pub zeroed_bytes: Bytes,
    /// Workers that went away without a word.
    pub lost_workers: u64,
    /// Bytes given back to the kernel for others.
    pub given_back_bytes: Bytes,
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
    /// Whoever holds anything: only oneself without the right to zero.
    pub users: Vec<UserStatus>,
    /// Its own workers that run now.
    pub workers: u32,
    /// Whether background zeroing waits for CPU pressure to fall.
    pub paused_by_pressure: bool,
    /// Why pools recycle fresh that would recycle in place if pinned pages could be seen.
    pub fresh_because: Option<String>,
    /// Whether it keeps nothing ready, because somebody had it drained.
    pub drained: bool,
    /// Where its control tree is mounted.
    pub tree: Option<String>,
    /// Blocks on its mounts that it knows nothing of: their pages are nobody's until its next
    /// start. None in a daemon without faults. Absent in answers of a daemon from before.
    pub unknown_files: u64,
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
