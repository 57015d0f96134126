// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nothing is there for its own tests alone.

use std::collections::BTreeMap;

use super::{files, read};

/// What others link: its public functions need no caller here.
const FOR_OTHERS: [&str; 3] = ["crates/client", "crates/python", "crates/preload"];

/// A file's product code: what stands before its tests.
fn product(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

/// The name of the public function that a line declares.
fn declared(line: &str) -> Option<&str> {
    let code = line.trim_start().strip_prefix("pub ")?;
    let words = ["const ", "unsafe ", "async "];
    let code = words.iter().fold(code, |code, word| code.strip_prefix(word).unwrap_or(code));
    let name = code.strip_prefix("fn ")?;
    name.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next()
}

#[test]
fn a_public_function_is_called_by_more_than_tests() {
    let is_product = |path: &std::path::Path| {
        let of_tests = ["tests", "testkit", "fuzz", "examples"];
        path.extension().is_some_and(|e| e == "rs")
            && path.starts_with("crates")
            && !path.components().any(|c| of_tests.iter().any(|name| c.as_os_str() == *name))
    };
    let sources: Vec<_> =
        files().into_iter().filter(|path| is_product(path)).map(|p| (read(&p), p)).collect();
    let mut said: BTreeMap<&str, usize> = BTreeMap::new();
    for (text, _) in &sources {
        for line in product(text).lines().filter(|line| !line.trim_start().starts_with("//")) {
            for word in line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
                *said.entry(word).or_default() += 1;
            }
        }
    }
    let mut looked_at = 0;
    let mut idle = Vec::new();
    for (text, path) in &sources {
        if FOR_OTHERS.iter().any(|others| path.starts_with(others)) {
            continue;
        }
        for name in product(text).lines().filter_map(declared) {
            looked_at += 1;
            if said[name] < 2 {
                idle.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(looked_at > 300, "only {looked_at} public functions were found");
    assert!(idle.is_empty(), "called by nothing but tests, if at all: {idle:#?}");
}
