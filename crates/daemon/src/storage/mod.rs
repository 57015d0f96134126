// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Block files, leases, kernel pools, and the proofs that a block is unused.

pub(crate) mod kernel;
pub(crate) mod leases;
pub(crate) mod loan_paths;
pub(crate) mod memory_held;
pub(crate) mod proof;
pub(crate) mod provider;
pub(crate) mod resize_job;
pub(crate) mod store;
pub(crate) mod tables;
pub(crate) mod unbacked;
pub(crate) mod unmap_events;
