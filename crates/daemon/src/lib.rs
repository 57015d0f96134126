// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon: the shell around the [`book`], as a library, so that it can be embedded.
//!
//! [`serve`] runs one until a signal; [`Embedded`] runs one on a thread. Inside, everything is on
//! one thread, and who calls whom only goes down: a [`face`] takes a call apart, [`patience`] waits
//! where something is waited for, [`shell`] asks the book and does what it decides, [`store`] has
//! the block files. `ARCHITECTURE.md` has all floors, and `tests/rules` looks that the modules keep
//! to them.

mod account;
mod borrowers;
mod closing;
mod control;
mod deputy;
mod embedded;
mod error;
mod face;
mod files;
mod held;
mod hole;
mod house;
mod kernel;
mod lanes;
mod leases;
mod log;
mod manager;
mod metrics;
mod patience;
mod proof;
mod provider;
mod resizing;
mod rights;
mod run;
mod shell;
mod signals;
mod store;
mod tables;
mod users;
mod watchers;
mod who;
mod workers;

pub use control::ConfigSource;
pub use embedded::Embedded;
pub use error::{Error, Result};
pub use run::{DEFAULT_RUN_DIR, Options, check, drain, serve};
