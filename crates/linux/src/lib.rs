// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything prezero asks of the Linux kernel, free of policy.
//!
//! Each module is one subject and stands alone; none knows another crate of the workspace but
//! `units`. Files below `/sys`, `/proc` and the cgroup mount are reached through [`Roots`], so that
//! a test can put a literal tree in their place. System calls go through `rustix`. The few it lacks
//! are in the private module `raw`, the only other file with `unsafe` being [`mapping`].
//!
//! The walk of one block through this crate: [`hugetlb::counters`] says that free pages exist,
//! [`BlockDir::create`] makes the file, [`numa::bind_thread_to`] and [`BlockFile::allocate_pages`]
//! fill it with zeroed pages on one node. [`BlockDir::rename`] moves it from state to state,
//! [`LeaseDir::create`] makes the lease's descriptor, which ends the loan when it closes.
//! [`exclusive::prove`] says whether another process still holds the file, and [`BlockDir::unlink`]
//! gives the pages back.
//!
//! Every function blocks for one system call or a few reads of a virtual file unless its text says
//! more. Oldest kernel: 5.14 (`MADV_POPULATE_WRITE`).

pub mod bind;
pub mod block_dir;
pub mod block_file;
pub mod boot;
pub mod cgroup;
pub mod cpu;
mod cpuset;
mod error;
pub mod exclusive;
mod files;
pub mod fuse;
pub mod heap;
pub mod holders;
pub mod hugepagectl;
pub mod hugetlb;
pub mod kernel;
pub mod lease;
pub mod mapping;
pub mod meminfo;
pub mod mount;
mod mountinfo;
pub mod numa;
mod own_dir;
pub mod peer;
pub mod process;
pub mod psi;
mod raw;
mod roots;
pub mod sched;
mod tcp_owner;
pub mod unmap_events;
pub mod user_ns;

pub use block_dir::BlockDir;
pub use block_file::BlockFile;
pub use cpuset::CpuSet;
pub use error::{Errno, Error, Result};
pub use exclusive::Exclusivity;
pub use fuse::FuseMount;
pub use lease::{DaemonEnd, LeaseDir};
pub use mapping::Mapping;
pub use mount::HugetlbMount;
pub use own_dir::OwnDir;
pub use peer::Peer;
pub use roots::Roots;
pub use tcp_owner::TcpOwners;
