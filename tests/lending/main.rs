// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the daemon lends, waits, keeps, takes back and revokes, over plain memory: it needs no huge
//! page, runs beside tests that hold some, and e2e shows the same code with real ones. It catches
//! mutants of that code (docs/evidence/mutants.md).
//!
//! One test at a time: a daemon that another one just starts has all descriptors for a moment, and
//! files would seem to have more users.

mod ends;
mod names;
mod owners;
mod waiting;

use client::{Error, LendRequest};
use prezero_tests::refused::refusal;
use prezero_tests::{Daemon, Page};
use testkit::child::alone;

const PAGE: Page = Page::Mib2;

/// A daemon of plain memory with a pool of these fields; `rest` is what else it is told.
fn daemon(pool: &str, rest: &str) -> Daemon {
    let config = format!("{rest}\n{}[workers]\nmax = 0\n", PAGE.pool(pool));
    Daemon::start_with(None, &config, &["--plain"])
}

fn ready(daemon: &Daemon, pages: u64) {
    daemon.zero(&pages.to_string());
}

/// A loan of this number of pages in one file.
fn one_file(pages: u64) -> LendRequest {
    let mut request = LendRequest::new(PAGE.times(pages));
    request.single = true;
    request
}
