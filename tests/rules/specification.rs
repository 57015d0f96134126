// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every promise of SPECIFICATION.md names tests that exist.

use std::path::Path;

use super::{files, read};

#[test]
fn every_promise_names_tests_that_exist() {
    let text = read(Path::new("SPECIFICATION.md"));
    let sources: Vec<_> = files()
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "rs" || e == "c" || e == "toml"))
        .map(|p| read(&p))
        .collect();
    let mut promises = 0;
    for line in text.lines().filter(|line| line.starts_with("| P")) {
        promises += 1;
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let (number, tests) = (cells[1], cells[3]);
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        let pending = tests.contains("pending:");
        assert!(pending || !named.is_empty(), "{number} names no test and does not say pending");
        for test in named {
            let exists = sources.iter().any(|source| source.contains(test));
            assert!(exists, "{number} names `{test}`, which is nowhere");
        }
    }
    assert!(promises >= 20, "only {promises} promises were found");
}
