// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon: the shell around [`model`]'s book, as a library, so that it can be embedded.
//!
//! [`serve`] runs one until a signal; [`Embedded`] runs one on a thread. Inside, everything is on
//! one thread: [`shell`] has the operations, [`service`] and [`server`] are the varlink face,
//! [`store`] the block files, [`workers`] the daemon's own workers. [`host`] stands beside it: the
//! machine that it runs on.

mod error;
mod files;
pub mod host;
mod rights;
mod run;
mod server;
mod service;
mod shell;
mod store;
mod workers;

pub use error::{Error, Result};
pub use run::{Embedded, Options, serve};
