// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From start to end: the daemon's run, its reloads, its signals and its maintenance.

pub(crate) mod control;
pub(crate) mod embedded;
pub(crate) mod maintenance;
pub(crate) mod run;
pub(crate) mod signals;
