// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a seccomp filter limits the system calls of this process.
//!
//! A filter lists the calls that the program itself makes, and may kill the process for any other.
//! From the moment that a program installs one, this library makes no call of its own and serves
//! nothing more. Filters that were there when `prezero run` started are the operator's: `run` made
//! the same calls under them, and passes their number on (`PREZERO_SECCOMP_FILTERS`). A program
//! that finds more filters than that at its first request gets nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_int;

/// Filters that this program has installed, or is about to. A call that fails installs none: QEMU
/// tries one without a program to find out what the kernel can do.
static FILTERS: AtomicUsize = AtomicUsize::new(0);

/// Whether this program has installed a filter, or is about to.
pub(crate) fn is_filtered() -> bool {
    FILTERS.load(Ordering::Relaxed) > 0
}

/// Makes a call that installs a filter.
pub(crate) fn filtering(call: impl FnOnce() -> c_int) -> c_int {
    FILTERS.fetch_add(1, Ordering::Relaxed);
    let done = call();
    if done < 0 {
        FILTERS.fetch_sub(1, Ordering::Relaxed);
    }
    done
}

/// Tells how many filters `prezero run` ran under.
const COUNT_OF_START: &str = "PREZERO_SECCOMP_FILTERS";

/// Whether this process has just the filters that `prezero run` had.
pub(crate) fn has_filters_of_start() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    };
    // Before Linux 5.9 the kernel tells the mode alone: 0 without a filter.
    let now = match (field("Seccomp:"), field("Seccomp_filters:")) {
        (Some(0) | None, _) => 0,
        (Some(_), count) => count.unwrap_or(u32::MAX),
    };
    let then = std::env::var(COUNT_OF_START).ok().and_then(|count| count.parse().ok());
    now == then.unwrap_or(0)
}
