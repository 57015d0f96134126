// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which room knows which: the table of ARCHITECTURE.md, what cargo knows, and what the code
//! names are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{files, read, root};

/// What cargo knows of one package.
struct Room {
    /// Its directory, from the repository's root.
    folder: String,
    /// The rooms it depends on, each with the name that its code gives it.
    knows: BTreeMap<String, String>,
}

/// How the table names a room: what lies in `crates` by its name, everything else by its path.
fn short(folder: &str) -> &str {
    folder.strip_prefix("crates/").unwrap_or(folder)
}

/// Every package of the workspace, by the table's name of it.
fn rooms() -> BTreeMap<String, Room> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let base = metadata["workspace_root"].as_str().expect("a path");
    let packages = metadata["packages"].as_array().expect("a list");
    let folder_of = |manifest: &str| {
        let folder = Path::new(manifest).strip_prefix(base).ok()?.parent()?;
        Some(folder.to_str().expect("a plain name").to_owned())
    };
    let folders: BTreeMap<&str, String> = packages
        .iter()
        .filter_map(|package| {
            let name = package["name"].as_str()?;
            Some((name, folder_of(package["manifest_path"].as_str()?)?))
        })
        .collect();
    let room = |package: &Value| {
        let name = package["name"].as_str().expect("a name");
        let folder = folders[name].clone();
        let mut knows = BTreeMap::new();
        for dependency in package["dependencies"].as_array().expect("a list") {
            let other = dependency["name"].as_str().expect("a name");
            let Some(to) = folders.get(other).filter(|_| other != name) else { continue };
            // Any room's tests may use the shared test support.
            if dependency["kind"] == "dev" && short(to) == "testkit" {
                continue;
            }
            let alias = dependency["rename"].as_str().unwrap_or(other).replace('-', "_");
            knows.insert(short(to).to_owned(), alias);
        }
        (short(&folder).to_owned(), Room { folder, knows })
    };
    packages.iter().map(room).collect()
}

/// The table: each room and those it knows.
fn drawn() -> BTreeMap<String, BTreeSet<String>> {
    let text = read(Path::new("ARCHITECTURE.md"));
    let (_, rest) = text.split_once("\n## Rooms and arrows\n").expect("the section");
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let mut table = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [room, _, knows] = cells[..] else { panic!("not three columns: {line}") };
        let knows = knows.split(", ").filter(|other| *other != "nobody").map(str::to_owned);
        let room = short(room.trim_matches('`')).to_owned();
        assert!(table.insert(room, knows.collect()).is_none(), "a room stands twice: {line}");
    }
    assert!(table.len() > 5, "the table of rooms was not found");
    table
}

#[test]
fn every_dependency_between_rooms_is_an_arrow_of_the_design() {
    let (rooms, mut table) = (rooms(), drawn());
    for (name, room) in &rooms {
        // The guest is part of the room `tests/vm` in the table, which names directories.
        let row = if name == "tests/vm/guest" { "tests/vm" } else { name };
        let drawn = table
            .remove(row)
            .unwrap_or_else(|| panic!("`{name}` is a room that ARCHITECTURE.md does not have"));
        let real: BTreeSet<_> = room.knows.keys().cloned().collect();
        assert_eq!(real, drawn, "what `{name}` knows, by cargo and by ARCHITECTURE.md");
    }
    // A place that is no package has no arrows in either direction.
    for (row, knows) in table {
        assert!(knows.is_empty(), "`{row}` has no Cargo.toml, but arrows");
        assert!(root().join(&row).is_dir(), "`{row}` is no directory");
    }
}

#[test]
fn every_arrow_is_used_by_the_code() {
    let sources: Vec<_> = files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .map(|path| (path.to_str().expect("a plain name").to_owned(), read(&path)))
        .collect();
    for (name, room) in &rooms() {
        for (to, alias) in &room.knows {
            let uses = format!("{alias}::");
            let used = sources.iter().any(|(path, text)| {
                path.starts_with(&format!("{}/", room.folder))
                    && text
                        .lines()
                        .any(|line| !line.trim_start().starts_with("//") && line.contains(&uses))
            });
            assert!(
                used,
                "`{name}` declares that it knows `{to}`, and no line of it says `{uses}`"
            );
        }
    }
}

/// The packages that a package is built of, the ones for tests excluded.
fn built_of(package: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--offline", "-p", package, "-e", "normal", "--prefix", "none"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("text");
    let packages: BTreeSet<_> =
        tree.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect();
    assert!(packages.contains("prezero-units"), "not the tree of {package}: {tree}");
    packages
}

#[test]
fn the_shim_brings_no_configuration_format_into_programs() {
    for package in built_of("prezero-preload") {
        assert!(!package.starts_with("toml") && package != "prezero-book", "{package}");
    }
}

#[test]
fn daemon_reads_no_command_line() {
    let packages = built_of("prezero-daemon");
    assert!(packages.contains("prezero-worker"), "{packages:?}");
    assert!(!packages.iter().any(|package| package.starts_with("clap")), "{packages:?}");
}

#[test]
fn no_product_has_what_tests_share() {
    for product in ["prezero-cli", "prezero-lab", "prezero-linux", "prezero-preload", "prezero"] {
        let packages = built_of(product);
        assert!(!packages.contains("prezero-testkit"), "{product}: {packages:?}");
    }
}

#[test]
fn benchmarks_for_developers_are_in_no_package() {
    let text = read(Path::new("crates/lab/src/bench/mod.rs"));
    let lines: Vec<_> = text.lines().collect();
    for name in ["locality", "scale", "interference"] {
        let at = lines.iter().position(|line| *line == format!("mod {name};"));
        assert_eq!(lines[at.expect(name) - 1], "#[cfg(feature = \"developer\")]", "{name}");
    }
    let build = read(Path::new("xtask/src/package/built.rs"));
    assert!(build.contains("\"--no-default-features\""), "packages have the default features");
}
