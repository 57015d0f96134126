// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Skipping a test that this machine cannot run: said aloud, counted, and a failure where asked.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

/// With this variable set to `1` a skip is a failure.
pub const NO_SKIP: &str = "PREZERO_TEST_NO_SKIP";

/// With this variable set to a path every skip appends one line there, from all test binaries.
pub const SKIP_LOG: &str = "PREZERO_TEST_SKIP_LOG";

/// With this variable set to a number, tests that take more pages of 1 GiB are skipped on purpose:
/// the runner has tried to reserve more and found memory too scattered. `make test` does.
pub const GIB_PAGES: &str = "PREZERO_TEST_GIB_PAGES";

/// With this variable set, tests that take huge pages are skipped on purpose: they run in a virtual
/// machine of their own. `make test VM=1` does.
pub const IN_VM: &str = "PREZERO_TEST_IN_VM";

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Reports that the current test is skipped because it lacks something that this machine could
/// have, and counts it; the test then returns.
///
/// # Panics
/// If [`NO_SKIP`] is set, or writing the log fails.
pub fn skip(reason: &str) {
    assert!(env::var(NO_SKIP).as_deref() != Ok("1"), "{NO_SKIP}=1, but would skip: {reason}");
    skip_always(reason);
}

/// The same for something that this machine can never have, such as a second node: never a failure.
/// The virtual machines have it.
///
/// # Panics
/// If writing the log fails.
pub fn skip_always(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    SKIPPED.fetch_add(1, Ordering::Relaxed);
    let line = format!("skipped {test}: {reason}\n");
    // The stream itself, since the harness swallows what eprintln! says in a test that passes.
    let mut stderr = std::io::stderr();
    stderr.write_all(line.as_bytes()).expect("standard error can be written");
    if let Some(path) = env::var_os(SKIP_LOG) {
        let log = OpenOptions::new().create(true).append(true).open(&path);
        log.and_then(|mut log| log.write_all(line.as_bytes()))
            .expect("the skip log can be written");
    }
}

/// How many skips this process has counted.
pub fn skipped() -> usize {
    SKIPPED.load(Ordering::Relaxed)
}
