// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel that knows which pages of its own hugetlb pool are zero: the series under `kernel/`.
//!
//! [`offer::probe`] says whether this is one and what of it is there; [`Device`] is
//! `/dev/hugepagectl`, with every number of a pool at one instant, zeroing in the caller's context
//! and a watch; [`files`] are the three files per node and page size, which wake whoever polls
//! them. `docs/kernel-features.md` has one table of what each level gives.

pub mod device;
pub mod files;
pub mod offer;

pub use device::{Device, Stepped, WatchFor};
pub use offer::{Offer, Support};
