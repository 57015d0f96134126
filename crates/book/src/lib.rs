// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What prezero decides, without a kernel.
//!
//! [`Book`] keeps all blocks, leases and jobs and returns the effects of each call. [`block`] is
//! the life of one block and the zero claim; [`journal`] is how a block's file is named; [`config`]
//! and [`policy`] are the operator's decisions. No input or output happens here.
#![forbid(unsafe_code)]

pub mod block;
mod book;
pub mod config;
pub mod journal;
pub mod policy;

pub use book::*;
