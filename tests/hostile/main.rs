// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hostile users: each attack by a real user of this machine against the real daemon, and what
//! comes of it for the attacker, for a victim beside it, and for the machine afterwards.
//!
//! Every attack goes through [`attack::Attack::run`], which says what it measures. One file per
//! subject; new attacks belong into the file of theirs. The table of docs/reliability.md is what
//!
//! ```text
//! cargo test -p prezero-tests --test hostile -- --nocapture --test-threads 1 | grep '^|'
//! ```
//!
//! prints.

mod attack;
mod files;
mod groups;
mod leaks;
mod memory;
mod quota;
mod raw;
mod requests;
mod scene;
mod socket;
mod stage;
mod storm;
mod strange;
mod tree;
mod users;
mod victim;
mod workers;
