// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types of the varlink interface `io.prezero`: the one place where daemon and client meet.
//!
//! Numbers are plain here and carry their unit in the name; everybody converts to the types of
//! `units` at once. File descriptors travel beside a reply; fields that end in `fd` are indices
//! into them, as in systemd's varlink interfaces.
#![forbid(unsafe_code)]

pub mod agent;
mod methods;
mod words;

use std::fmt;

pub use methods::{
    Configure, Drain, FindHolders, FinishZeroing, GetStatus, GiveBack, LendRequest, Parameters,
    Revoke, TakeZeroing, Watch,
};
use serde::{Deserialize, Serialize};
use units::{Bytes, Counts, Domain, Node, PageSize, Pages, PoolKey};
pub use words::{Provider, Recycle, StateName, Unknown};
use zlink::introspect::{CustomType, ReplyError as IntrospectError, Type};

/// The interface's name.
pub const INTERFACE: &str = "io.prezero";
/// Where the daemon listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/prezero/io.prezero";
/// So many descriptors the kernel passes in one message (`SCM_MAX_FD`).
pub const MESSAGE_FDS: usize = 253;
/// The most blocks in a loan to a client that does not say how many it can take: with the lease's
/// one message of descriptors.
pub const MAX_PARTS: usize = MESSAGE_FDS - 1;
/// The most blocks in any loan. Each takes 10 us of the daemon's one thread.
pub const MOST_PARTS: usize = 1024;

/// Pages of one pool by state, and its thresholds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, CustomType)]
pub struct PoolStatus {
    /// NUMA node.
    pub node: u32,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Pages of one block.
    pub pages_per_block: u64,
    /// How its returned blocks become zero again: *fresh* also where it is to be another, and
    /// cannot be.
    pub recycle: Recycle,
    /// Pages that could be zeroed now: dirty ones owned, and free ones that may be taken.
    pub zeroable_pages: u64,
    /// Pages being cleared.
    pub zeroing_pages: u64,
    /// Pages known to be zero.
    pub ready_pages: u64,
    /// Pages in clients' hands.
    pub lent_pages: u64,
    /// Pages whose content waits for its owner.
    pub kept_pages: u64,
    /// Pages returned but still reachable.
    pub lingering_pages: u64,
    /// Those of them that are still mapped.
    pub mapped_pages: u64,
    /// Those of them that nobody has open or maps, in blocks of which pages are pinned.
    pub pinned_pages: u64,
    /// Blocks of all states.
    pub blocks: u64,
    /// Background zeroing starts below.
    pub ready_low: u64,
    /// Background zeroing stops at.
    pub ready_high: u64,
    /// The most pages the pool may own.
    pub max_pages: Option<u64>,
    /// Pages left free in the kernel's pool.
    pub leave_free: u64,
    /// Pages of the kernel's pool on this node that are free and promised to nobody.
    pub kernel_free_pages: u64,
    /// Pages of the kernel's pool that are free and promised to whoever has mapped them, so that
    /// nobody else can have them. The kernel counts promises of all nodes together.
    #[serde(default)]
    pub kernel_reserved_pages: u64,
}

/// One loan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, CustomType)]
pub struct LoanStatus {
    /// The lease.
    pub lease: u64,
    /// The borrower's user number.
    pub uid: u32,
    /// The user whose quota it counts against: the borrower, or whose subordinate it is.
    pub account: u32,
    /// The owner it named.
    pub owner: Option<String>,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Its pages.
    pub pages: u64,
    /// Pages that its files have beyond that, as of a look a moment ago: its borrower's own doing,
    /// by fallocate(2). They count against the quota.
    pub grown_pages: u64,
    /// Its blocks.
    pub blocks: u64,
    /// The nodes that they lie on.
    #[serde(default)]
    pub nodes: Vec<u32>,
    /// Of its pages those that were ready, or have been filled by the kernel as zeroed ones.
    #[serde(default)]
    pub ready_pages: u64,
    /// The others: a hole, which the borrower's own faults fill.
    #[serde(default)]
    pub hole_pages: u64,
    /// For how long it has been lent. Absent for a loan of before the daemon's start.
    #[serde(default)]
    pub age_seconds: Option<u64>,
    /// The process that asked for it, by the daemon's numbers; another may hold it now. Absent for
    /// a loan of before the daemon's start, and in what users without the right to zero see of
    /// others' loans, as are the following.
    #[serde(default)]
    pub pid: Option<u32>,
    /// That process's command, 15 characters of it. Absent once it has ended.
    #[serde(default)]
    pub command: Option<String>,
    /// Its control group, as in /proc/PID/cgroup.
    #[serde(default)]
    pub cgroup: Option<String>,
}

