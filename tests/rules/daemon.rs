// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's folders: each uses only itself and those below it in ARCHITECTURE.md's table.

use std::collections::BTreeSet;
use std::path::Path;

use super::{files, read};

const DAEMON: &str = "crates/daemon/src";

/// A folder of the daemon and the modules in it.
struct Folder {
    name: String,
    modules: BTreeSet<String>,
}

/// The folders in the order of ARCHITECTURE.md's table: a folder uses only those below it.
fn folders() -> Vec<Folder> {
    let text = read(Path::new("ARCHITECTURE.md"));
    let header = "| folder of `daemon` | what it does | modules |\n";
    let (_, table) = text.split_once(header).expect("the table of the daemon's folders");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with("| "));
    let folder = |row: &str| {
        let mut names = row.split('`').skip(1).step_by(2).map(str::to_owned);
        Folder { name: names.next().expect("a folder"), modules: names.collect() }
    };
    rows.map(folder).collect()
}

/// The folders of its crate that a text names: after `crate::`, or between braces there.
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
    // Types that `lib.rs` exports from `base`.
    modules.retain(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
    modules
}

#[test]
fn daemon_folders_use_only_those_below_them() {
    let folders = folders();
    assert_eq!(folders.len(), 7, "the folders in ARCHITECTURE.md");
    let place = |name: &str| folders.iter().position(|folder| folder.name == name);
    let mut seen: Vec<BTreeSet<String>> = vec![BTreeSet::new(); folders.len()];
    let mut arrows = 0;
    for path in files() {
        let Ok(inside) = path.strip_prefix(DAEMON) else { continue };
        let inside = inside.to_str().expect("a plain name");
        if inside == "lib.rs" || !inside.ends_with(".rs") {
            continue;
        }
        let (folder, rest) =
            inside.split_once('/').unwrap_or_else(|| panic!("{inside} is in no folder"));
        let own = place(folder).unwrap_or_else(|| panic!("ARCHITECTURE.md has no row of {folder}"));
        let (module, _) = rest.split_once(['/', '.']).expect("a file or a folder");
        if !matches!(module, "mod" | "tests" | "testkit") {
            seen[own].insert(module.to_owned());
        }
        for other in named(&read(&path)).into_iter().filter(|other| other != folder) {
            let used = place(&other).unwrap_or_else(|| panic!("{inside} names crate::{other}"));
            assert!(own < used, "{inside} uses `{other}`, which is not below `{folder}`");
            arrows += 1;
        }
    }
    for (folder, seen) in folders.iter().zip(&seen) {
        assert_eq!(seen, &folder.modules, "modules of {}, and those in its row", folder.name);
    }
    assert!(arrows > 50, "only {arrows} uses: the rule looks at nothing");
}

#[test]
fn a_name_between_braces_is_seen() {
    let text = "// crate::nothing\nuse crate::{peers,\n tasks};\nuse crate::ops::Shell;\n\
                fn f() -> crate::Error";
    assert_eq!(named(text).into_iter().collect::<Vec<_>>(), ["ops", "peers", "tasks"]);
}

#[test]
fn the_book_is_obeyed_in_one_place() {
    for path in files() {
        let Ok(inside) = path.strip_prefix(DAEMON) else { continue };
        let calls = read(&path).matches("store.carry_out(").count();
        // Decisions, and the removal of a block after a failed one.
        let allowed = if inside == Path::new("ops/effects.rs") { 2 } else { 0 };
        assert_eq!(calls, allowed, "{}: use `Shell::apply`", path.display());
    }
}

#[test]
fn varlink_api_translates_and_does_no_more() {
    const MAX_METHOD_LINES: usize = 15;
    let text = read(&Path::new(DAEMON).join("api/varlink/mod.rs"));
    let mut methods = 0;
    // Methods are indented once: their bodies begin and end there.
    let mut begin = None;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("    ") && !line.starts_with("     ") && line.ends_with('{') {
            begin = Some(number);
        } else if line == "    }" {
            let begin = begin.take().expect("a body that began");
            let lines = number - begin - 1;
            assert!(
                lines <= MAX_METHOD_LINES,
                "the method that ends in line {number} has {lines} lines"
            );
            methods += 1;
        }
    }
    assert!(methods >= 8, "only {methods} methods: the rule looks at nothing");
}
