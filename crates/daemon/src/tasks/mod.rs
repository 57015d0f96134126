// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What runs beside the operations: workers, delegated workers and the log.

pub(crate) mod delegated;
pub(crate) mod log;
pub(crate) mod workers;
