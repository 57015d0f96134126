// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of the attacks' results: printed by each run, and written on request (`make attacks`).
//!
//! A row replaces the one of the same attack and leaves the others, so that single attacks can be
//! run again. `code` is the function that makes the attack; `tests/rules` compares these with the
//! sources.

use std::collections::BTreeMap;
use std::io::Write;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::Command;

use linux::{Roots, cpu};

const VARIABLE: &str = "PREZERO_HOSTILE_TABLE";
const HEAD: &str = "\
# Attacks and what came of them

<!-- `make attacks` writes this page: change tests/hostile/ and run it. -->

[How attacks are judged](attacks-method.md) says how each is made, and what the columns mean.

| attack | by | it gets | p99 without / with | left | code | measured |
|---|---|---|---|---|---|---|
";

/// One more row: the attack, the attacker, its gain, the victims' times, and the remains.
pub(crate) fn add(cells: &[&str; 5], place: &Location<'_>) {
    let line = format!("| {} |\n", cells.join(" | "));
    // Also where the harness swallows what tests print.
    std::io::stdout().write_all(line.as_bytes()).expect("standard output can be written");
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else { return };
    let path = root().join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut rows: BTreeMap<String, String> = text
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| attack |"))
        .map(|line| (line[2..].split(" | ").next().unwrap_or_default().to_owned(), line.to_owned()))
        .collect();
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    let row = format!("| {} | `{}` | {} |", cells.join(" | "), code(place), machine());
    rows.insert(cells[0].clone(), row);
    let rows: String = rows.into_values().map(|row| row + "\n").collect();
    std::fs::write(&path, format!("{HEAD}{rows}"))
        .unwrap_or_else(|error| panic!("{VARIABLE}={}: {error}", path.display()));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in it").to_owned()
}

/// The function around a place, as in `scrapes::attacks`.
fn code(place: &Location<'_>) -> String {
    let source = std::fs::read_to_string(root().join(place.file())).expect("our own source");
    let above: Vec<_> = source.lines().take(place.line() as usize).collect();
    let name = above.into_iter().rev().find_map(|line| {
        let line = line.trim_start().trim_start_matches("pub(crate) ");
        line.strip_prefix("fn ")?.split(['(', '<']).next().map(str::to_owned)
    });
    let file = Path::new(place.file()).file_stem().unwrap_or_default();
    format!("{}::{}", file.display(), name.unwrap_or_default())
}

/// When, and on what CPU.
fn machine() -> String {
    let date = Command::new("date").args(["-u", "+%F"]).output().expect("date runs");
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    let cpu = cpu::describe(&Roots::default()).expect("/proc/cpuinfo");
    let kernel = cpu.kernel_release.split('-').next().unwrap_or_default();
    format!("{date}, {}, Linux {kernel}", cpu.model)
}
