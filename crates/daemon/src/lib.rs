// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon: the shell around the [`book`], as a library, so that it can be embedded.
//!
//! [`serve`] runs one until a signal; [`Embedded`] runs one on a thread. Inside, everything is on
//! one thread. Each folder uses only itself and the folders below it:
//!
//! - `service`: from start to end
//! - [`api`]: what programs, scrapers and the kernel's FUSE say to the daemon
//! - `tasks`: what runs without a call: workers, delegated workers, the log
//! - [`ops`]: the operations, which ask the book and do what it decides, and the waits for them
//! - `storage`: block files, leases, kernel pools, and the proofs that a block is unused
//! - `peers`: users, their rights, accounts and loans
//! - `base`: errors, files, the service manager, a work queue per user
//!
//! `tests/rules` checks it.

mod api;
mod base;
mod ops;
mod peers;
mod service;
mod storage;
mod tasks;

pub use base::error::{Error, Result};
pub use service::control::ConfigSource;
pub use service::embedded::Embedded;
pub use service::run::{DEFAULT_RUN_DIR, Options, check, drain, serve};
