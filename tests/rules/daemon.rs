// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's floors: its modules know those below them, as ARCHITECTURE.md draws it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{files, read};

const DAEMON: &str = "crates/daemon/src";

/// The floor of each module, 0 at the top.
fn floors() -> BTreeMap<String, usize> {
    let text = read(Path::new("ARCHITECTURE.md"));
    let (_, table) = text.split_once("| floor | modules of `daemon` |\n").expect("the table");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with("| "));
    let mut floors = BTreeMap::new();
    for (floor, row) in rows.enumerate() {
        for module in row.split('`').skip(1).step_by(2) {
            assert!(floors.insert(module.to_owned(), floor).is_none(), "{module} stands twice");
        }
    }
    floors
}

/// The modules of its crate that a text names: after `crate::`, or between braces there.
fn named(text: &str) -> BTreeSet<String> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let word = |part: &str| {
        let end = part.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        part[..end.unwrap_or(part.len())].to_owned()
    };
    let mut modules = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            None => _ = modules.insert(word(rest)),
            Some(list) => {
                let (list, _) = list.split_once('}').expect("a closing brace");
                modules.extend(list.split(',').map(|part| word(part.trim())));
            }
        }
    }
    // Types of the roof, which `lib.rs` has from the floor of errors.
    modules.retain(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
    modules
}

#[test]
fn the_daemons_modules_know_only_floors_below_them() {
    let floors = floors();
    let mut seen = BTreeSet::new();
    let mut arrows = 0;
    for path in files() {
        let Ok(inside) = path.strip_prefix(DAEMON) else { continue };
        let inside = inside.to_str().expect("a plain name");
        let (module, _) = inside.split_once(['/', '.']).unwrap_or((inside, ""));
        if module == "lib" || !inside.ends_with(".rs") {
            continue;
        }
        let floor = floors.get(module).unwrap_or_else(|| panic!("{module} is on no floor"));
        seen.insert(module.to_owned());
        for other in named(&read(&path)).into_iter().filter(|other| other != module) {
            let below = floors.get(&other).unwrap_or_else(|| panic!("{inside}: what is {other}?"));
            assert!(floor < below, "{inside} names `{other}`, which is not below it");
            arrows += 1;
        }
    }
    let drawn: BTreeSet<_> = floors.into_keys().collect();
    assert_eq!(seen, drawn, "the modules there are, and those in ARCHITECTURE.md");
    assert!(arrows > drawn.len(), "only {arrows} arrows: the rule looks at nothing");
}

#[test]
fn a_name_between_braces_is_seen() {
    let text = "// crate::nothing\nuse crate::{patience,\n watchers};\nuse crate::shell::Shell;\n\
                fn f() -> crate::Error";
    assert_eq!(named(text).into_iter().collect::<Vec<_>>(), ["patience", "shell", "watchers"]);
}

#[test]
fn the_book_is_obeyed_in_one_place() {
    for path in files() {
        let Ok(inside) = path.strip_prefix(DAEMON) else { continue };
        let calls = read(&path).matches("store.carry_out(").count();
        // What is decided, and the removal of a block for which that failed.
        let allowed = if inside == Path::new("shell/effects.rs") { 2 } else { 0 };
        assert_eq!(calls, allowed, "{}: use `Shell::apply`", path.display());
    }
}

#[test]
fn the_varlink_face_translates_and_does_no_more() {
    const LONGEST: usize = 15;
    let text = read(&Path::new(DAEMON).join("face/varlink/mod.rs"));
    let mut methods = 0;
    // Methods are indented once: their bodies begin and end there.
    let mut begin = None;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("    ") && !line.starts_with("     ") && line.ends_with('{') {
            begin = Some(number);
        } else if line == "    }" {
            let begin = begin.take().expect("a body that began");
            let lines = number - begin - 1;
            assert!(lines <= LONGEST, "the method that ends in line {number} has {lines} lines");
            methods += 1;
        }
    }
    assert!(methods >= 8, "only {methods} methods: the rule looks at nothing");
}
