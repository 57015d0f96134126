// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of several crates share: feature `test-support`, for dev-dependencies only.

pub mod child;
pub mod hugepages;
mod lock;
mod skip;
mod tree;

pub use lock::MOUNTS_PREFIX;
pub use skip::{GIB_PAGES, NO_SKIP, SKIP_LOG, skip, skip_for_ever, skipped};
pub use tree::{Tree, tree};
