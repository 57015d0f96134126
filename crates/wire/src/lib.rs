// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages of the varlink interfaces `io.prezero` and `io.prezero.agent`: the one place where
//! daemon and client meet.
//!
//! The reference of both interfaces are the files [`io.prezero.varlink`](DESCRIPTION) and
//! [`io.prezero.agent.varlink`](agent::DESCRIPTION), which the daemon serves as they are. A struct
//! here is a method's parameters or its reply, and a test compares each with the files.
//!
//! File descriptors travel beside a reply. Fields that end in `fd` are indices into them, as in
//! systemd's varlink interfaces.
#![forbid(unsafe_code)]

pub mod agent;
mod answers;
mod error;
mod health;
mod lend;
mod message;
mod methods;
mod optional;
mod reading;
mod service;
mod status;
mod words;

pub use answers::{
    Configured, Drained, Finished, Holders, Job, Released, Revoked, WatchReply, ZeroBy,
};
pub use error::Error;
pub use health::{Ailment, AilmentCause, Health};
pub use lend::{Hold, LendRequest, Lent, LentPart, LoanPaths, NamedLoan};
pub use message::{Call, END, Refused, Reply, call, read_reply, refusal, reply};
pub use methods::{
    Configure, Drain, FindHolders, FinishZeroing, GetStatus, Parameters, PoolChange, Release,
    Revoke, TakeZeroing, Watch,
};
pub use reading::{BadValue, Invalid};
pub use service::{
    GetInfo, GetInterfaceDescription, Info, InterfaceDescription, SERVICE, ServiceError,
};
pub use status::{
    BlockHolder, BlockSize, Counters, Held, KernelStatus, Level, LoanStatus, PoolStatus,
    ResizeStatus, Status, UserStatus,
};
pub use words::{KernelKind, Provider, Recycle, StateName, Unknown, did_you_mean};

/// The interface's name.
pub const INTERFACE: &str = "io.prezero";
/// The interface's definition, as the daemon serves it.
pub const DESCRIPTION: &str = include_str!("../io.prezero.varlink");
/// Where the daemon listens by default.
pub const DEFAULT_SOCKET: &str = "/run/prezero/io.prezero";
/// The most descriptors that the kernel passes in one message (`SCM_MAX_FD`).
pub const MESSAGE_FDS: usize = 253;
/// The most blocks in a loan to a client that leaves the number open: together with the lease,
/// their descriptors fill one message.
pub const MAX_MESSAGE_PARTS: usize = MESSAGE_FDS - 1;
/// The most blocks in any loan. Each takes 10 us of the daemon's one thread.
pub const MAX_LOAN_PARTS: usize = 1024;
