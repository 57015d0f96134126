// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Quantities that must not be mixed up, and the names of what is counted.
//!
//! Every crate of prezero speaks in these types, from what the kernel says to what a person
//! reads; a plain number has its unit in its name and lives only in a file or message that
//! others define. Nothing here does input or output, and nothing is known but serde.
#![forbid(unsafe_code)]

pub mod as_text;
mod counts;
mod ids;
mod quantities;

pub use counts::Counts;
pub use ids::{
    BadLoanName, BadOwner, BlockId, Domain, JobId, LeaseId, LoanName, Owner, PoolKey, Uid,
    tenant_of,
};
pub use quantities::{Bytes, Node, PageSize, Pages, ParseError};
