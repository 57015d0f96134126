// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users: their connections, rights, accounts and loans, and what the metrics count.

pub(crate) mod account;
pub(crate) mod borrowers;
pub(crate) mod metrics;
pub(crate) mod rights;
pub(crate) mod users;
