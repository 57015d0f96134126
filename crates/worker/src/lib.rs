// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where zeroing is: what `prezero zero` does, and how a process is told to.
//!
//! A *worker* is a process that takes jobs from the daemon, does them in its own scheduling and
//! cgroup context, and reports them. Any user's is like the daemon's own. The way of one job:
//!
//! 1. An [`Invocation`] says which pages, how many, and in which [`Context`]; it becomes a command
//!    line, which `prezero zero` reads. The context is applied before any thread starts.
//! 2. [`Worker::run`] takes a [`Job`](job::Job) and does it in one of three ways. The kernel makes
//!    and zeroes the pages of a new file, the worker clears a file's memory where it lies, with the
//!    choice of [`Engine`] , or the kernel zeroes pages of its own pool.
//! 3. What stops it (a bound, [`Stop`], an error) ends it at the next page or chunk. The pages done
//!    by then are reported and kept.
//! 4. A [`Summary`] says in the end how much was done, an [`Exit`] whether that was all.
//!
//! *Where the proof becomes a number.* That memory is zero is a value of its own, which only
//! clearing makes ([`clear::Zeroed`]). It ends here, because a process does: what a worker reports
//! is a count of pages ([`job::Done`]). The daemon believes trusted workers, after it has proven
//! that no process holds the block any more and that this many pages have memory. From there on the
//! zero claim is the book's.

mod allocate;
mod budget;
pub mod context;
pub mod engine;
mod error;
mod in_kernel;
mod in_place;
mod interrupt;
mod invocation;
pub mod job;
mod run;
mod stop;
mod summary;
mod which;

pub use context::Context;
pub use engine::Engine;
pub use error::{Error, Result};
pub use invocation::{Invocation, PageLimit};
pub use job::take_zeroing;
pub use run::{Unfinished, WorkDone, Worker};
pub use stop::Stop;
pub use summary::{Exit, Summary};
pub use which::Which;
