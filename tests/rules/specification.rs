// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every promise of SPECIFICATION.md names tests that run.
//!
//! A test is a function with an attribute `#[test]` (or a runtime's, `#[tokio::test]`) and without
//! `#[ignore]`, an entry of a table of runs (`why = "..."` in a TOML file), a case of a C program,
//! or a test of `go test`. A name in a comment, or of a function that never runs, is none.

use std::collections::BTreeSet;
use std::path::Path;

use super::{files, read};

/// The longest row: what does not fit is two promises, or belongs into a document.
const MAX_ROW_CHARACTERS: usize = 420;

/// The names of the functions in a Rust source that the test harness runs.
fn rust_tests(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            let attribute = line.trim_start_matches("#[").trim_start();
            let name: String = attribute
                .chars()
                .take_while(|c| c.is_alphanumeric() || "_:".contains(*c))
                .collect();
            is_test |= name == "test" || name.ends_with("::test");
            is_ignored |= name == "ignore" || (name == "cfg_attr" && attribute.contains("ignore"));
            continue;
        }
        let code = line.trim_start_matches("pub ").trim_start_matches("async ");
        if let Some(rest) = code.strip_prefix("fn ") {
            let name: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if is_test && !is_ignored {
                found.insert(name);
            }
        }
        // What stands between attributes and their function: comments, and the rest of an attribute
        // that is longer than a line.
        if !line.starts_with("//") && !line.ends_with(")]") {
            (is_test, is_ignored) = (false, false);
        }
    }
    found
}

/// What a table's entries say of themselves, the cases that a C program names, and Go's tests.
fn other_tests(path: &Path, source: &str) -> BTreeSet<String> {
    let lines = source.lines().map(str::trim);
    match path.extension().and_then(|e| e.to_str()) {
        Some("toml") => {
            lines.filter(|line| line.starts_with("why = ")).map(str::to_owned).collect()
        }
        Some("c") => lines
            .filter_map(|line| line.strip_prefix("TEST(")?.split(')').next())
            .map(str::to_owned)
            .collect(),
        Some("go") if path.to_string_lossy().ends_with("_test.go") => lines
            .filter_map(|line| line.strip_prefix("func ")?.split_once("(t *testing.T)"))
            .map(|(name, _)| name.to_owned())
            .filter(|name| name.starts_with("Test"))
            .collect(),
        _ => BTreeSet::new(),
    }
}

#[test]
fn every_promise_names_tests_that_exist() {
    let text = read(Path::new("SPECIFICATION.md"));
    let mut tests = BTreeSet::new();
    for path in files() {
        let is = |ending| path.extension().is_some_and(|e| e == ending);
        if is("rs") {
            tests.extend(rust_tests(&read(&path)));
        } else if is("c") || is("toml") || is("go") {
            tests.extend(other_tests(&path, &read(&path)));
        }
    }
    let mut promises = 0;
    for line in text.lines().filter(|line| line.starts_with("| P")) {
        promises += 1;
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let (number, named_tests) = (cells[1], cells[3]);
        let named: Vec<_> = named_tests.split('`').skip(1).step_by(2).collect();
        let pending = named_tests.contains("pending:");
        assert!(pending || !named.is_empty(), "{number} names no test and does not say pending");
        for test in named {
            assert!(tests.contains(test), "{number} names `{test}`, which no harness runs");
        }
    }
    assert!(promises >= 20, "only {promises} promises were found");
}

#[test]
fn the_promises_are_tables_in_order_with_short_rows() {
    let text = read(Path::new("SPECIFICATION.md"));
    let lines: Vec<_> = text.lines().collect();
    let mut last = 0;
    let mut numbers = BTreeSet::new();
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("| no.") {
            last = 0;
        }
        if !line.starts_with("| P") {
            continue;
        }
        let before = lines[at - 1];
        assert!(before.starts_with('|'), "line {}: a row outside of its table: {line}", at + 1);
        let digits = line.trim_start_matches("| P").split(' ').next().unwrap_or_default();
        let number: u32 = digits.parse().unwrap_or_else(|_| panic!("`{digits}` in {line}"));
        assert!(number > last, "P{number} stands after P{last}");
        last = number;
        assert!(numbers.insert(number), "there are two promises P{number}");
        assert!(line.len() <= MAX_ROW_CHARACTERS, "P{number} is {} characters long", line.len());
    }
}

#[test]
fn only_what_a_harness_runs_counts_as_a_test() {
    let source = "
        // fn spoken_of() {}
        fn helper() {}
        #[test]
        fn plain() {}
        #[tokio::test]
        async fn with_a_runtime() {}
        #[test]
        #[ignore = \"later\"]
        fn ignored() {}
        proptest! {
            #[test]
            /// With a comment.
            fn of_many_cases(events in any()) {}
        }
        #[test]
        #[expect(clippy::too_many_lines,
                 reason = \"one story\")]
        fn long() {}
        const NAME: &str = \"fn in_a_string() {}\";
    ";
    let expected = ["long", "of_many_cases", "plain", "with_a_runtime"];
    assert_eq!(rust_tests(source).into_iter().collect::<Vec<_>>(), expected);
}
