// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the end-to-end tests share: a real daemon on real huge pages, and borrowers to kill.

pub mod c;
pub mod counters;
pub mod daemon;
pub mod memory;
pub mod pins;
pub mod process;
pub mod refused;
pub mod scrape;
pub mod storm;
pub mod terminal;
pub mod user;

pub use daemon::{Daemon, Page};
pub use memory::MapAlone;
