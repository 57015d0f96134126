// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The vocabulary of prezero, and everything about it that can be decided without a kernel.
//!
//! [`units`] and [`ids`] are the quantities and names; [`block`] is the life of one block and
//! the zero claim; [`book`] keeps all blocks, leases and jobs and says what is to be done;
//! [`journal`] is how a block's file is named; [`config`] and [`policy`] are what the operator
//! decides; [`wire`] is the varlink interface. No input or output happens here.
#![forbid(unsafe_code)]

pub mod block;
pub mod book;
pub mod config;
pub mod ids;
pub mod journal;
pub mod policy;
pub mod units;
pub mod wire;
