// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every promise of SPECIFICATION.md stands above the tests that enforce it, and those tests run.
//!
//! A comment `Promise P1 (section): sentence` above a test makes a promise, and `Promise P1.` above
//! another test says that it enforces the same one. The document is printed from these comments. A
//! comment, because tests are in Rust, C, Go and tables of virtual machines.
//!
//! A test is a function with an attribute `#[test]` (or a runtime's, `#[tokio::test]`) and without
//! `#[ignore]`, an entry of a table of runs (`why = "..."` in a TOML file), a case of a C program,
//! or a test of `go test`. A name in a comment, or of a function that never runs, is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use super::{files, read, root};

/// The sections in the document's order: as comments name them, and their headings.
const SECTIONS: &[(&str, &str)] = &[
    ("isolation", "Isolation"),
    ("zero claim", "The zero claim"),
    ("crashes", "Crashes"),
    ("fallback", "Nothing is worse than without"),
    ("work", "Work and waiting"),
    ("socket", "The socket"),
    ("names", "Loans by name"),
    ("pods", "Pods"),
    ("tree", "The control tree"),
    ("kernel", "Over a kernel that knows its zeroed pages"),
    ("years", "Running it for years"),
    ("operator", "The operator in control"),
    ("programs", "Programs as they are"),
];

const HEAD: &str = "\
# Specification

Numbered promises, by subject. Each names the tests that fail when it is broken. The promises are
comments above these tests, and `PREZERO_WRITE_DOCS=1 cargo test -p prezero-tests --test rules
promises` writes this page.
";

/// What a line of a comment says, in Rust, Go, C and TOML. Documentation is no such comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim();
    let said = ["// ", "# ", "* ", "/* "].iter().find_map(|lead| line.strip_prefix(lead))?;
    Some(said.trim_end_matches("*/").trim())
}

/// The test that a line begins.
fn test_name(line: &str) -> Option<&str> {
    let line = line.trim();
    if line.starts_with("why = ") {
        return Some(line);
    }
    let rest = line.trim_start_matches("pub ").trim_start_matches("async ");
    let rest = ["fn ", "TEST(", "func "].iter().find_map(|lead| rest.strip_prefix(lead))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// A comment above a test.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    number: u32,
    /// The section and the sentence, where the promise is made.
    made: Option<(String, String)>,
    test: String,
}

/// The beginning of a mark: `Promise P1.` or `Promise P1 (section): sentence`.
fn begun(text: &str) -> Option<Mark> {
    let rest = text.strip_prefix("Promise P")?;
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    let (number, rest) = (rest[..end].parse().ok()?, &rest[end..]);
    let made = rest.strip_prefix(" (").and_then(|rest| rest.split_once("):"));
    let made = made.map(|(section, text)| (section.to_owned(), text.trim().to_owned()));
    (made.is_some() || rest == ".").then(|| Mark { number, made, test: String::new() })
}

fn marks(source: &str) -> Vec<Mark> {
    let (mut done, mut pending) = (Vec::new(), Vec::<Mark>::new());
    let mut is_open = false;
    for line in source.lines() {
        match comment(line) {
            Some(text) if text.starts_with("Promise P") => {
                pending.extend(begun(text));
                is_open = true;
            }
            Some(text) if is_open => {
                if let Some((_, sentence)) = pending.last_mut().and_then(|mark| mark.made.as_mut())
                {
                    sentence.push(' ');
                    sentence.push_str(text);
                }
            }
            Some(_) => {}
            None => is_open = false,
        }
        if let Some(test) = test_name(line) {
            done.extend(pending.drain(..).map(|mark| Mark { test: test.to_owned(), ..mark }));
        }
    }
    done
}

/// A promise with its tests, the one that makes it first.
#[derive(Default)]
struct Promise {
    made: Option<(String, String)>,
    tests: Vec<String>,
}

fn promises() -> BTreeMap<u32, Promise> {
    let mut all = BTreeMap::<u32, Promise>::new();
    for path in files() {
        let is_source = path
            .extension()
            .is_some_and(|e| ["rs", "c", "go", "toml"].iter().any(|ending| e == *ending));
        if !is_source || path.ends_with("rules/specification.rs") {
            continue;
        }
        for Mark { number, made, test } in marks(&read(&path)) {
            let promise = all.entry(number).or_default();
            if made.is_some() {
                assert!(promise.made.is_none(), "P{number} is made twice, in {}", path.display());
                promise.made = made;
                promise.tests.insert(0, test);
            } else {
                promise.tests.push(test);
            }
        }
    }
    all
}

fn document(promises: &BTreeMap<u32, Promise>) -> String {
    let mut text = HEAD.to_owned();
    for (section, heading) in SECTIONS {
        let _ = write!(text, "\n## {heading}\n\n| no. | promise | enforced by |\n|---|---|---|\n");
        for (number, Promise { made, tests }) in promises {
            let made = made.as_ref().unwrap_or_else(|| panic!("no test makes P{number}"));
            if made.0 == *section {
                let tests: Vec<_> = tests.iter().map(|test| format!("`{test}`")).collect();
                let _ = writeln!(text, "| P{number} | {} | {} |", made.1, tests.join(", "));
            }
        }
    }
    text
}

#[test]
fn document_has_the_promises_that_tests_make() {
    let promises = promises();
    let sections: BTreeSet<_> = SECTIONS.iter().map(|(section, _)| *section).collect();
    for (number, promise) in &promises {
        let section = promise.made.as_ref().map_or("", |(section, _)| section);
        assert!(sections.contains(section), "P{number} is in no section: `{section}`");
    }
    let made = document(&promises);
    let path = Path::new("SPECIFICATION.md");
    if std::env::var_os("PREZERO_WRITE_DOCS").is_some() {
        std::fs::write(root().join(path), &made).expect("the document can be written");
        return;
    }
    let again = "PREZERO_WRITE_DOCS=1 cargo test -p prezero-tests --test rules promises";
    assert!(read(path) == made, "write it anew: {again}");
}

#[test]
fn marks_are_read_from_every_language() {
    let rust = "\
        // Promise P7 (work): A sentence that is\n\
        // longer than a line.\n\
        // Promise P9.\n\
        /// Documentation.\n\
        #[test]\n\
        fn plain() {}\n\
        // Promise P10 is spoken of.\n\
        fn other() {}\n";
    let made = Some(("work".to_owned(), "A sentence that is longer than a line.".to_owned()));
    let mark = |number, made: &Option<_>, test: &str| Mark {
        number,
        made: made.clone(),
        test: test.to_owned(),
    };
    assert_eq!(marks(rust), [mark(7, &made, "plain"), mark(9, &None, "plain")]);
    let c =
        "/*\n * Promise P7 (work): A sentence that is\n * longer than a line.\n */\nTEST(poll)\n";
    assert_eq!(marks(c), [mark(7, &made, "poll")]);
    let go = "// Promise P9.\nfunc TestA(t *testing.T) {\n";
    assert_eq!(marks(go), [mark(9, &None, "TestA")]);
    assert_eq!(marks("# Promise P9.\nwhy = \"x\"\n"), [mark(9, &None, "why = \"x\"")]);
}

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
        assert!(!named.is_empty(), "{number} names no test");
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
