// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verbs, one file each. Each has its arguments, `run`, and the records that it prints.

pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod holders;
pub(crate) mod lab;
pub(crate) mod lend;
pub(crate) mod loans;
pub(crate) mod module;
pub(crate) mod named;
pub(crate) mod release;
pub(crate) mod reserve;
pub(crate) mod revoke;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod set;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod wait;
pub(crate) mod watch;
pub(crate) mod zero;
