// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Quantities that must not be mixed up, and the names of counted things.
//!
//! Every crate of prezero speaks in these types, from the kernel's numbers to the user's screen. A
//! plain number has its unit in its name and lives only in a file or message that others define.
//! The crate does no input or output, and depends on serde alone.
#![forbid(unsafe_code)]

pub mod as_text;
mod counts;
mod ids;
mod quantities;

pub use counts::Counts;
pub use ids::{
    BadLease, BadLoanName, BadOwner, BlockId, Domain, JobId, LeaseId, LoanName, Owner, PoolKey,
    Uid, tenant_of,
};
pub use quantities::{Bytes, Node, PageSize, Pages, ParseError};
