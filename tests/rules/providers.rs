// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Providers differ in few places, and nowhere else asks which one it is.

use std::path::Path;

use super::{files, read};

/// Where each name of a provider may stand, below the folder it is looked for in.
const NAMES: [(&str, &[&str], &[&str]); 3] = [
    ("crates/book/src/book", &["supply/"], &["Supply::Blocks", "Supply::Kernel", "KernelPools"]),
    (
        "crates/daemon/src",
        &["storage/provider.rs"],
        &["Provider::Plain", "Provider::Stock", "Provider::Kernel"],
    ),
    ("crates/daemon/src", &["storage/provider.rs", "storage/kernel/"], &["KernelPool"]),
];

#[test]
fn providers_differ_only_where_they_are_kept() {
    for (folder, homes, names) in NAMES {
        for name in names {
            let mut at_home = 0;
            for path in files() {
                let Ok(inside) = path.strip_prefix(Path::new(folder)) else { continue };
                let inside = inside.to_str().expect("a plain name");
                if inside.starts_with("tests") || !inside.ends_with(".rs") {
                    continue;
                }
                // A provider calls its own variants by `Self`.
                let text = read(&path);
                let (kind, variant) = name.split_once("::").unwrap_or((name, name));
                let own = format!("Self::{variant}");
                let is_home = homes.iter().any(|home| inside.starts_with(home));
                let named = |line: &str| {
                    !line.trim_start().starts_with("//") && line.contains(name)
                        || is_home && text.contains(kind) && line.contains(&own)
                };
                match text.lines().filter(|line| named(line)).count() {
                    0 => {}
                    n if is_home => at_home += n,
                    _ => panic!("{} asks for `{name}`: that is for {homes:?}", path.display()),
                }
            }
            assert!(at_home > 0, "`{name}` is nowhere below {folder}: the rule looks for nothing");
        }
    }
}
