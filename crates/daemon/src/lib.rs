// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon: the shell around [`model`]'s book, as a library, so that it can be embedded.
//!
//! [`serve`] runs one until a signal; [`Embedded`] runs one on a thread. Inside, everything is on
//! one thread: [`shell`] has the operations, [`service`] and [`server`] are the varlink face,
//! [`store`] the block files, [`workers`] the daemon's own workers.

mod error;
mod files;
mod rights;
mod run;
mod server;
mod service;
mod shell;
mod store;
mod workers;

pub use error::{Error, Result};
pub use run::{Embedded, Options, serve};
