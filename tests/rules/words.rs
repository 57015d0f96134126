// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One word, one thing: the names of public types, and the glossary of the book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{files, read};

/// Names that several files have, and why that is no second meaning.
const SHARED: [(&str, &str); 10] = [
    ("Args", "the arguments of each verb"),
    ("Error", "each crate has its own, as Rust's libraries do"),
    ("Result", "with it"),
    ("Exit", "how a process ends: the command's table, and the part of it that a worker has"),
    ("Job", "one job: as a message, and in a worker's hands"),
    ("Loan", "one loan: in the book, and in its borrower's hands"),
    ("Watch", "one watch: the call, and the kernel's structure for it"),
    ("Unheld", "a file without holders: as the looks found it, and as the book keeps it"),
    ("Unavailable", "what this machine lacks for a method, and for seeing pins"),
    ("Outcome", "what came of clearing an extent, and of a verb"),
];

/// The sources of the crates that others build on: without tests, and without what measures.
fn sources() -> Vec<PathBuf> {
    let is_product = |path: &PathBuf| {
        let text = path.to_str().expect("a plain name");
        text.starts_with("crates/")
            && text.contains("/src/")
            && text.ends_with(".rs")
            && !["/tests/", "/tests.rs", "/testkit/", "crates/lab/"]
                .iter()
                .any(|t| text.contains(t))
    };
    files().into_iter().filter(is_product).collect()
}

/// What follows `pub`, `pub(crate)` or `pub(super)` in a line.
fn visible(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub")?;
    match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(") ").map(|(_, rest)| rest),
        None => rest.strip_prefix(' '),
    }
}

/// The files in which each type's name stands that other files can see. The shim's are apart: it
/// has none of the daemon's.
fn public_types() -> BTreeMap<String, BTreeSet<String>> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in sources().into_iter().filter(|path| !path.starts_with("crates/preload")) {
        let room = path.display().to_string();
        for line in read(&path).lines() {
            let Some(rest) = visible(line) else { continue };
            let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
            let Some((kind, rest)) = rest.split_once(' ') else { continue };
            if ["struct", "enum", "union", "trait", "type"].contains(&kind) {
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                let name = &rest[..end.unwrap_or(rest.len())];
                names.entry(name.to_owned()).or_default().insert(room.clone());
            }
        }
    }
    names
}

#[test]
fn visible_type_names_are_one_thing() {
    let names = public_types();
    assert!(names.len() > 100, "only {} names were found", names.len());
    for (name, rooms) in &names {
        let is_shared = SHARED.iter().any(|(shared, _)| shared == name);
        assert!(rooms.len() == 1 || is_shared, "`{name}` is a type of each of {rooms:?}");
    }
    for (shared, why) in SHARED {
        let rooms = names.get(shared).map_or(0, BTreeSet::len);
        assert!(rooms > 1, "`{shared}` ({why}) is a name of {rooms} files: no exception is needed");
    }
}

#[test]
fn words_of_our_own_stand_in_the_glossary_or_nowhere() {
    let glossary = read(Path::new("docs/concepts/glossary.md")).to_lowercase();
    assert!(glossary.contains("**block**"), "the glossary was not found");
    // Once names of something here. Split, so that this file does not find itself.
    let once = [
        "shel f",
        "shel ves",
        "cre w",
        "dep uty",
        "deput ies",
        "be ll",
        "po ke",
        "la ne",
        "ha ll",
        "work shop",
        "ling er",
        "lin gering",
        "farew ell",
        "hou se",
        "he ed",
        "hee ded",
    ];
    for word in once.map(|parts| parts.replace(' ', "")) {
        if glossary.contains(&format!("**{word}**")) {
            continue;
        }
        for path in sources() {
            for (number, line) in read(&path).to_lowercase().lines().enumerate() {
                let mut words = line.split(|c: char| !c.is_ascii_alphabetic());
                let found =
                    words.any(|found| found == word || found.strip_suffix('s') == Some(&word));
                let place = format!("{}:{}", path.display(), number + 1);
                assert!(!found, "{place}: `{word}` is not in the glossary");
            }
        }
    }
}
