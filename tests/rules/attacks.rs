// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/evidence/attacks.md has a row of every attack in tests/hostile, and no other.

use std::collections::BTreeSet;
use std::path::Path;

use super::{files, read};

/// The functions that make attacks, as in `scrapes::attacks`, and the names that stand in the code
/// as they are.
fn in_code() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut found, mut names) = (BTreeSet::new(), BTreeSet::new());
    for path in files().into_iter().filter(|path| path.starts_with("tests/hostile")) {
        let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
        let mut function = String::new();
        for line in read(&path).lines().map(str::trim_start) {
            let code = line.trim_start_matches("pub(crate) ");
            if let Some(rest) = code.strip_prefix("fn ") {
                function = rest.split(['(', '<']).next().unwrap_or_default().to_owned();
            }
            if line.contains("Attack::new(") || line.starts_with("say(") {
                found.insert(format!("{name}::{function}"));
            }
            let literal =
                line.split_once("Attack::new(\"").and_then(|(_, rest)| rest.split_once('"'));
            names.extend(literal.map(|(name, _)| name.to_owned()));
        }
    }
    (found, names)
}

// Promise P266 (years): docs/evidence/attacks.md has a row of every attack in tests/hostile, and
// of no other.
#[test]
fn the_table_of_attacks_has_each_of_them_and_no_other() {
    let text = read(Path::new("docs/evidence/attacks.md"));
    let rows: Vec<Vec<_>> = text
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .skip(1)
        .collect();
    assert!(rows.len() > 100, "only {} rows", rows.len());
    let mut names: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert!(names.is_sorted(), "`make attacks` sorts them");
    names.dedup();
    assert_eq!(names.len(), rows.len(), "an attack stands twice");
    for row in &rows {
        assert_eq!(row.len(), 7, "{row:?}");
        assert!(!row[2].is_empty() && !row[4].is_empty() && row[6].starts_with("20"), "{row:?}");
    }
    let in_table: BTreeSet<_> =
        rows.iter().map(|row| row[5].trim_matches('`').to_owned()).collect();
    let (in_code, literal) = in_code();
    let unnamed: Vec<_> = literal.iter().filter(|name| !names.contains(&name.as_str())).collect();
    assert!(unnamed.is_empty(), "no row of {unnamed:?}: run `make attacks`");
    let missing: Vec<_> = in_code.difference(&in_table).collect();
    let stale: Vec<_> = in_table.difference(&in_code).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "no row of {missing:?}, no attack of {stale:?}: run `make attacks`"
    );
}
