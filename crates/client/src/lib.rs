// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Take ready huge pages from the prezero daemon.
//!
//! ```no_run
//! use prezero::{Client, LendRequest, DEFAULT_SOCKET};
//!
//! let mut client = Client::connect(DEFAULT_SOCKET)?;
//! let loan = client.lend(&LendRequest::new("8G".parse()?))?;
//! let memory = loan.map()?; // 8 GiB, zero, at page-table cost
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The library connects, borrows, maps and watches. It does not wait for zeroing (short of ready
//! memory a loan comes with an unbacked part that the kernel zeroes on touch), start threads or a
//! runtime, or keep a program alive when the daemon is gone.

#[cfg(any(feature = "capi", test))]
pub mod capi;
mod connection;
mod error;
mod loan;
mod names;
mod socket;
mod waiting;

pub use connection::{ANSWER_TIMEOUT, Client, StatusWatch, WHOLE_LOAN_TIMEOUT};
pub use error::{Error, Result};
pub use linux::Mapping;
pub use loan::Loan;
pub use units::{Bytes, LoanName, Node, Owner, PageSize, Pages};
pub use wire::agent::SOCKET_ENDING as AGENT_SOCKET_ENDING;
pub use wire::{DEFAULT_SOCKET, Hold, LendRequest, NamedLoan, PoolStatus, Provider, Status};
