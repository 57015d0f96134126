// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon: the shell around the [`book`], as a library, so that it can be embedded.
//!
//! [`serve`] runs one until a signal; [`Embedded`] runs one on a thread. Inside, everything is on
//! one thread: [`shell`] has the operations, [`service`] and [`server`] are the varlink face,
//! [`tree`] is the other one, [`store`] the block files, [`proof`] who can reach them, [`leases`]
//! the leases' names, [`held`] the loans that need none, [`workers`] the daemon's own workers,
//! [`deputy`] those that work in others' place. Two things would hold that thread up and have one
//! of their own: the [`lanes`] of users, and making page [`tables`]. [`provider`] is where the
//! providers differ, and [`kernel`] what only that of a kernel with the series needs. [`control`]
//! is what goes on beside the operations: reloads, [`metrics`], the service [`manager`], and the
//! log's [`news`].

mod account;
mod control;
mod deputy;
mod error;
mod files;
mod held;
mod kernel;
mod lanes;
mod leases;
mod manager;
mod metrics;
mod news;
mod proof;
mod provider;
mod rights;
mod run;
mod server;
mod service;
mod shell;
mod store;
mod tables;
mod tree;
mod workers;

pub use control::ConfigSource;
pub use error::{Error, Result};
pub use run::{Embedded, Options, serve};
