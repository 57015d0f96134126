// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files that forges read: each job is a target of the Makefile, and both forges have the same.

use std::collections::BTreeSet;
use std::path::Path;

use super::read;

/// The targets that the Makefile has rules for.
fn targets() -> BTreeSet<String> {
    let rule = |line: &str| {
        let (names, _) = line.split_once(':')?;
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "- ".contains(c);
        names.chars().all(is_plain).then(|| names.split(' ').map(str::to_owned).collect::<Vec<_>>())
    };
    read(Path::new("Makefile")).lines().filter_map(rule).flatten().collect()
}

/// The words after `make` in a file, and those of a matrix of targets.
fn called(path: &str) -> BTreeSet<String> {
    let text = read(Path::new(path));
    let mut called = BTreeSet::new();
    for line in text.lines().map(str::trim) {
        if let Some((_, list)) = line.split_once("target: [") {
            let list = list.trim_end_matches(']');
            called.extend(list.split(',').map(|target| target.trim().to_owned()));
        }
        for rest in line.split("make ").skip(1) {
            let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '-' || c.is_numeric()));
            let word = &rest[..end.unwrap_or(rest.len())];
            called.extend((!word.is_empty()).then(|| word.to_owned()));
        }
    }
    called
}

#[test]
fn forges_run_the_same_targets_of_the_makefile() {
    let github = called(".github/workflows/ci.yml");
    assert!(github.len() >= 6, "{github:?}");
    assert_eq!(github, called(".gitlab-ci.yml"), "GitHub, GitLab");
    let targets = targets();
    for target in github.iter().chain(&called(".ci/run")) {
        assert!(targets.contains(target), "the Makefile has no {target}");
    }
    for path in [".github/workflows/ci.yml", ".gitlab-ci.yml"] {
        assert!(read(Path::new(path)).contains(".ci/run"), "{path} runs the tests by .ci/run");
    }
}
