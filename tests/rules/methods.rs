// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A clearing method, or a scan, is one row of `arch/table.rs` and one function: no second list
//! names it.

use std::path::Path;

use super::{files, read};

const TABLE: &str = "crates/clear/src/arch/table.rs";

/// Which methods are tried first on which CPU: policy, and not a list of all.
const POLICY: &str = "crates/clear/src/calibrate/defaults.rs";

/// The types that the table declares: `Avx512Nt "avx512-nt" ...;` gives `Avx512Nt`.
fn variants() -> Vec<String> {
    let variant = |line: &str| {
        let (variant, rest) = line.trim().split_once(" \"")?;
        let is_row = rest.ends_with(';') && variant.chars().all(char::is_alphanumeric);
        is_row.then(|| variant.to_owned())
    };
    read(Path::new(TABLE)).lines().filter_map(variant).collect()
}

#[test]
fn clearing_method_is_named_in_its_row_only() {
    let variants = variants();
    assert!(variants.len() >= 14, "{variants:?}");
    let mut second = Vec::new();
    for file in files() {
        let shown = file.display().to_string();
        if !shown.starts_with("crates/clear/src/") || [TABLE, POLICY].contains(&shown.as_str()) {
            continue;
        }
        let text = read(&file);
        let code = text.split("#[cfg(test)]").next().expect("a first part");
        for (at, line) in code.lines().enumerate() {
            let line = line.split("//").next().expect("a first part");
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.any(|word| variants.iter().any(|variant| variant == word)) {
                second.push(format!("{shown}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    assert!(second.is_empty(), "names a method beside {TABLE}:\n{}", second.join("\n"));
}
