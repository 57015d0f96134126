// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Take ready huge pages from the prezero daemon.
//!
//! ```
//! use prezero::{Client, DEFAULT_SOCKET, Error, LendRequest};
//!
//! let mut client = match Client::connect(DEFAULT_SOCKET) {
//!     Ok(client) => client,
//!     // No daemon runs: allocate as before.
//!     Err(Error::NoDaemon { .. }) => return Ok(()),
//!     Err(error) => return Err(error.into()),
//! };
//! let mut memory = client.lend(&LendRequest::new("64M".parse()?))?.map()?;
//! assert!(memory.iter().all(|byte| *byte == 0)); // ready, at page-table cost
//! memory[0] = 1;
//! drop(memory); // unmapped and returned
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | you want | use |
//! |---|---|
//! | bytes | [`Loan::map`]: a [`MappedLoan`] is `&mut [u8]` and holds its loan |
//! | descriptors, to hand on | [`Loan::parts`], [`Loan::into_fds`] |
//! | to wait for ready memory | [`Client::lend_within`] |
//! | content back after a restart | [`LendRequest`]'s `owner` and `keep` |
//! | a loan that outlives its program | [`LendRequest::by_name`] |
//! | to see pools and loans | [`Client::status`], [`Client::watch`] |
//!
//! The library connects, borrows, maps and watches. It does not wait for zeroing (short of ready
//! memory a loan comes with an unbacked part that the kernel zeroes on touch), start threads or a
//! runtime, or keep a program alive when the daemon is gone.
//!
//! # Errors
//!
//! A call that fails has lent, zeroed and changed nothing. [`Error`] says which it was: no daemon
//! listens, the daemon refused (with its reason and advice), or the connection broke.

#[cfg(any(feature = "capi", test))]
pub mod capi;
mod connection;
mod error;
mod loan;
mod mapped;
mod names;
mod socket;
mod waiting;

pub use connection::{ANSWER_TIMEOUT, Client, StatusWatch, WHOLE_LOAN_TIMEOUT};
pub use error::{Error, Result};
pub use loan::Loan;
pub use mapped::MappedLoan;
pub use units::{Bytes, LoanName, Node, Owner, PageSize, Pages};
pub use wire::agent::SOCKET_ENDING as AGENT_SOCKET_ENDING;
pub use wire::{
    DEFAULT_SOCKET, Hold, LendRequest, LoanPaths, NamedLoan, PoolStatus, Provider, Status,
};