/// What one user holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, CustomType)]
pub struct UserStatus {
    /// The user, subordinates included.
    pub uid: u32,
    /// Its loans.
    pub loans: u64,
    /// What counts against its quota: lent, lingering and kept, and what its files have beyond.
    pub held_bytes: u64,
    /// Its quota.
    pub quota_bytes: Option<u64>,
}

/// One process that keeps a block from others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, CustomType)]
pub struct BlockHolder {
    /// The loan that the block is, or was, part of; absent for one of a lost worker.
    pub lease: Option<u64>,
    /// Whether that loan has ended, so that the block lingers.
    pub lingers: bool,
    /// NUMA node.
    pub node: u32,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// The pages of all blocks of that loan that it holds in this way.
    pub pages: u64,
    /// The process, by the daemon's numbers.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its command.
    pub command: String,
    /// Its control group.
    pub cgroup: Option<String>,
    /// How it holds them.
    pub how: Held,
}

/// How a process holds a block.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, CustomType,
)]
#[serde(rename_all = "lowercase")]
#[zlink(rename_all = "lowercase")]
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

/// Who holds blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Type)]
pub struct Holders {
    /// Each process, by lease.
    pub holders: Vec<BlockHolder>,
    /// Whether every process was looked at; the search ends after some seconds.
    pub complete: bool,
}

/// What a daemon that is drained has given back, and what it still has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Type)]
pub struct Drained {
    /// Bytes given back to the kernel.
    pub given_back_bytes: u64,
    /// Bytes in clients' hands: they go back when they are returned.
    pub lent_bytes: u64,
    /// Bytes whose content waits for its owner: they go back when its time is over.
    pub kept_bytes: u64,
    /// Bytes returned but still reachable: they go back when they are not.
    pub lingering_bytes: u64,
}

/// What was taken from its borrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct Revoked {
    /// Bytes of its files, all of which go back to the kernel; pinned ones when they are unpinned.
    pub bytes: u64,
}

/// What happened since the daemon started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, CustomType)]
pub struct Counters {
    /// Loans granted.
    pub loans: u64,
    /// Bytes lent that were ready.
    pub hit_bytes: u64,
    /// Bytes lent as a hole, which the client's own faults fill.
    pub miss_bytes: u64,
    /// Loans that got their owner's content back.
    pub kept_loans: u64,
    /// Loans refused.
    pub refusals: u64,
    /// Bytes that workers zeroed.
    pub zeroed_bytes: u64,
    /// Workers that went away without a word.
    pub lost_workers: u64,
    /// Bytes given back to the kernel for others.
    pub given_back_bytes: u64,
}

/// Everything there is to see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Status {
    /// Where its ready pages come from.
    pub provider: Provider,
    /// The daemon's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// Its pools.
    pub pools: Vec<PoolStatus>,
    /// The counts of each node and page size: those of its pools together, which share the
    /// kernel's free pages.
    #[serde(default)]
    pub levels: Vec<Level>,
    /// Its loans.
    pub loans: Vec<LoanStatus>,
    /// Whoever holds anything: only oneself without the right to zero.
    #[serde(default)]
    pub users: Vec<UserStatus>,
    /// Its own workers that run now.
    pub workers: u32,
    /// Whether background zeroing waits for CPU pressure to fall.
    pub paused_by_pressure: bool,
    /// Why pools recycle fresh that would recycle in place if pinned pages could be seen.
    pub fresh_because: Option<String>,
    /// Whether it keeps nothing ready, because somebody had it drained.
    #[serde(default)]
    pub drained: bool,
    /// Where its control tree is mounted.
    #[serde(default)]
    pub tree: Option<String>,
    /// Blocks on its mounts that it knows nothing of: their pages are nobody's until its next
    /// start. None in a daemon without faults. Absent in answers of a daemon from before.
    #[serde(default)]
    pub unknown_files: u64,
    /// What happened since it started.
    pub counters: Counters,
}

