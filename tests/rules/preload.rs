// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shim's rooms import each other in one direction, and each exported symbol has its row.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{files, read};

const SHIM: &str = "crates/preload/src/";

/// The lines of a source that are code.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim_start).filter(|line| !line.starts_with("//"))
}

/// Each room of the shim, and the rooms that its code names. A file in a folder is its room's.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let mut rooms: BTreeMap<String, String> = BTreeMap::new();
    for path in files() {
        let name = path.to_string_lossy().into_owned();
        let Some(inside) = name.strip_prefix(SHIM).and_then(|inside| inside.strip_suffix(".rs"))
        else {
            continue;
        };
        let room = inside.split('/').next().expect("a first part").to_owned();
        let text = read(&path);
        rooms.entry(room).or_default().extend(code(&text).flat_map(|line| [line, "\n"]));
    }
    rooms.remove("lib");
    let names: Vec<String> = rooms.keys().cloned().collect();
    let imports = rooms.iter().map(|(room, code)| {
        // `use crate::{a, b::C};` may go over lines.
        let lists = code.split("crate::{").skip(1).filter_map(|rest| rest.split("};").next());
        let words: BTreeSet<String> = lists
            .flat_map(|list| list.split(','))
            .chain(code.split("crate::").skip(1))
            .map(|path| path.trim_start().split(|c: char| !(c.is_alphanumeric() || c == '_')))
            .filter_map(|mut parts| parts.next().map(ToOwned::to_owned))
            .collect();
        let others = names.iter().filter(|name| *name != room && words.contains(*name));
        (room.clone(), others.cloned().collect())
    });
    imports.collect()
}

// Promise P321 (programs): The shim's rooms import each other in one direction, and each exported
// symbol has one row.
#[test]
fn the_shims_rooms_have_no_circle_of_imports() {
    let mut left = imports();
    assert!(left.len() > 15, "the rooms are found: {left:?}");
    assert!(left["guard"].contains("memfd"), "imports are found: {left:?}");
    loop {
        let before = left.len();
        let remaining: BTreeSet<String> = left.keys().cloned().collect();
        left.retain(|_, imports| imports.iter().any(|room| remaining.contains(room)));
        if left.len() == before {
            break;
        }
    }
    assert!(left.is_empty(), "these import each other in a circle, or one that does: {left:#?}");
}

// Promise P321.
/// A symbol without a row would be found by the linker and not by `dlsym`.
#[test]
fn each_symbol_that_the_shim_exports_has_a_row() {
    let rows = read(Path::new(&format!("{SHIM}next.rs")));
    let mut exported = BTreeSet::new();
    for path in files().iter().filter(|path| path.starts_with(SHIM)) {
        let text = read(path);
        for after in text
            .split("pub unsafe extern \"C\" fn ")
            .chain(text.split("pub extern \"C\" fn "))
            .skip(1)
        {
            let name = after.split('(').next().expect("a first part");
            if name.chars().all(|c| c.is_alphanumeric() || c == '_') {
                exported.insert(name.to_owned());
            }
        }
    }
    exported.remove("dlsym");
    assert!(exported.len() > 20, "{exported:?}");
    for name in exported {
        assert!(rows.contains(&format!("= c\"{name}\":")), "{name} has no row in next.rs");
    }
}
