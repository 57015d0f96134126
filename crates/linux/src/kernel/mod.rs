// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel that knows which pages of its own hugetlb pool are zero: one with the series under
//! `kernel/`, or a stock one with the module.
//!
//! [`offer::probe`] finds its features, [`Origin`] tells series and module apart, and [`module`]
//! has the facts of the module alone. [`Device`] is `/dev/hugepagectl`: every number of a pool at
//! one instant, zeroing in the caller's context, and a watch. [`files`] are the three files per
//! node and page size, which wake their pollers. `docs/reference/kernels.md` has one table of the
//! levels.

pub mod device;
pub mod files;
pub mod module;
pub mod offer;
mod origin;

pub use device::{Device, Stepped, WatchFor};
pub use module::LoadedModule;
pub use offer::{Offer, Support};
pub use origin::{Implementation, Origin};
