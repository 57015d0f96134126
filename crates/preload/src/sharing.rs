// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When this process may last have shared its files with another process.
//!
//! A file that was made after the last fork, and after the last message with descriptors, is this
//! process's alone. The generation counts both; a file remembers the generation that it was made
//! in.

use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The current generation.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A fork or a message with descriptors is about to happen, or just did.
pub(crate) fn advance() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
