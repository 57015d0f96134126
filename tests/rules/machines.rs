// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The virtual machines have what the tests that run on them ask for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{files, read};

/// What stands between `start` and the next `end`, each time.
fn between<'a>(text: &'a str, start: &'a str, end: char) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).filter_map(move |rest| Some(rest.split_once(end)?.0))
}

#[test]
fn machine_without_a_compiler_has_the_shim_tests_programs() {
    let table = read(Path::new("tests/vm/user.toml"));
    let lists = between(&table, "dynamic = [", ']');
    let there: BTreeSet<&str> = lists.flat_map(|list| list.split('"').skip(1).step_by(2)).collect();
    let dir = Path::new("tests/e2e/shim");
    let is_the_shims = |path: &PathBuf| path.starts_with(dir) || path == &dir.with_extension("rs");
    let tests = files().into_iter().filter(is_the_shims);
    let texts: String = tests.map(|path| read(&path)).collect();
    let asked: BTreeSet<&str> = between(&texts, "compile(\"", '"').collect();
    assert!(asked.len() > 4, "the tests are read: {asked:?}");
    let missing: Vec<_> = asked.difference(&there).collect();
    assert!(missing.is_empty(), "for `dynamic` in tests/vm/user.toml: {missing:?}");
}
