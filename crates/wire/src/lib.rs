// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types of the varlink interface `io.prezero`: the one place where daemon and client meet.
//!
//! Numbers are plain here and carry their unit in the name; everybody converts to the types of
//! `units` at once. File descriptors travel beside a reply; fields that end in `fd` are indices
//! into them, as in systemd's varlink interfaces.
#![forbid(unsafe_code)]

pub mod agent;
mod answers;
mod error;
mod lend;
mod methods;
mod status;
mod words;

pub use answers::{
    Configured, Drained, Finished, GivenBack, Holders, Job, Lent, LentPart, Revoked, WatchReply,
    ZeroBy,
};
pub use error::Error;
pub use lend::{Hold, LendForAgent, LendRequest};
pub use methods::{
    Configure, Drain, FindHolders, FinishZeroing, GetStatus, GiveBack, Parameters, PoolChange,
    Revoke, TakeZeroing, Watch,
};
pub use status::{
    BlockHolder, BlockSize, Counters, ElasticStatus, Held, KernelStatus, Level, LoanStatus,
    PoolStatus, Status, UserStatus,
};
pub use words::{KernelKind, Provider, Recycle, StateName, Unknown};

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
