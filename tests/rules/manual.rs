// SPDX-License-Identifier: Apache-2.0 OR MIT
//! prezero.toml(5) has the very sections and keys that the daemon reads, and so has the file that
//! packages install.

use std::collections::BTreeSet;
use std::path::Path;

use book::config::Config;
use serde_json::Value;

use super::read;

/// A section, empty at the top, and a key.
type Key = (String, String);

fn keys_of_the_daemon() -> BTreeSet<Key> {
    let one_of_each = "[[reserve]]\npage_size = \"2M\"\npages = 1\n[[pool]]\npage_size = \"2M\"\n";
    let config = Config::from_toml(one_of_each).expect("a good configuration");
    let config = serde_json::to_value(config).expect("it can be written");
    let mut keys = BTreeSet::new();
    for (name, value) in config.as_object().expect("a table") {
        let (section, table) = match value {
            Value::Object(table) if !["quota_of", "lend_groups"].contains(&name.as_str()) => {
                (format!("[{name}]"), table)
            }
            Value::Array(tables) => {
                (format!("[[{name}]]"), tables[0].as_object().expect("a table"))
            }
            _ => {
                keys.insert((String::new(), name.clone()));
                continue;
            }
        };
        keys.extend(table.keys().map(|key| (section.clone(), key.clone())));
    }
    keys
}

fn keys_of_the_manual() -> BTreeSet<Key> {
    let mut section = String::new();
    let mut keys = BTreeSet::new();
    for line in read(Path::new("dist/man/prezero.toml.5")).lines() {
        if let Some(name) = line.strip_prefix(".Ss ") {
            section = if name == "Top level" { String::new() } else { name.to_owned() };
        } else if let Some(key) = line.strip_prefix(".It Ic ") {
            keys.insert((section.clone(), key.to_owned()));
        }
    }
    keys
}

#[test]
fn the_manual_of_the_configuration_file_has_exactly_its_keys() {
    assert_eq!(keys_of_the_manual(), keys_of_the_daemon());
}

#[test]
fn the_configuration_that_is_installed_is_good_and_so_is_every_line_that_is_commented_out() {
    let text = read(Path::new("dist/etc/prezero.toml"));
    Config::from_toml(&text).expect("it is installed like that");
    // Prose has a blank after its sign; what can be switched on has none.
    let on = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => rest.to_owned(),
        _ => line.to_owned(),
    };
    let text: Vec<_> = text.lines().map(on).collect();
    let config = Config::from_toml(&text.join("\n")).expect("with everything switched on");
    assert!(!config.pools.is_empty() && !config.reserve.is_empty());
    assert!(config.metrics.listen.is_some() && config.workers.cpus.is_some());
}

#[test]
fn example_of_the_manual_is_a_good_configuration() {
    let text = read(Path::new("dist/man/prezero.toml.5"));
    let (_, example) = text.split_once(".Bd -literal -offset indent\n").expect("an example");
    let (example, _) = example.split_once(".Ed").expect("its end");
    Config::from_toml(example).expect("a good configuration");
}

#[test]
fn the_manual_of_the_c_library_has_exactly_its_functions() {
    let header = read(Path::new("crates/client/include/prezero.h"));
    let declared: BTreeSet<_> = header
        .lines()
        .filter(|line| !line.starts_with(' ') && line.contains('('))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("prezero_"))
        .map(str::to_owned)
        .collect();
    let manual = read(Path::new("dist/man/libprezero.3"));
    let synopsis = manual.split(".Sh DESCRIPTION").next().expect("a synopsis");
    let described: BTreeSet<_> = synopsis
        .lines()
        .filter_map(|line| line.strip_prefix(".Fn ")?.split(' ').next())
        .map(str::to_owned)
        .collect();
    assert!(declared.len() >= 19, "{declared:?}");
    assert_eq!(declared, described);
}
