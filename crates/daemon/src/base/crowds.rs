// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of connections that are gone.
//!
//! glibc keeps freed memory that lies below memory in use. 60,000 connections to the metrics leave
//! 5 to 8 MiB.

use std::time::Duration;

use linux::heap;

/// How often a listener looks whether a crowd is gone.
pub(crate) const TRIM_INTERVAL: Duration = Duration::from_secs(1);
/// Ended connections that are worth a look at the heap.
const MIN_CONNECTIONS_TO_TRIM: usize = 64;

/// The ended connections of one listener since its last trim.
#[derive(Debug, Default)]
pub(crate) struct Crowd(usize);

impl Crowd {
    /// Adds ended connections, and gives memory back after each crowd. A crowd that comes and goes
    /// is never seen as open connections, and counts the same.
    pub(crate) fn end(&mut self, connections: usize) {
        self.0 += connections;
        if self.0 >= MIN_CONNECTIONS_TO_TRIM {
            heap::trim();
            self.0 = 0;
        }
    }
}
