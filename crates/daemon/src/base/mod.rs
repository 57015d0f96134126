// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors, file names, the service manager, memory of crowds, and a work queue per user.

pub(crate) mod crowds;
pub(crate) mod error;
pub(crate) mod files;
pub(crate) mod manager;
#[cfg(test)]
pub(crate) mod now;
pub(crate) mod user_queues;