/// One line of a watch: the counts of one node and page size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Level {
    /// NUMA node.
    pub node: u32,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Pages ready.
    pub ready_pages: u64,
    /// Pages that could be zeroed now.
    pub zeroable_pages: u64,
    /// Pages being cleared.
    pub zeroing_pages: u64,
    /// Pages lent.
    pub lent_pages: u64,
}

impl Level {
    /// What is told of a domain.
    #[must_use]
    pub fn new(domain: Domain, counts: &Counts) -> Self {
        Self {
            node: domain.node.0,
            page_bytes: domain.page_size.bytes(),
            ready_pages: counts.ready.0,
            zeroable_pages: counts.zeroable.0,
            zeroing_pages: counts.zeroing.0,
            lent_pages: counts.lent.0,
        }
    }
}

/// What a watch reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct WatchReply {
    /// The levels that changed, or that fell below the threshold.
    pub levels: Vec<Level>,
}

/// One block of a loan, in the order in which the loan is mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct LentPart {
    /// Its descriptor's index among those of the reply.
    pub fd: u32,
    /// NUMA node.
    pub node: u32,
    /// Its length in bytes.
    pub bytes: u64,
    /// So many of them, from its start, were ready; the client's faults fill the rest.
    pub ready_bytes: u64,
}

/// A loan granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct Lent {
    /// The lease's descriptor: its index among those of the reply.
    pub lease_fd: u32,
    /// The lease: it lives exactly as long as its descriptor.
    pub lease: u64,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Whether the content is what this owner left.
    pub kept: bool,
    /// The blocks.
    pub parts: Vec<LentPart>,
}

/// How a worker is to do a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, CustomType)]
#[serde(rename_all = "lowercase")]
#[zlink(rename_all = "lowercase")]
pub enum ZeroBy {
    /// `fallocate` on the block's node: the kernel makes and zeroes the pages.
    Allocate,
    /// Map the file and clear it.
    Clear,
    /// There is no file: zero up to `pages` pages of the kernel's own pool by `HUGEPAGECTL_ZERO` on
    /// `/dev/hugepagectl`, which the worker opens itself, and report how many it were.
    Kernel,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct Job {
    /// The block's file: its index among the reply's descriptors. None where `by` is `kernel`.
    pub block_fd: Option<u32>,
    /// The job's descriptor, which must stay open while the job runs: its index.
    pub job_fd: u32,
    /// The job's number.
    pub job: u64,
    /// The node on which its pages must lie.
    pub node: u32,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Pages of the block, or so many of the kernel's pool.
    pub pages: u64,
    /// Pages from the start that are done already; 0 where `by` is `kernel`.
    pub first_page: u64,
    /// How.
    pub by: ZeroBy,
}

/// What became of a finished block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct Finished {
    /// The state it is in now.
    pub state: StateName,
}

/// Nothing but that it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Configured {}

/// What was given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct GivenBack {
    /// Bytes.
    pub bytes: u64,
}

/// A pool's shape and the thresholds to change; what is absent stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, CustomType)]
pub struct PoolChange {
    /// NUMA node.
    pub node: u32,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Pages of one block.
    pub pages_per_block: u64,
    /// Background zeroing starts below so many ready pages.
    pub ready_low: Option<u64>,
    /// ... and stops at so many.
    pub ready_high: Option<u64>,
    /// The most pages the pool may own.
    pub max_pages: Option<u64>,
    /// Pages left free in the kernel's pool.
    pub leave_free: Option<u64>,
    /// How returned blocks become zero again: a [`Recycle`]. A text, because zlink hangs up on a
    /// parameter of another type, and a wrong word deserves an answer.
    pub recycle: Option<String>,
}

