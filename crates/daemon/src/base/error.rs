// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a daemon failed to start, or stopped.

use std::io;
use std::path::PathBuf;

use book::config::ConfigError;
use thiserror::Error;

/// A daemon that failed in its work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration breaks a rule.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A group unknown to the system.
    #[error("{field}: `{group}` is neither a group's name nor its number")]
    NoSuchGroup {
        /// The configuration's field.
        field: &'static str,
        /// Its value.
        group: String,
    },
    /// The kernel lacks these pages.
    #[error("no {page} pages: this kernel has {known}; see /sys/kernel/mm/hugepages")]
    NoSuchPages {
        /// The size asked for.
        page: units::PageSize,
        /// The sizes there are.
        known: String,
    },
    /// The forced provider is missing.
    #[error(
        "provider kernel: this kernel does not offer it ({found}); load the module (prezero module load), boot a kernel with the series, or use --set provider=stock"
    )]
    NoProvider {
        /// What there is instead.
        found: &'static str,
    },
    /// A pool of the kernel's that cannot be made larger.
    #[error(
        "pool {domain}: size_max is for provider stock, and this one is {provider}: leave the reserve keys away, or use --set provider=stock"
    )]
    NotResizable {
        /// Whose it is.
        domain: units::Domain,
        /// The provider.
        provider: wire::Provider,
    },
    /// A pool's node is missing.
    #[error("pool of node {node}: this machine has memory on nodes {known}")]
    NoSuchNode {
        /// The node asked for.
        node: units::Node,
        /// Those there are.
        known: String,
    },
    /// Workers cannot run as configured.
    #[error("workers.{0}")]
    Workers(linux::Error),
    /// Another daemon works there.
    #[error("another daemon works in {0}: stop it first, or choose another --run-dir")]
    Locked(PathBuf),
    /// Another user can change where the daemon's files would lie.
    #[error("the {what} is not the daemon's alone: {source}; choose another {choose}")]
    NotOurs {
        /// Which directory.
        what: &'static str,
        /// Who can change it.
        source: linux::Error,
        /// The option or key that says where it is.
        choose: &'static str,
    },
    /// Another daemon listens there.
    #[error("another daemon already listens at {0}: stop it first, or choose another --socket")]
    Running(PathBuf),
    /// The socket could not be made.
    #[error("cannot listen at {path}: {source}")]
    Listen {
        /// Its path.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A call into the kernel failed.
    #[error(transparent)]
    Kernel(#[from] linux::Error),
    /// The runtime could not be made, or a thread not be started.
    #[error("{what}: {source}")]
    Runtime {
        /// What was attempted.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another server has a tree there.
    #[error("another daemon's control tree is mounted at {0}: choose another tree.path")]
    TreeTaken(PathBuf),
    /// A worker that stood in for a writer failed.
    #[error("a worker did not do its work: {0}")]
    DelegatedWorker(String),
    /// The order to keep nothing ready cannot be saved.
    #[error("{0}")]
    Drain(String),
    /// A block with an unknown file.
    #[error("{0} has no file")]
    NoFile(units::BlockId),
    /// A block that was about to be lent, and that another process has open.
    #[error("{0} is open elsewhere: it is not lent before that has ended")]
    Reached(units::BlockId),
    /// The thread of an embedded daemon is gone.
    #[error("the embedded daemon ended before it was ready")]
    Gone,
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
