// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Prometheus asks a daemon for.

/// A whole request for the metrics; the connection ends after the answer.
pub const ASK: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
