// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong between a program and the daemon.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use wire::ServiceError;

/// An operation that failed; nothing was lent, zeroed or changed by it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// No daemon listens there.
    #[error("no daemon at {path}: {source}; start one with `prezero serve`")]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The daemon refused.
    #[error(transparent)]
    Refused(#[from] wire::Error),
    /// The daemon did not answer in time, went away, or does not speak the interface.
    #[error("the daemon's answer to {method}: {source}")]
    Broken {
        /// The method called.
        method: &'static str,
        /// What happened.
        source: io::Error,
    },
    /// The daemon does not know the method or one of its parameters: it is of another version.
    #[error("{method}: {source}; is the daemon of another version?")]
    Unknown {
        /// The method called.
        method: &'static str,
        /// The daemon's answer.
        source: ServiceError,
    },
    /// The answer lacks a descriptor that it announced.
    #[error("the daemon's answer to {method} has {got} descriptors instead of {expected}")]
    Descriptors {
        /// The method called.
        method: &'static str,
        /// How many came.
        got: usize,
        /// How many it should have brought.
        expected: usize,
    },
    /// A call into the kernel failed.
    #[error(transparent)]
    Kernel(#[from] linux::Error),
}

impl Error {
    /// The nearest errno, for callers that have nothing else to report.
    #[must_use]
    pub fn errno(&self) -> rustix::io::Errno {
        use rustix::io::Errno;
        match self {
            Self::NoDaemon { source, .. } => {
                Errno::from_io_error(source).unwrap_or(Errno::CONNREFUSED)
            }
            Self::Refused(refused) => match refused {
                wire::Error::NotPermitted { .. } => Errno::ACCESS,
                wire::Error::BadValue { .. } => Errno::INVAL,
                wire::Error::NoSuchPool { .. } => Errno::NODEV,
                wire::Error::QuotaExceeded { .. } | wire::Error::ScopeQuotaExceeded { .. } => {
                    Errno::DQUOT
                }
                wire::Error::NotEnough { .. } => Errno::NOMEM,
                wire::Error::NameTaken { .. } => Errno::EXIST,
                wire::Error::NameBusy { .. } => Errno::BUSY,
                wire::Error::TooManyNames { .. } => Errno::MFILE,
                wire::Error::NothingToZero => Errno::AGAIN,
                wire::Error::NoSuchJob { .. }
                | wire::Error::NoSuchLease { .. }
                | wire::Error::NoSuchName { .. } => Errno::NOENT,
                wire::Error::Failed { .. } => Errno::IO,
            },
            Self::Broken { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::PROTO),
            Self::Unknown { source: ServiceError::InvalidParameter { .. }, .. } => Errno::INVAL,
            Self::Unknown { .. } => Errno::NOSYS,
            Self::Descriptors { .. } => Errno::PROTO,
            Self::Kernel(error) => error.errno().unwrap_or(Errno::IO),
        }
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
