// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory to keep ready: the shipping book and policy over a trace of loans.
//!
//! # The walk
//!
//! 1. [`trace`] reads loans from a file, or [`generate`] makes them from a seed.
//! 2. `host` is one node: the daemon's own book and policy, with workers and a kernel's pool that
//!    are numbers.
//! 3. [`fleet`] places the loans on several nodes, event by event, and adds up the outcome.
//!
//! `peak` says how much a trace asks for at once, with any pools.
//!
//! `prezero plan` makes a run for each combination of its lists and prints a table of them. The
//! simulation leaves out what zeroing takes from its neighbours, the start time of a worker's
//! process, and everything of a scheduler but its choice.

pub mod fleet;
pub mod generate;
mod host;
mod peak;
pub mod trace;

pub use fleet::{Fleet, Outcome, Placement};
pub use generate::Shape;
pub use host::{NodeKind, ReadyPolicy, seconds};
pub use peak::PeakDemand;
pub use trace::{Ask, Format, ReadTrace};