impl PoolChange {
    /// The pool that it names.
    ///
    /// # Errors
    /// [`Error::BadValue`] for a page size that is none.
    pub fn pool(&self) -> Result<PoolKey, Error> {
        let page_size = PageSize::try_from(self.page_bytes);
        Ok(PoolKey {
            node: Node(self.node),
            page_size: page_size.map_err(|e| Error::bad_value("page_bytes", e))?,
            pages_per_block: Pages(self.pages_per_block),
        })
    }
}

/// The interface's errors. Each names the value at fault and what to do.
#[derive(Debug, Clone, PartialEq, Eq, zlink::ReplyError, IntrospectError)]
#[zlink(interface = "io.prezero")]
pub enum Error {
    /// The peer's credentials do not allow the method.
    NotPermitted {
        /// The peer.
        uid: u32,
        /// What it wanted.
        action: String,
        /// Who may.
        needed: String,
    },
    /// A value that the method does not take; nothing was changed.
    BadValue {
        /// The parameter.
        field: String,
        /// What is wrong with it and what is allowed.
        reason: String,
    },
    /// No pool has that shape.
    NoSuchPool {
        /// The shape asked for.
        wanted: String,
        /// Those there are.
        configured: String,
    },
    /// The user holds too much already.
    QuotaExceeded {
        /// The user whose quota it is: the peer, or whose subordinate it is.
        uid: u32,
        /// What it holds.
        held_bytes: u64,
        /// What it may hold.
        quota_bytes: u64,
        /// What it asked for.
        asked_bytes: u64,
    },
    /// Neither ready pages nor free ones suffice.
    NotEnough {
        /// What was asked for.
        asked_bytes: u64,
        /// In pages of so many bytes.
        page_bytes: u64,
        /// Ready where it was asked for.
        ready_bytes: u64,
        /// Free in the kernel's pool there.
        free_bytes: u64,
    },
    /// Nothing can be zeroed now.
    NothingToZero,
    /// No loan has that number.
    NoSuchLease {
        /// The number.
        lease: u64,
    },
    /// The job is not the caller's.
    NoSuchJob {
        /// The job.
        job: u64,
    },
    /// The kernel refused something; the block at hand is treated as dirty.
    Failed {
        /// The call and its error.
        what: String,
    },
}

impl Error {
    /// A parameter that the method does not take.
    pub fn bad_value(field: &str, reason: impl fmt::Display) -> Self {
        Self::BadValue { field: field.to_owned(), reason: reason.to_string() }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted { uid, action, needed } => {
                write!(f, "user {uid} may not {action}: {needed}")
            }
            Self::BadValue { field, reason } => write!(f, "{field}: {reason}"),
            Self::NoSuchPool { wanted, configured } => {
                write!(f, "no pool is {wanted}: configured are {configured}")
            }
            Self::QuotaExceeded { uid, held_bytes, quota_bytes, asked_bytes } => write!(
                f,
                "user {uid} holds {} of a quota of {}: {}",
                Bytes(*held_bytes),
                Bytes(*quota_bytes),
                if asked_bytes > quota_bytes {
                    format!("{} is more than all of it", Bytes(*asked_bytes))
                } else {
                    format!("return some before asking for {} more", Bytes(*asked_bytes))
                }
            ),
            Self::NotEnough { asked_bytes, page_bytes, ready_bytes, free_bytes } => write!(
                f,
                "{} of {} pages were asked for, {} are ready and {} free in the kernel: ask for less, or reserve more pages",
                Bytes(*asked_bytes),
                Bytes(*page_bytes),
                Bytes(*ready_bytes),
                Bytes(*free_bytes)
            ),
            Self::NothingToZero => write!(
                f,
                "nothing to zero: every page that may be taken is ready, lent or being zeroed"
            ),
            Self::NoSuchLease { lease } => {
                write!(f, "no loan has the number {lease}: `prezero status` lists them")
            }
            Self::NoSuchJob { job } => {
                write!(f, "job {job} is unknown: it was finished or lost before")
            }
            Self::Failed { what } => f.write_str(what),
        }
    }
}
